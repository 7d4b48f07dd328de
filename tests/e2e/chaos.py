"""Faults at chosen phases of a handoff between real processes, and what clients and survivors make of them.

    python -m tests.e2e.chaos --all [--mover nixl] [--only WORD] [--json FILE]

Each case arms one fault (`tests.e2e.faults`), asks until it has fired, mends what it broke, and asks again until
handoffs go on. Every answer is compared with that of one undisturbed process. Prints `name: value unit` lines; whatever
is not as it has to be goes to stderr, and the exit code is 1 then. What needs a second host, which is a network
namespace with an address of its own, is skipped by name where none can be made, and NIXL where it is not installed.
"""

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from lineclear.evaluation.figures import Figure, print_figures
from tests.e2e.chaos_cluster import (
    PEER_TIMEOUT_SECONDS,
    PREFILL,
    ChaosCluster,
    continue_all,
    expected_tokens,
    other_host,
)
from tests.e2e.chaos_control import SHORT, late_write
from tests.e2e.faults import Fault, Fired, Phase
from tests.e2e.histories import History, Question, Verdict, ask_many, judge
from tests.e2e.hosts import BOTH, Direction

SHORT_SECONDS = 1.0
LONG_SECONDS = PEER_TIMEOUT_SECONDS + 1.5
"""Longer than the silence after which a peer is lost, the grace of a lost link and a fence together."""

FIRED_SECONDS = 20.0
RECOVERY_SECONDS = 120.0
NUM_FIRST, NUM_CLIENTS, NUM_AGAIN = 16, 8, 6
LEAVING_SHARE = 0.25
EXIT_LIFE_OVER = 75
DECODE_VICTIM = "d1"

_prompts = random.Random(7)
QUESTION = Question(
    prompts=[[_prompts.randrange(300, 2000) for _ in range(_prompts.randint(90, 400))] for _ in range(NUM_FIRST)],
    max_tokens=20,
)


class Blow(StrEnum):
    """What happens at a phase."""

    KILL = "kill"
    STOP_SHORT = "stop_short"
    STOP_LONG = "stop_long"
    RESET = "reset"
    SLOW = "slow"
    """The write that flies takes longer than any silence is tolerated."""
    DESTINATION_KILL = "destination_kill"
    """The decode worker that is written to is killed, with the write in flight."""
    DESTINATION_STOP = "destination_stop"
    CUT_SHORT = "cut_short"
    CUT_LONG = "cut_long"
    DEAF = "deaf"
    """The other host gets nothing for long; what it sends arrives."""
    MUTE = "mute"
    """Nothing of what the other host sends arrives for long; it gets everything."""
    LOSS_5 = "loss_5"
    LOSS_20 = "loss_20"

    @property
    def fault(self) -> Fault:
        """What the process does itself; the rest is done to it while it is held."""
        own = {Blow.KILL: Fault.KILL, Blow.STOP_SHORT: Fault.STOP, Blow.STOP_LONG: Fault.STOP, Blow.RESET: Fault.RESET}
        return own.get(self, Fault.HOLD)

    @property
    def seconds(self) -> float:
        """How long it lasts, where it is ended by the test."""
        return SHORT_SECONDS if self in {Blow.STOP_SHORT, Blow.CUT_SHORT} else LONG_SECONDS


CUTS = (Blow.CUT_SHORT, Blow.CUT_LONG)
LOSSES = {Blow.LOSS_5: 0.05, Blow.LOSS_20: 0.2}
ENDS_PREFILL_LIFE = {Blow.STOP_LONG, Blow.CUT_LONG, Blow.DEAF, Blow.MUTE}


@dataclass(frozen=True)
class Case:
    """One fault at one phase."""

    phase: Phase
    blow: Blow

    def __str__(self) -> str:
        return f"{self.phase}_{self.blow}"

    @property
    def armed_worker(self) -> str:
        """Who gets to the phase."""
        return PREFILL if self.phase.is_at_prefill else DECODE_VICTIM

    @property
    def nth(self) -> int:
        """How often it gets there first: not the first handoff of all, and few are aborted."""
        few = {Phase.ABORT_ARRIVED, Phase.CLEAR_UNTOLD, Phase.ABORT_SENT, Phase.ANSWERING}
        return 1 if self.phase in few else 3


@dataclass
class Result:
    """What came of a case."""

    fired: Fired | None = None
    counts: Counter[Verdict] = field(default_factory=Counter[Verdict])
    recovered_seconds: float = float("nan")
    complaints: list[str] = field(default_factory=list[str])
    num_quarantined: float = 0.0
    """Blocks, while the prefill instance could not be heard and had not ended."""

    def judge(self, histories: Sequence[History], expected: Sequence[list[str]], *, may_fail: bool) -> None:
        """Count what clients saw, and complain of what they may never see."""
        for history in histories:
            verdict = judge(history, expected[history.prompt_idx])
            self.counts[verdict] += 1
            is_allowed = verdict in {Verdict.RIGHT, Verdict.LEFT}
            is_allowed |= verdict is Verdict.FAILED and may_fail and bool(history.tokens)
            if not is_allowed:
                self.complaints.append(f"{verdict}: {history.story()}")


PROCESS_CASES = tuple(
    Case(phase, blow) for phase in Phase for blow in (Blow.KILL, Blow.STOP_SHORT, Blow.STOP_LONG, Blow.RESET)
) + tuple(Case(Phase.PART_LANDED, blow) for blow in (Blow.SLOW, Blow.DESTINATION_KILL, Blow.DESTINATION_STOP))

PREFILL_THERE_CASES = (
    *(Case(phase, blow) for phase in Phase if phase.is_at_prefill for blow in CUTS),
    *(Case(Phase.PART_LANDED, blow) for blow in (Blow.DEAF, Blow.MUTE)),
    *(Case(Phase.ORDER_ARRIVED, blow) for blow in LOSSES),
)

DECODE_THERE_CASES = tuple(Case(phase, blow) for phase in Phase if not phase.is_at_prefill for blow in CUTS)


def run_case(cluster: ChaosCluster, case: Case, mover: str, expected: Sequence[list[str]], seed: int = 0) -> Result:
    """Let it happen, and see what comes of it."""
    return asyncio.run(_run_case(cluster, case, mover, expected, seed))


async def _run_case(cluster: ChaosCluster, case: Case, mover: str, expected: Sequence[list[str]], seed: int) -> Result:
    result = Result()
    await asyncio.to_thread(cluster.wait_until_connected)
    number = cluster.faults.arm(case.armed_worker, case.phase, case.blow.fault, case.nth)
    asking = asyncio.create_task(
        ask_many(
            cluster.url,
            QUESTION,
            range(NUM_FIRST),
            concurrency=NUM_CLIENTS,
            leaving_share=LEAVING_SHARE,
            seed=seed,
        )
    )
    result.fired = await asyncio.to_thread(_wait_until_fired, cluster, number)
    if result.fired is None:
        result.complaints.append(f"{case} has not fired")
        cluster.faults.disarm(case.armed_worker)
        await asking
        return result
    try:
        await asyncio.to_thread(_strike, cluster, case, mover, result, number)
        recovering = asyncio.create_task(asyncio.to_thread(_wait_until_recovered, cluster, case, result))
        histories = await asking
        if cluster.host is not None:
            _mend(cluster, case, result)
    finally:
        cluster.faults.release(number)
        continue_all(cluster)
    result.judge(histories, expected, may_fail=_victim(case, result.fired) != PREFILL)
    while not recovering.done():  # two at once: one for each decode worker
        histories = await ask_many(cluster.url, QUESTION, random.sample(range(NUM_FIRST), 2), concurrency=2)
        result.judge(histories, expected, may_fail=False)
        await asyncio.sleep(0.2)
    await recovering
    histories = await ask_many(cluster.url, QUESTION, range(NUM_AGAIN), concurrency=NUM_AGAIN)
    result.judge(histories, expected, may_fail=False)
    result.complaints += await asyncio.to_thread(cluster.faults_left)
    return result


def _wait_until_fired(cluster: ChaosCluster, number: int) -> Fired | None:
    deadline = time.monotonic() + FIRED_SECONDS
    while (fired := cluster.faults.read_fired(number)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return fired


def _victim(case: Case, fired: Fired) -> str:
    """The worker that suffers most."""
    is_at_destination = case.blow in {Blow.DESTINATION_KILL, Blow.DESTINATION_STOP}
    return fired.handoff.partition("/")[0] if is_at_destination else case.armed_worker


def _strike(cluster: ChaosCluster, case: Case, mover: str, result: Result, number: int) -> None:
    """Do what the process does not do itself, and undo it after a while."""
    assert result.fired is not None
    victim = _victim(case, result.fired)
    match case.blow:
        case Blow.KILL:
            cluster.workers[victim].wait()
        case Blow.STOP_SHORT | Blow.STOP_LONG:
            _wait_until_stopped(result.fired.pid)
            time.sleep(case.blow.seconds)
            _look_at_quarantine(cluster, case, mover, result)
            cluster.signal(victim, signal.SIGCONT)
        case Blow.RESET:
            pass
        case Blow.SLOW:
            time.sleep(case.blow.seconds)
            cluster.faults.release(number)
        case Blow.DESTINATION_KILL | Blow.DESTINATION_STOP:
            _strike_destination(cluster, case, victim, number)
        case _:
            _degrade_network(cluster, case, mover, result, number)
    if victim == PREFILL and case.blow in ENDS_PREFILL_LIFE:
        code = cluster.workers[PREFILL].wait()
        if code != EXIT_LIFE_OVER:
            result.complaints.append(f"the fenced life ended with {code}")


def _strike_destination(cluster: ChaosCluster, case: Case, victim: str, number: int) -> None:
    """The rest of the write lands in the memory of a process that is dead, or stands still."""
    if case.blow is Blow.DESTINATION_KILL:
        cluster.signal(victim, signal.SIGKILL)
        cluster.workers[victim].wait()
        cluster.faults.release(number)
        return
    cluster.signal(victim, signal.SIGSTOP)
    _wait_until_stopped(cluster.workers[victim].process.pid)
    cluster.faults.release(number)
    time.sleep(case.blow.seconds)
    cluster.signal(victim, signal.SIGCONT)


def _degrade_network(cluster: ChaosCluster, case: Case, mover: str, result: Result, number: int) -> None:
    """A cut is mended here; loss lasts until the clients of the first wave have their answers."""
    assert cluster.host is not None
    if case.blow in LOSSES:
        cluster.host.lose(LOSSES[case.blow])
        cluster.faults.release(number)
        return
    directions = {Blow.DEAF: (Direction.OUT,), Blow.MUTE: (Direction.IN,)}.get(case.blow, BOTH)
    cluster.host.lose(1.0, directions)
    cluster.faults.release(number)
    time.sleep(case.blow.seconds)
    _look_at_quarantine(cluster, case, mover, result)
    cluster.host.mend()


def _mend(cluster: ChaosCluster, case: Case, result: Result) -> None:
    """The network is whole again, and it has been seen that it was not."""
    assert cluster.host is not None
    num_lost = cluster.host.num_lost()
    cluster.host.mend()
    if not num_lost and case.blow.fault is Fault.HOLD:
        result.complaints.append(f"{case}: nothing was lost")


def _look_at_quarantine(cluster: ChaosCluster, case: Case, mover: str, result: Result) -> None:
    """What cannot be proven stays in quarantine, and nothing else: that is the difference between the movers."""
    assert result.fired is not None
    if _victim(case, result.fired) != PREFILL or case.blow not in ENDS_PREFILL_LIFE:
        return
    deadline = time.monotonic() + RECOVERY_SECONDS
    is_expected = mover == "shm"
    while bool(quarantined := cluster.blocks_quarantined()) is not is_expected and time.monotonic() < deadline:
        time.sleep(0.05)
    result.num_quarantined = quarantined
    if bool(quarantined) is not is_expected:
        result.complaints.append(f"{quarantined:g} blocks in quarantine while the instance is out of reach, {mover}")


def _wait_until_recovered(cluster: ChaosCluster, case: Case, result: Result) -> None:
    """Until whoever suffered takes part in handoffs again, or too long."""
    assert result.fired is not None
    cluster.wait_until_connected()
    victim = _victim(case, result.fired)
    before = cluster.num_handed_over(victim)
    while cluster.num_handed_over(victim) <= before:
        if time.monotonic() - result.fired.at_seconds > RECOVERY_SECONDS:
            result.complaints.append(f"no handoff through {victim} any more")
            return
        time.sleep(0.1)
    result.recovered_seconds = time.monotonic() - result.fired.at_seconds


def _wait_until_stopped(pid: int) -> None:
    """The proof of a stop is what the kernel says of the process."""
    deadline = time.monotonic() + FIRED_SECONDS
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.01)


@dataclass(frozen=True)
class Stage:
    """Cases that need the same processes in the same places."""

    name: str
    cases: tuple[Case, ...]
    there: tuple[str, ...] = ()
    """Workers on the other host."""


STAGES = (
    Stage("one_host", PROCESS_CASES),
    Stage("prefill_there", PREFILL_THERE_CASES, (PREFILL,)),
    Stage("decode_there", DECODE_THERE_CASES, (DECODE_VICTIM,)),
)


def open_cluster(stack: ExitStack, mover: str, there: tuple[str, ...]) -> ChaosCluster:
    """Start everything.

    Raises:
        OSError, CalledProcessError: There can be no other host, and one is needed.
    """
    host = stack.enter_context(other_host()) if there else None
    return ChaosCluster(stack, mover, host=host, there=there)


def _run_stage(stage: Stage, mover: str, only: str, expected: Sequence[list[str]]) -> Iterator[tuple[Case, Result]]:
    cases = [case for case in stage.cases if only in f"{stage.name}_{case}"]
    while cases:
        with ExitStack() as stack:
            cluster = open_cluster(stack, mover, stage.there)
            while cases:
                case = cases.pop(0)
                try:
                    result = run_case(cluster, case, mover, expected)
                except AssertionError as error:
                    result = Result(complaints=[str(error)])
                yield case, result
                if result.complaints:
                    print(cluster.text(), file=sys.stderr)
                    break  # nothing is known of these processes any more


def chaos(movers: Sequence[str], only: str, complaints: list[str]) -> Iterator[Figure]:
    """Run all cases; what is not as it has to be is added to `complaints`."""
    expected, expected_short = expected_tokens(QUESTION, SHORT)
    for mover in movers:
        yield from _late_writes(mover, only, expected_short, complaints)
        for stage in STAGES:
            try:
                for case, result in _run_stage(stage, mover, only, expected):
                    name = f"{mover} {stage.name} {case}"
                    complaints += (f"{name}: {complaint}" for complaint in result.complaints)
                    print(*result.complaints, sep="\n", end="\n" * bool(result.complaints), file=sys.stderr, flush=True)
                    yield from _figures(f"chaos_{mover}_{stage.name}_{case}", result)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{mover} {stage.name}: skipped, there can be no other host here: {error}", file=sys.stderr)


def _late_writes(mover: str, only: str, expected: Sequence[list[str]], complaints: list[str]) -> Iterator[Figure]:
    """A write that lands late, with the rule and without: the second has to be seen."""
    for is_safe in (True, False):
        name = f"late_write_{'safe' if is_safe else 'unsafe'}"
        if only not in name:
            continue
        verdicts = late_write(mover, expected, is_safe=is_safe)
        if is_safe == bool(verdicts[Verdict.WRONG]) or verdicts[Verdict.UNCLEAR]:
            complaints.append(f"{mover} {name}: {dict(verdicts)}")
        yield from (Figure(f"chaos_{mover}_{name}_{verdict}", num) for verdict, num in sorted(verdicts.items()))


def _figures(name: str, result: Result) -> Iterator[Figure]:
    yield Figure(f"{name}_fired", int(result.fired is not None))
    for verdict in Verdict:
        yield Figure(f"{name}_{verdict}", result.counts[verdict])
    yield Figure(f"{name}_quarantined", result.num_quarantined, "blocks")
    yield Figure(f"{name}_recovered_after", result.recovered_seconds, "s")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="every case")
    what.add_argument("--only", default="", metavar="WORD", help="cases whose names contain it")
    parser.add_argument("--mover", choices=["shm", "nixl"], help="one of them. Default: both")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    movers = [arguments.mover] if arguments.mover else ["shm", "nixl"]
    if "nixl" in movers and find_spec("nixl_cu13") is None:
        print("nixl: skipped, it is not installed: pip install 'lineclear[nixl]'", file=sys.stderr)
        movers.remove("nixl")
    complaints: list[str] = []
    print_figures(chaos(movers, arguments.only, complaints), arguments.json)
    print(*complaints, sep="\n", end="\n" * bool(complaints), file=sys.stderr)
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
