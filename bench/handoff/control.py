"""What deciding costs: CPU of all control code for one handoff, without computing and without copying.

The same requests go to a service that hands every prompt over and to one whose decode worker takes them itself; in both
nothing is computed and nothing is copied. CPU time of gateway, decode and prefill together, of the one less the other,
is what orders, links, machines, desks, the list of runs, the second scheduler and the mover's thread take. Two numbers
for each length: sequential requests, each of which wakes every process, are the most that it can be.
"""

import statistics
from collections.abc import Iterator

from bench.handoff.service import Service, lab_service, prompts
from lineclear.evaluation.figures import Figure

PROMPT_LENS = (512, 4096, 32_768)
REQUESTS_A_TURN = {512: 60, 4096: 30, 32_768: 10}
NUM_TURNS = 5


def control_cpu(prompt_lens: tuple[int, ...] = PROMPT_LENS, num_turns: int = NUM_TURNS) -> Iterator[Figure]:
    """CPU milliseconds for each handoff, by the length of the prompt, and where they are spent."""
    lab = ["--null", "--no-copy"]
    options = ["--no-prefix-cache", "--max-total-tokens", "65536", "--min-handoff-tokens", "1"]
    with (
        lab_service(lab=lab, options=options) as handed,
        lab_service(lab=lab, options=options, prefills=False) as local,
    ):
        for prompt_len in prompt_lens:
            yield from _of_length(handed, local, prompt_len, num_turns)


def _of_length(handed: Service, local: Service, prompt_len: int, num_turns: int) -> Iterator[Figure]:
    requests = prompts(prompt_len, [prompt_len] * REQUESTS_A_TURN.get(prompt_len, 10))
    for service in (handed, local):
        _cpu_seconds(service, requests[:3])
    turns = [(_cpu_seconds(handed, requests), _cpu_seconds(local, requests)) for _ in range(num_turns)]
    name = f"control_cpu_of_{prompt_len}"
    extra = [1000 * (sum(one.values()) - sum(other.values())) for one, other in turns]
    yield Figure(f"{name}_per_handoff", statistics.median(extra), "ms")
    yield Figure(f"{name}_per_handoff_least", min(extra), "ms")
    for process in handed.pids:
        spent = [1000 * (one[process] - other.get(process, 0.0)) for one, other in turns]
        yield Figure(f"{name}_per_handoff_in_{process}", statistics.median(spent), "ms")
    yield Figure(f"{name}_local_request", 1000 * statistics.median(sum(other.values()) for _, other in turns), "ms")


def _cpu_seconds(service: Service, requests: list[list[int]]) -> dict[str, float]:
    """CPU time of each process for one request."""
    before = service.cpu_seconds()
    for prompt in requests:
        service.ask(prompt)
    after = service.cpu_seconds()
    return {name: (after[name] - before[name]) / len(requests) for name in after}
