"""One rank's process: the product's own assembly, without a gateway and without a decode worker.

Rank 0 computes prompts as it does for orders of decode workers: a sequence with a reader, which holds the blocks until
everything is sent. Here nothing is sent, and the reader lets go once the prompt is computed.
"""

import contextlib
import hashlib
import itertools
import logging
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from lineclear.base.errors import InvariantError, LineclearError
from lineclear.base.ids import BlockId, SequenceId
from lineclear.engine.readiness import AlwaysReady
from lineclear.evaluation.layersplit.messages import Answer, Ask, Digests, Failed, Leave, RankStart, Ready, Step
from lineclear.evaluation.layersplit.spans import SpanFile
from lineclear.kv.pool import Holder, HolderKind
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence
from lineclear.worker.desk import LifeOverError
from lineclear.worker.handoffs import Assembly, Progress, assemble, assemble_follower
from lineclear.worker.ranks.instance import staging_bytes

IDLE_SECONDS = 0.5
"""How often a rank 0 that is asked nothing tells the others that it lives."""

logger = logging.getLogger(__name__)

SILENT = Progress(lambda _num_read, _num_all: None, lambda _stage: None)


def run_rank(start: RankStart, pipe: Connection | None) -> None:
    """Be a rank until there is nothing more to ask, or nobody to ask it; rank 0 has the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the benchmark's business
    try:
        with contextlib.closing(SpanFile(Path(start.span_path))) as on_span:
            if pipe is None:
                assemble_follower(start.config, start.seat, SILENT, None, on_span).run()
            else:
                _lead(start, pipe, on_span)
    except (LineclearError, LifeOverError) as error:
        logger.warning("rank %d ends: %s", start.seat.rank, error)
        if pipe is not None:
            pipe.send(Failed(str(error)))
    except (EOFError, BrokenPipeError):
        logger.warning("rank %d ends: whoever has started it is gone", start.seat.rank)


def _lead(start: RankStart, pipe: Connection, on_span: SpanFile) -> None:
    assembly = assemble(start.config, start.seat, SILENT, on_span)
    try:
        store = assembly.engine.store
        pipe.send(Ready(store.layout.num_slots, store.size_bytes, staging_bytes(start.config)))
        answering = _Answering(assembly, pipe)
        while not isinstance(message := answering.receive(), Leave):
            answering.answer(message)
    finally:
        assembly.close()


class _Answering:
    """Computes prompts, one at a time."""

    def __init__(self, assembly: Assembly, pipe: Connection) -> None:
        self._assembly = assembly
        self._pipe = pipe
        self._engine = assembly.engine
        self._ids = itertools.count(1)

    def receive(self) -> Ask | Leave:
        """Wait for what is asked, and keep the other ranks alive meanwhile."""
        while not self._pipe.poll(IDLE_SECONDS):
            self._keep_alive()
        return self._pipe.recv()

    def answer(self, ask: Ask) -> None:
        """Compute all of a prompt but its last token, and then say what is stored of it."""
        sequence_id = SequenceId(next(self._ids))
        reader = Holder(HolderKind.READER, sequence_id)
        sequence = Sequence(sequence_id, ask.token_ids, SamplingParams(max_tokens=1), reader=reader)
        started = time.perf_counter_ns()
        self._engine.submit(sequence)
        steps: list[Step] = []
        num_computed = 0
        while self._engine.has_work:
            step_started = time.perf_counter_ns()
            updates = self._engine.step()
            step_ended = time.perf_counter_ns()
            for update in updates:
                if update.error is not None:
                    raise InvariantError(f"a prompt of {len(ask.token_ids)} tokens cannot be computed: {update.error}")
            begun = num_computed or sequence.num_cached_tokens
            num_computed = max(each.num_computed_tokens for each in updates)
            if num_computed > begun:
                steps.append(Step(begun, num_computed, step_started, step_ended))
            self._keep_alive()
            if self._pipe.poll():
                raise EOFError  # nothing more is asked before the answer: whoever has asked is gone
        seconds = (time.perf_counter_ns() - started) / 1e9
        self._pipe.send(Answer(sequence.num_cached_tokens, seconds, tuple(steps)))
        if ask.digests:
            blocks = self._engine.scheduler.blocks_read(reader)
            self._pipe.send(self._digest(blocks[: num_computed // self._engine.store.block_size]))
        self._engine.scheduler.end_read(reader)

    def _digest(self, block_ids: list[BlockId]) -> Digests:
        store = self._engine.store
        blocks = torch.tensor(block_ids, dtype=torch.int64)
        digests: dict[str, str] = {}
        for layer, part in store.parts:
            rows = store.read(layer, part, AlwaysReady()).view(store.num_blocks, -1)[blocks]
            digests[f"{layer} {part}"] = hashlib.blake2b(rows.numpy().tobytes(), digest_size=16).hexdigest()
        return Digests(digests)

    def _keep_alive(self) -> None:
        if self._assembly.followers is not None:
            self._assembly.followers.poll()
