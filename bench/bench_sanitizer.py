"""What the KV sanitizer costs: engines with it off, sampling and full take turns with the same requests.

Each turn is a new order of the three, so that what the machine does beside hits all alike. CPU time of the process is
compared, because a shared machine's clock is not to be trusted; the ratio by the clock is given as well. Requests are
an agent's: long prompts of which most is cached, and some tokens of output; the pool holds a quarter of the sessions.

    python -m bench.bench_sanitizer [--rounds N] [--requests N] [--json FILE]
"""

import argparse
import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.handoff.intervals import bootstrap
from lineclear.bundled import checkpoint_path
from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.engine import Engine
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.testing.tiers.trial import Trial
from lineclear.testing.tiers.workload import make_workload

MODES = ("off", "sample", "full")
NUM_SESSIONS, START_LEN, MAX_LEN = 24, 400, 1200
POOL_TOKENS = 4800


@dataclass(frozen=True)
class Turn:
    """One engine's turn with all requests of a round."""

    cpu_seconds: float
    seconds: float


def cost(num_rounds: int, num_requests: int) -> Iterator[Figure]:
    """Shares of throughput, with 95 % intervals over rounds; the first round warms up and does not count."""
    engines = {mode: _engine(mode) for mode in MODES}
    gc.collect()
    gc.freeze()
    rng = random.Random(0)
    turns: dict[str, list[Turn]] = {mode: [] for mode in MODES}
    prompts = make_workload(
        0, num_requests=num_requests * (num_rounds + 1), num_sessions=NUM_SESSIONS, start_len=START_LEN, max_len=MAX_LEN
    ).prompts
    for number in range(num_rounds + 1):
        chosen = prompts[number * num_requests : (number + 1) * num_requests]
        for mode in rng.sample(MODES, len(MODES)):
            turn = _turn(engines[mode], chosen)
            if number:
                turns[mode].append(turn)
    yield Figure("rounds", num_rounds)
    yield Figure("requests_a_turn", num_requests)
    for mode in MODES[1:]:
        pairs = list(zip(turns[mode], turns["off"], strict=True))
        yield from _interval(f"{mode}_cost_by_cpu", [100 * (1 - off.cpu_seconds / on.cpu_seconds) for on, off in pairs])
        yield from _interval(f"{mode}_cost_by_clock", [100 * (1 - off.seconds / on.seconds) for on, off in pairs])
        statistics = engines[mode].statistics().sanitizer
        assert statistics is not None
        yield Figure(f"{mode}_checks", statistics.num_checks)
        yield Figure(f"{mode}_faults", sum(statistics.num_faults.values()))


def _engine(mode: str) -> Engine:
    config = EngineConfig(max_total_tokens=POOL_TOKENS, max_batch_tokens=512, kv_sanitizer=mode)  # type: ignore[arg-type]
    return build_engine(config, checkpoint_path())


def _turn(engine: Engine, prompts: tuple[tuple[int, ...], ...]) -> Turn:
    started, cpu = time.perf_counter(), time.process_time()
    Trial(engine, prompts, seed=0, guests=False).run()
    return Turn(time.process_time() - cpu, time.perf_counter() - started)


def _interval(name: str, values: list[float]) -> Iterator[Figure]:
    interval = bootstrap(values)
    yield Figure(name, interval.median, "% of throughput")
    yield Figure(f"{name}_low", interval.low, "% of throughput")
    yield Figure(f"{name}_high", interval.high, "% of throughput")


def main() -> None:
    """Run all rounds."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_sanitizer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="of turns that count (default %(default)s)")
    parser.add_argument("--requests", type=int, default=16, help="of each turn (default %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    print_figures(cost(arguments.rounds, arguments.requests), arguments.json)


if __name__ == "__main__":
    main()
