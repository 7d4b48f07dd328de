"""Figures of a trace, as `lineclear trace stats` prints them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lineclear.evaluation.figures import Figure
from lineclear.lab.files import TraceReader
from lineclear.trace.events import Cancelled, Header
from lineclear.trace.requests import TracedRequest, fold_requests
from lineclear.trace.statistics import HitRate, concurrency, hit_rate, in_order, new_token_counts, percentile

DEFAULT_CAPACITIES = (100_000, 1_000_000, 10_000_000)

_SHARES = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (1.0, "max"))


@dataclass(frozen=True)
class Summary:
    """All that is printed and drawn.

    Units: tokens; seconds; shares of prompt tokens.
    """

    requests: Sequence[TracedRequest]
    hit_rates: Sequence[HitRate]
    """By rising capacity, the last without bound."""
    new_tokens: Sequence[int]
    num_open: Sequence[tuple[float, int]]

    def figures(self) -> Iterator[Figure]:
        """One after the other."""
        arrivals = [each.arrived for each in self.requests]
        yield Figure("requests", len(arrivals))
        yield Figure("sessions", len({each.session for each in arrivals if each.session}))
        yield Figure("subagents", len({each.session for each in arrivals if each.parent}))
        yield Figure("cancelled", sum(isinstance(each.end, Cancelled) for each in self.requests))
        yield Figure("unfinished", sum(each.end is None for each in self.requests))
        yield Figure("span", max((each.at_s for each in arrivals), default=0.0), "s")
        yield Figure("prompt_tokens", sum(each.prompt_len for each in arrivals), "tokens")
        yield Figure("output_tokens", sum(each.output_len for each in self.requests), "tokens")
        yield from _percentiles("prompt_len", [each.prompt_len for each in arrivals])
        yield from _percentiles("output_len", [each.output_len for each in self.requests])
        yield from _percentiles("new_tokens_per_turn", self.new_tokens)
        for each in self.hit_rates:
            name = "unbounded" if each.capacity_tokens is None else f"{each.capacity_tokens}_tokens"
            yield Figure(f"hit_rate_{name}", each.rate)
        if self.num_open:
            yield Figure("concurrency_max", max(count for _, count in self.num_open), "requests")


def summarize(path: Path, capacities: Sequence[int]) -> tuple[Header, Summary]:
    """Read a trace and compute its figures. Holds all of it in memory.

    Raises:
        ConfigError: There is no such file.
        TraceError: A line cannot be used.
    """
    reader = TraceReader(path)
    requests = in_order(fold_requests(reader.events()))
    block_len = reader.header.block_len
    rates = [hit_rate(requests, block_len, capacity) for capacity in (*sorted(capacities), None)]
    return reader.header, Summary(requests, rates, new_token_counts(requests, block_len), concurrency(requests))


def _percentiles(name: str, values: Sequence[int]) -> Iterator[Figure]:
    if values:
        for share, label in _SHARES:
            yield Figure(f"{name}_{label}", percentile(values, share), "tokens")
