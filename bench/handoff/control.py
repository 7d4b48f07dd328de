"""What deciding costs: CPU of control code for one handoff, without computing and without copying.

The same requests go, one after the other, to a service that hands every prompt over and to one whose decode worker
takes them itself; in both nothing is computed and nothing is copied. Two figures for each length:

- *in desks*: both desks and the links that they use, hence orders, machines, proofs, runs and posts;
- *all*: gateway, decode and prefill together, of the one service less the other. It has in addition what a second
  process costs whatever it does: its scheduler, its blocks, the mover's thread, and being woken for each message.

The least of many turns is the nearest to an undisturbed processor; medians are told as well.
"""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.handoff.desk_cpu import desk_cpu_seconds
from bench.handoff.service import Service, lab_service, prompts
from lineclear.evaluation.figures import Figure

PROMPT_LENS = (512, 4096, 32_768)
REQUESTS_A_TURN = {512: 16, 4096: 8, 32_768: 3}
NUM_TURNS = 12

Spent = dict[str, float]
"""CPU seconds of one request by process, and of `desks`."""


def control_cpu(prompt_lens: Sequence[int] = PROMPT_LENS, num_turns: int = NUM_TURNS) -> Iterator[Figure]:
    """CPU milliseconds for each handoff, by the length of the prompt, and where they are spent."""
    lab = ["--null", "--no-copy"]
    options = ["--no-prefix-cache", "--max-total-tokens", "65536", "--min-handoff-tokens", "1"]
    with (
        tempfile.TemporaryDirectory() as folder,
        lab_service(lab=lab, options=options, counted=Path(folder)) as handed,
        lab_service(lab=lab, options=options, prefills=False) as local,
    ):
        desks = [Path(folder) / role for role in ("decode", "prefill")]
        for prompt_len in prompt_lens:
            requests = prompts(prompt_len, [prompt_len] * REQUESTS_A_TURN.get(prompt_len, 8))
            for service in (handed, local):
                _turn(service, (), requests[:3])
            turns = [(_turn(handed, desks, requests), _turn(local, (), requests)) for _ in range(num_turns)]
            yield from _figures(f"control_cpu_of_{prompt_len}", turns)


def _figures(name: str, turns: Sequence[tuple[Spent, Spent]]) -> Iterator[Figure]:
    desks = [1000 * handed["desks"] for handed, _ in turns]
    yield Figure(f"{name}_in_desks", min(desks), "ms")
    yield Figure(f"{name}_in_desks_median", statistics.median(desks), "ms")
    least = [min(_all(spent) for spent in side) for side in zip(*turns, strict=True)]
    yield Figure(f"{name}_all", 1000 * (least[0] - least[1]), "ms")
    yield Figure(
        f"{name}_all_median", statistics.median(1000 * (_all(one) - _all(other)) for one, other in turns), "ms"
    )
    for process in ("gateway", "decode", "prefill"):
        spent = [min(side.get(process, 0.0) for side in sides) for sides in zip(*turns, strict=True)]
        yield Figure(f"{name}_in_{process}", 1000 * (spent[0] - spent[1]), "ms")
    yield Figure(f"{name}_local_request", 1000 * least[1], "ms")


def _all(spent: Spent) -> float:
    return sum(seconds for name, seconds in spent.items() if name != "desks")


def _turn(service: Service, desks: Sequence[Path], requests: Sequence[Sequence[int]]) -> Spent:
    """CPU time of one request."""
    before = _spent(service, desks)
    for prompt in requests:
        service.ask(prompt)
    after = _spent(service, desks)
    return {name: (after[name] - before[name]) / len(requests) for name in after}


def _spent(service: Service, desks: Sequence[Path]) -> Spent:
    return service.cpu_seconds() | {"desks": sum(map(desk_cpu_seconds, desks))}
