"""From how many uncached prompt tokens on an order brings the first token sooner than computing them at decode.

Two services take turns with the same prompts: one hands everything over, one hands nothing over. First idle, then
beside sequences that decode all the time; of those the longest pause is told as well, because a prompt that decode
computes itself holds all of them up.
"""

import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.handoff.service import DecodeStream, Service, lab_service, prompts
from lineclear.evaluation.figures import Figure

PROMPT_LENS = (32, 64, 128, 256, 512, 1024)
NUM_DECODES = 4
DECODE_TOKENS = 2000
AFTER_SECONDS = 0.1
"""The tokens that a long step has held back are there by then."""
OPTIONS = ("--no-prefix-cache", "--max-total-tokens", "32768", "--min-handoff-tokens", "1")


@dataclass(frozen=True)
class Cost:
    """What a prompt costs its own client and those that are decoding, in seconds."""

    ttft: float
    pause: float
    """The longest that a decoding sequence went without a token; 0 if there is none."""


def threshold(prompt_lens: Sequence[int] = PROMPT_LENS, num_turns: int = 7) -> Iterator[Figure]:
    """First tokens and pauses of both, and the shortest prompt from which on the handed over one is sooner."""
    with lab_service(options=OPTIONS) as handed, lab_service(options=OPTIONS, prefills=False) as local:
        for service in (handed, local):
            service.ask(prompts(0, [PROMPT_LENS[0]])[0])
        for name, num_decodes in (("idle", 0), ("beside_decodes", NUM_DECODES)):
            costs = {each: _costs((handed, local), each, num_turns, num_decodes) for each in prompt_lens}
            for prompt_len, pair in costs.items():
                yield from _figures(f"threshold_{name}_{prompt_len}", *pair)
            yield Figure(f"threshold_{name}_crossing", _crossing(costs), "tokens")


def _crossing(costs: Mapping[int, Sequence[Cost]]) -> float:
    """From which length on every prompt that is handed over has its first token sooner; infinite if never."""
    crossing = float("inf")
    for prompt_len in sorted(costs, reverse=True):
        handed, local = costs[prompt_len]
        if handed.ttft >= local.ttft:
            break
        crossing = prompt_len
    return crossing


def _figures(name: str, handed: Cost, local: Cost) -> Iterator[Figure]:
    for kind, cost in (("handed_over", handed), ("local", local)):
        yield Figure(f"{name}_ttft_{kind}", 1000 * cost.ttft, "ms")
        if cost.pause:
            yield Figure(f"{name}_pause_of_decodes_{kind}", 1000 * cost.pause, "ms")


def _costs(services: Sequence[Service], prompt_len: int, num_turns: int, num_decodes: int) -> list[Cost]:
    """Medians at each service."""
    found: list[list[Cost]] = [[] for _ in services]
    for prompt in prompts(prompt_len, [prompt_len] * num_turns):
        for service, own in zip(services, found, strict=True):
            with _decoding(service, num_decodes) as streams:
                asked = time.perf_counter()
                ttft = service.ask(prompt).ttft_seconds
                time.sleep(AFTER_SECONDS if streams else 0.0)
            own.append(Cost(ttft, statistics.median([each.longest_pause_seconds(asked) for each in streams] or [0.0])))
    return [
        Cost(statistics.median(each.ttft for each in own), statistics.median(each.pause for each in own))
        for own in found
    ]


@contextmanager
def _decoding(service: Service, num_decodes: int) -> Iterator[list[DecodeStream]]:
    """Let sequences decode; they have begun, and are left when this ends."""
    streams = [DecodeStream(prompt, DECODE_TOKENS) for prompt in prompts(1, [16] * num_decodes)]
    threads = [threading.Thread(target=service.decode, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for stream in streams:
        stream.begun.wait()
    yield streams
    for stream in streams:
        stream.enough.set()
    for thread in threads:
        thread.join()
