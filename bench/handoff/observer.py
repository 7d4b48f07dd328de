"""Notes when things happen inside the processes of a handoff, one JSON line each, on the clock that all of them share.

| event       | process | when                                                                              |
|-------------|---------|-----------------------------------------------------------------------------------|
| `submitted` | decode  | the gateway's sequence has been read                                              |
| `ordered`   | decode  | its order has been sent                                                           |
| `ready`     | decode  | the proof that everything is written has been read                                |
| `cancelled` | decode  | the gateway's cancel has been read, `phase` says of what                          |
| `settled`   | decode  | the last writer's hold has ended: if the sequence has ended, its blocks are free  |
| `step`      | prefill | a step that computed something has ended; `seconds` it took                       |
| `posted`    | prefill | a write was posted; `num_bytes`, and `num_runs` after joining                     |
| `begun`     | prefill | the mover's thread has taken it                                                   |
| `ended`     | prefill | the mover's thread has answered it; `cpu_seconds` of that thread since `begun`    |
| `memcpy`    | prefill | then, in the same thread, as many bytes were copied as one run: `seconds`, and    |
|             |         | `cpu_seconds` of the thread                                                       |

Everything here replaces methods of the product in this process only; the product has no such switch.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lineclear.base.ids import SequenceId
from lineclear.engine.engine import Engine
from lineclear.protocol.handoff import receiver as rx
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.scheduler import Scheduler
from lineclear.schedule.sequence import Sequence as TokenSequence
from lineclear.transport.movers.mover import Completion, Span
from lineclear.transport.movers.shm import ShmMover
from lineclear.transport.movers.spans import checked_runs
from lineclear.transport.movers.threaded_writer import Order, Orders, Reports, ThreadedWriter, Write
from lineclear.worker.decode_desk import DecodeDesk

Event: TypeAlias = dict[str, Any]
Note: TypeAlias = Callable[..., None]

ANY_SIZE = 2**62
MEMCPY_BYTES = 256 * 1024 * 1024
"""Of the memories that are copied for comparison: far more than any cache, as those of the KV."""


def read_events(path: Path) -> list[Event]:
    """Return what was noted so far, in the order of time. A line that is just being written is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return sorted((json.loads(line) for line in lines if line.endswith("\n")), key=lambda event: event["at"])


def observe(path: Path) -> None:
    """Note everything in this process from now on; `path` gets the lines."""
    file = path.open("a", buffering=1, encoding="utf-8")

    def note(event: str, **facts: object) -> None:
        file.write(json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n")

    _observe_desk(note)
    _observe_cancels(note)
    _observe_steps(note)
    _observe_writes(note)


def _observe_desk(note: Note) -> None:
    submit, begin, perform = DecodeDesk.submit, DecodeDesk.begin, DecodeDesk._perform  # noqa: SLF001

    def observed_submit(desk: DecodeDesk, sequence: TokenSequence) -> None:
        note("submitted", sequence=sequence.sequence_id)
        submit(desk, sequence)

    def observed_begin(desk: DecodeDesk, sequence: TokenSequence) -> None:
        begin(desk, sequence)
        note("ordered", sequence=sequence.sequence_id)

    def observed_perform(desk: DecodeDesk, attempt: Any, effect: rx.ReceiverEffect) -> None:  # noqa: ANN401
        if isinstance(effect, rx.Ready):
            note("ready", sequence=attempt.sequence_id)
        perform(desk, attempt, effect)
        if isinstance(effect, rx.Settled):
            note("settled", sequence=attempt.sequence_id)

    DecodeDesk.submit, DecodeDesk.begin = observed_submit, observed_begin
    DecodeDesk._perform = observed_perform  # noqa: SLF001


def _observe_cancels(note: Note) -> None:
    cancel = Scheduler.cancel

    def observed(scheduler: Scheduler, sequence_id: SequenceId) -> bool:
        sequence = scheduler._queues.get(sequence_id)  # noqa: SLF001
        note("cancelled", sequence=sequence_id, phase="ended" if sequence is None else sequence.state.name.lower())
        return cancel(scheduler, sequence_id)

    Scheduler.cancel = observed


def _observe_steps(note: Note) -> None:
    step = Engine.step

    def observed(engine: Engine) -> list[SequenceUpdate]:
        started = time.monotonic()
        updates = step(engine)
        if any(update.num_computed_tokens for update in updates):
            note("step", seconds=time.monotonic() - started)
        return updates

    Engine.step = observed


class _Memcpy:
    """Copies from shared memory into shared memory, all pages of which are there, each time the next bytes."""

    def __init__(self) -> None:
        memories = [ShmMover().open_memory(MEMCPY_BYTES) for _ in range(2)]
        self._source, self._destination = (np.frombuffer(each.buffer, dtype=np.uint8) for each in memories)
        self._source[:] = self._destination[:] = 1
        self._start = 0

    def copy(self, num_bytes: int) -> None:
        if self._start + num_bytes > MEMCPY_BYTES:
            self._start = 0
        span = slice(self._start, self._start + num_bytes)
        self._start += num_bytes
        np.copyto(self._destination[span], self._source[span])


def _observe_writes(note: Note) -> None:
    post, take, put = ThreadedWriter.post, Orders.take, Reports.put
    memcpy = _Memcpy()
    sizes: dict[int, int] = {}
    begun: dict[int, float] = {}
    """CPU time of the mover's thread when it took a write."""

    def observed_post(writer: ThreadedWriter, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        sizes[ticket] = sum(span.num_bytes for span in spans)
        num_runs = len(checked_runs(spans, ANY_SIZE, ANY_SIZE))
        note("posted", ticket=ticket, num_bytes=sizes[ticket], num_runs=num_runs)
        post(writer, ticket, memory_key, spans)

    def observed_take(orders: Orders, timeout_seconds: float | None) -> Order | None:
        order = take(orders, timeout_seconds)
        if isinstance(order, Write):
            note("begun", ticket=order.ticket)
            begun[order.ticket] = time.thread_time()
        return order

    def observed_put(reports: Reports, completion: Completion) -> None:
        cpu_seconds = time.thread_time() - begun.pop(completion.ticket, time.thread_time())
        note("ended", ticket=completion.ticket, cpu_seconds=cpu_seconds)
        put(reports, completion)
        num_bytes = sizes.pop(completion.ticket, 0)
        if 0 < num_bytes <= MEMCPY_BYTES:
            started = time.monotonic(), time.thread_time()
            memcpy.copy(num_bytes)
            seconds, cpu_seconds = time.monotonic() - started[0], time.thread_time() - started[1]
            note("memcpy", ticket=completion.ticket, seconds=seconds, cpu_seconds=cpu_seconds)

    ThreadedWriter.post, Orders.take, Reports.put = observed_post, observed_take, observed_put
