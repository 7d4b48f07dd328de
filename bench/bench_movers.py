"""Times the movers against one memcpy of the same bytes: handoffs in short and long runs, single writes, idleness.

The destination is a process of its own. Memcpy (numpy, one thread, into memory of the same kind) and the mover take
turns, so that whatever else the machine does slows both; medians are compared. On one machine a write over TCP copies
each byte at least twice, once into the kernel and once out of it, so `nixl` cannot reach the half of a memcpy where
both processes share a core.

The handoff is 4,096 tokens' KV as it lies in two stores, 153 MiB: for each of 36 layers and each of 256 blocks of 16
tokens a run of 4 KiB (index) and one of 13 KiB (latent), blocks in no order. *Long* are the same bytes in one run for
each layer and part, as it is when blocks follow each other.

    python -m bench.bench_movers [--only shm nixl] [--json FILE]
"""

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from lineclear.engine.bell import wait_readable
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.transport.movers.kinds import MoverKind, open_mover
from lineclear.transport.movers.mover import Memory, MoverError, Outcome, Span, Writer

MOVERS: tuple[MoverKind, ...] = ("shm", "nixl")
NUM_LAYERS, NUM_BLOCKS = 36, 256
RUN_BYTES = (4 * 1024, 13 * 1024)
SIZE = NUM_LAYERS * NUM_BLOCKS * sum(RUN_BYTES)
NUM_TURNS = 9
NUM_SMALL = 300
IDLE_SECONDS = 3.0


def short_runs() -> list[Span]:
    """Every block of every layer and part, its places drawn."""
    dice = np.random.default_rng(0)
    spans: list[Span] = []
    for long in long_runs():
        num_bytes = long.num_bytes // NUM_BLOCKS
        sources, destinations = (long.source + dice.permutation(NUM_BLOCKS) * num_bytes for _ in range(2))
        spans += [Span(*pair, num_bytes) for pair in zip(sources.tolist(), destinations.tolist(), strict=True)]
    return spans


def long_runs() -> list[Span]:
    """Every layer and part."""
    lengths = [NUM_BLOCKS * num_bytes for _ in range(NUM_LAYERS) for num_bytes in RUN_BYTES]
    starts = [0, *itertools.accumulate(lengths[:-1])]
    return [Span(start, start, num_bytes) for start, num_bytes in zip(starts, lengths, strict=True)]


class Pair:
    """A writer here, and a memory in another process."""

    def __init__(self, kind: MoverKind) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(kind, theirs))
        mover = open_mover(kind)
        self.memory: Memory = mover.open_memory(SIZE)
        np.frombuffer(self.memory.buffer, dtype=np.uint8)[:] = 1
        self.writer: Writer = mover.open_writer(self.memory)
        self._process.start()
        self.key: bytes = self.ask("admit", self.writer.identity)
        self._num_posts = 0

    def ask(self, *question: object) -> Any:  # noqa: ANN401 - each question has its own answer
        """Have the other process do something."""
        self._pipe.send(question)
        return self._pipe.recv()

    def write(self, spans: list[Span]) -> float:
        """Return how many seconds a write took, from the post to its completion."""
        started = time.perf_counter()
        self._num_posts += 1
        self.writer.post(self._num_posts, self.key, spans)
        while True:
            wait_readable([self.writer.fileno()])
            for completion in self.writer.poll():
                seconds = time.perf_counter() - started
                assert completion.outcome is Outcome.DONE, completion
                return seconds

    def close(self) -> None:
        """End both sides."""
        self.writer.close()
        self.memory.close()
        self._pipe.send(("end",))
        self._process.join()


def _serve(kind: MoverKind, pipe: Connection) -> None:
    memory = open_mover(kind).open_memory(SIZE)
    np.frombuffer(memory.buffer, dtype=np.uint8)[:] = 2
    while True:
        match pipe.recv():
            case ("admit", identity):
                admission = memory.admit(identity)
                pipe.send(memory.key)
            case ("fence",):
                started = time.perf_counter()
                is_fenced = admission.fence()
                pipe.send((is_fenced, time.perf_counter() - started))
            case ("cpu",):
                pipe.send(time.process_time())
            case _:
                return


def memcpy_seconds(source: np.ndarray, destination: np.ndarray) -> float:
    """Time one copy of everything."""
    started = time.perf_counter()
    np.copyto(destination, source)
    return time.perf_counter() - started


def measure(kind: MoverKind) -> Iterator[Figure]:
    """Yield all figures of one mover."""
    pair = Pair(kind)
    mine = open_mover("shm").open_memory(SIZE)
    source, destination = (np.frombuffer(each.buffer, dtype=np.uint8) for each in (pair.memory, mine))
    shapes = {"long": long_runs(), "short": short_runs()}
    for name, spans in shapes.items():
        yield from _rates(
            f"{kind}_{name}_runs", lambda spans=spans: (memcpy_seconds(source, destination), pair.write(spans))
        )
    small = [pair.write([Span(0, 0, 4096)]) for _ in range(NUM_SMALL)]
    yield Figure(f"{kind}_write_of_4_KiB", statistics.median(small) * 1e6, "µs")
    yield Figure(f"{kind}_write_of_4_KiB_p99", sorted(small)[int(0.99 * NUM_SMALL)] * 1e6, "µs")
    before = time.process_time(), pair.ask("cpu")
    time.sleep(IDLE_SECONDS)
    after = time.process_time(), pair.ask("cpu")
    for side, start, end in zip(("writer", "memory"), before, after, strict=True):
        yield Figure(f"{kind}_idle_cpu_of_{side}", 100 * (end - start) / IDLE_SECONDS, "%")
    pair.writer.post(0, pair.key, shapes["short"])
    is_fenced, seconds = pair.ask("fence")
    yield Figure(f"{kind}_fence_of_a_flying_write", seconds * 1e3, "ms")
    yield Figure(f"{kind}_fences_the_living", int(is_fenced))
    pair.close()


def _rates(name: str, turn: Callable[[], tuple[float, float]]) -> Iterator[Figure]:
    turn()
    memcpy, move = zip(*(turn() for _ in range(NUM_TURNS)), strict=True)
    ratios = [one / other for one, other in zip(memcpy, move, strict=True)]
    yield Figure(f"{name}_ratio", statistics.median(ratios), "x memcpy")
    yield Figure(name, SIZE / statistics.median(move) / 1e9, "GB/s")
    yield Figure(f"{name}_memcpy", SIZE / statistics.median(memcpy) / 1e9, "GB/s")


def main() -> None:
    """Print the figures of the movers that can be had here."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_movers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MOVERS, default=MOVERS, help="measure these only")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    print_figures((figure for kind in arguments.only if _is_there(kind) for figure in measure(kind)), arguments.json)


def _is_there(kind: MoverKind) -> bool:
    try:
        open_mover(kind)
    except MoverError as error:
        print(f"{kind} is left out: {error}")
        return False
    return True


if __name__ == "__main__":
    main()
