"""Figures for Prometheus: the gateway's own, and those of the workers as they last reported them.

Labels are words from closed lists and the names of model and workers, never a session, a path or anybody's text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lineclear.gateway.dispatch import DispatchStatistics
from lineclear.gateway.guard_book import GuardStatistics
from lineclear.gateway.ledger import LedgerStatistics
from lineclear.gateway.usage import Usage
from lineclear.gateway.worker_table import Worker
from lineclear.protocol.wire import GuardStatistics as JudgingStatistics
from lineclear.protocol.wire import (
    HandoffStatistics,
    RankStatistics,
    SanitizerStatistics,
    TierStatistics,
    WorkerStatistics,
)
from lineclear.routing.breaker import BreakerState
from lineclear.routing.router import WorkerHealth
from lineclear.speculate.counters import accept_length, accept_rate

_StatisticsT = TypeVar("_StatisticsT")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_PREPARE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


@dataclass(frozen=True)
class GatewaySnapshot:
    """What is read at the moment of a scrape."""

    ledger: LedgerStatistics
    dispatch: DispatchStatistics
    workers: list[Worker]


class GatewayMetrics:
    """The metrics of one gateway.

    Args:
        snapshot: reads the state at the moment of a scrape.
    """

    def __init__(self, snapshot: Callable[[], GatewaySnapshot]) -> None:
        registry = self._registry = CollectorRegistry()
        registry.register(_SnapshotCollector(snapshot))
        self.requests = Counter(
            "lineclear_requests",
            "Requests that ended, by how; error_type is empty for answers.",
            ["api", "stream", "status", "error_type"],
            registry=registry,
        )
        self.inflight = Gauge(
            "lineclear_requests_inflight", "Requests in work, preparation included.", ["api"], registry=registry
        )
        self.disconnects = Counter(
            "lineclear_client_disconnects", "Requests whose client left early.", ["phase"], registry=registry
        )
        self.rejections = Counter(
            "lineclear_admission_rejected",
            "Requests refused for want of room or workers.",
            ["reason"],
            registry=registry,
        )
        self.keep_alives = Counter(
            "lineclear_sse_keepalives", "Comments sent while there was no news.", registry=registry
        )
        self.tool_calls = Counter("lineclear_tool_calls", "Tool calls in answers.", ["result"], registry=registry)
        self.time_to_first_token = _histogram(
            registry, "time_to_first_token", "From a request's last byte to its first token.", _TTFT_BUCKETS
        )
        self.inter_token_latency = _histogram(
            registry, "inter_token_latency", "From one output to the next, divided by its tokens.", _ITL_BUCKETS
        )
        self.request_duration = _histogram(
            registry, "request_duration", "From a request's last byte to the end of its answer.", _DURATION_BUCKETS
        )
        self.prepare_seconds = _histogram(
            registry, "prepare", "Reading, rendering and tokenizing a body.", _PREPARE_BUCKETS
        )
        self._prompt_tokens = Counter(
            "lineclear_prompt_tokens", "Prompt tokens of answered requests.", ["cache"], registry=registry
        )
        self._output_tokens = Counter(
            "lineclear_output_tokens", "Output tokens of answered requests.", ["kind"], registry=registry
        )

    def count_usage(self, usage: Usage) -> None:
        """Count the tokens of an answer."""
        self._prompt_tokens.labels("hit").inc(usage.num_cached_tokens)
        self._prompt_tokens.labels("miss").inc(usage.num_prompt_tokens - usage.num_cached_tokens)
        self._output_tokens.labels("reasoning").inc(usage.num_reasoning_tokens)
        self._output_tokens.labels("text").inc(usage.num_completion_tokens - usage.num_reasoning_tokens)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


def _histogram(registry: CollectorRegistry, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"lineclear_{name}_seconds", help_text, buckets=buckets, registry=registry)


class _SnapshotCollector(Collector):
    """Metrics that are states or totals kept elsewhere."""

    def __init__(self, snapshot: Callable[[], GatewaySnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """The metrics at this moment."""
        snapshot = self._snapshot()
        dispatch, ledger = snapshot.dispatch, snapshot.ledger
        yield _gauge("requests_open", "Accepted requests without an ending.", ledger.num_open)
        yield _gauge("requests_queued", "Requests that wait for a worker.", dispatch.num_waiting_for_worker)
        yield _counter("retries", "Requests begun again because their worker was lost.", dispatch.num_restarts)
        yield _counter("workers_lost", "Workers that were lost.", dispatch.num_workers_lost)
        yield _counter("worker_links_malformed", "Links to workers cut for nonsense.", dispatch.num_malformed_links)
        yield _counter("unknown_outputs", "Outputs for sequences nobody asked for.", dispatch.num_unknown_outputs)
        endings = CounterMetricFamily(
            "lineclear_requests_ended", "Accepted requests by their ending.", labels=["outcome"]
        )
        for outcome, count in ledger.num_ended.items():
            endings.add_metric([outcome.value], count)
        yield endings
        yield from _routing_metrics(dispatch)
        yield from _guard_metrics(dispatch.guard)
        yield from _worker_metrics(snapshot.workers)


def _routing_metrics(dispatch: DispatchStatistics) -> Iterator[Metric]:
    placed = CounterMetricFamily(
        "lineclear_routing_placed", "Sequences given to a worker, by what decided it.", labels=["worker", "why"]
    )
    for (worker_id, why), count in dispatch.num_placed.items():
        placed.add_metric([worker_id, why.value], count)
    changes = CounterMetricFamily(
        "lineclear_breaker_changes", "Times that a worker's breaker came into a state.", labels=["worker", "state"]
    )
    for (worker_id, state), count in dispatch.num_breaker_changes.items():
        changes.add_metric([worker_id, state.value], count)
    yield from (placed, changes)
    states = GaugeMetricFamily(
        "lineclear_breaker_state", "1 for the state in which a worker's breaker is.", labels=["worker", "state"]
    )
    connected = [each for each in dispatch.health if each.is_connected]
    for health in connected:
        for state in BreakerState:
            states.add_metric([health.worker_id, state.value], health.state is state)
    yield states
    for name, help_text, read in _HEALTH_GAUGES:
        gauge = GaugeMetricFamily(f"lineclear_routing_{name}", help_text, labels=["worker"])
        for health in connected:
            gauge.add_metric([health.worker_id], read(health))
        yield gauge
    yield _gauge("retry_budget", "Retries that the fleet may begin now.", dispatch.budget.num_left)
    yield _counter("retry_budget_refused", "Retries that the fleet had no budget for.", dispatch.budget.num_refused)


_HEALTH_GAUGES: tuple[tuple[str, str, Callable[[WorkerHealth], float]], ...] = (
    ("bad_share", "Share of a worker's last sequences that ended badly.", lambda each: each.bad_share),
    ("weight", "The part of its ordinary load that a worker is given.", lambda each: each.weight),
    ("breaker_wait_seconds", "Until an open breaker lets probes through.", lambda each: each.wait_seconds),
    ("seconds_per_token", "From a token to the next, of a worker's last answers.", lambda each: each.seconds_per_token),
    (
        "pending_tokens",
        "Prompt tokens that a worker has still to compute.",
        lambda each: each.num_pending_tokens,
    ),
    ("sketched_pieces", "Pieces of prompts that a worker is thought to have cached.", lambda each: each.num_sketched),
)


def _guard_metrics(guard: GuardStatistics) -> Iterator[Metric]:
    verdicts = CounterMetricFamily(
        "lineclear_guard_verdicts", "Verdicts on answers, by worker.", labels=["worker", "kind", "action"]
    )
    for (worker_id, kind, action), count in guard.num_verdicts.items():
        verdicts.add_metric([worker_id, kind, action], count)
    yield verdicts
    retries = CounterMetricFamily("lineclear_guard_retries", "Broken choices begun again.", labels=["kind"])
    for kind, count in guard.num_retries.items():
        retries.add_metric([kind], count)
    yield retries
    yield _counter("guard_resumed", "Of them, those that continued what was sent.", guard.num_resumed)
    given_up = CounterMetricFamily(
        "lineclear_guard_given_up", "Broken choices not begun again, by what forbade it.", labels=["limit"]
    )
    for limit, count in guard.num_given_up.items():
        given_up.add_metric([limit.value], count)
    yield given_up
    outcomes = CounterMetricFamily(
        "lineclear_guard_outcomes", "Choices with a broken attempt, by how they ended.", labels=["kind", "outcome"]
    )
    for (kind, outcome), count in guard.num_outcomes.items():
        outcomes.add_metric([kind, outcome.value], count)
    yield outcomes


def _used_ratio(statistics: WorkerStatistics) -> float | None:
    return 1 - statistics.blocks_free / statistics.blocks_total if statistics.blocks_total else None


_WORKER_GAUGES: dict[str, tuple[str, Callable[[WorkerStatistics], float | None]]] = {
    "running": ("Sequences that run.", lambda statistics: statistics.num_running),
    "waiting": ("Sequences that wait.", lambda statistics: statistics.num_waiting),
    "receiving": ("Sequences whose prompt is computed elsewhere.", lambda statistics: statistics.num_receiving),
    "blocks_free": ("KV blocks that nobody holds.", lambda statistics: statistics.blocks_free),
    "blocks_held": ("KV blocks that are held.", lambda statistics: statistics.blocks_held),
    "blocks_quarantined": ("KV blocks that nobody may use.", lambda statistics: statistics.blocks_quarantined),
    "blocks_total": ("KV blocks of the pool.", lambda statistics: statistics.blocks_total),
    "kv_used_ratio": ("Share of the KV blocks that is not free.", _used_ratio),
    "accept_length": ("Tokens per verify since start.", lambda statistics: accept_length(statistics.draft)),
    "accept_rate": ("Share of drafts accepted since start.", lambda statistics: accept_rate(statistics.draft)),
}

_WORKER_COUNTERS: dict[str, tuple[str, Callable[[WorkerStatistics], float]]] = {
    "preemptions": ("Sequences that lost their blocks and were computed again.", lambda each: each.num_preemptions),
    "damaged": ("Sequences ended because the model's output was not finite.", lambda each: each.num_damaged),
    "prompt_tokens": ("Prompt tokens of admitted sequences.", lambda each: each.prompt_tokens),
    "cached_prompt_tokens": ("Prompt tokens found in the cache.", lambda each: each.cached_prompt_tokens),
    "output_tokens": ("Tokens generated.", lambda each: each.output_tokens),
    "steps": ("Engine steps.", lambda each: each.steps),
    "step_seconds": ("Time in engine steps.", lambda each: each.step_seconds_total),
    "verifies": ("Verifies of drafts.", lambda each: each.draft.num_verifies),
}


def _worker_metrics(workers: list[Worker]) -> Iterator[Metric]:
    up = GaugeMetricFamily("lineclear_worker_up", "Connected workers.", labels=["worker", "life"])
    for worker in workers:
        up.add_metric([worker.hello.worker_id, str(worker.hello.life)], 1)
    yield up
    reported = [(worker.hello.worker_id, worker.statistics) for worker in workers if worker.statistics is not None]
    for name, (help_text, read) in _WORKER_GAUGES.items():
        gauge = GaugeMetricFamily(f"lineclear_worker_{name}", help_text, labels=["worker"])
        for worker_id, statistics in reported:
            value = read(statistics)
            if value is not None:
                gauge.add_metric([worker_id], value)
        yield gauge
    for name, (help_text, read_total) in _WORKER_COUNTERS.items():
        counter = CounterMetricFamily(f"lineclear_worker_{name}", help_text, labels=["worker"])
        for worker_id, statistics in reported:
            counter.add_metric([worker_id], read_total(statistics))
        yield counter
    handoffs = [(name, each.handoffs) for name, each in reported if each.handoffs is not None]
    yield from _handoff_metrics(handoffs)
    yield from _tier_metrics([(name, each.tiers) for name, each in reported if each.tiers is not None])
    yield from _rank_metrics([(name, each.ranks) for name, each in reported if each.ranks is not None])
    yield from _sanitizer_metrics([(name, each.sanitizer) for name, each in reported if each.sanitizer is not None])
    yield from _judging_metrics([(name, each.guard) for name, each in reported if each.guard is not None])
    yield _drafts("proposed", [(name, each.draft.proposed_by_position) for name, each in reported])
    yield _drafts("accepted", [(name, each.draft.accepted_by_position) for name, each in reported])


_HANDOFF_GAUGES: dict[str, tuple[str, Callable[[HandoffStatistics], float]]] = {
    "peers": ("Workers at the other end of handoffs.", lambda each: each.num_peers),
    "open": ("Handoffs that have not settled.", lambda each: each.num_open),
    "blocks_quarantined": (
        "KV blocks that wait for the proof that a lost peer can write no more; they count as held.",
        lambda each: each.blocks_quarantined,
    ),
}


def _handoff_metrics(reported: list[tuple[str, HandoffStatistics]]) -> Iterator[Metric]:
    for name, (help_text, read) in _HANDOFF_GAUGES.items():
        gauge = GaugeMetricFamily(f"lineclear_handoff_{name}", help_text, labels=["worker"])
        for worker_id, statistics in reported:
            gauge.add_metric([worker_id], read(statistics))
        yield gauge
    ended = CounterMetricFamily("lineclear_handoffs", "Handoffs by how they ended.", labels=["worker", "outcome"])
    tokens = CounterMetricFamily("lineclear_handoff_tokens", "Tokens whose KV was moved.", labels=["worker"])
    vouched = CounterMetricFamily(
        "lineclear_handoff_blocks_vouched", "KV blocks out of quarantine by an operator's word.", labels=["worker"]
    )
    links = CounterMetricFamily(
        "lineclear_handoff_links_ended", "Links between workers that ended, by why.", labels=["worker", "reason"]
    )
    for worker_id, statistics in reported:
        for reason, count in statistics.num_links_ended.items():
            links.add_metric([worker_id, reason], count)
        ended.add_metric([worker_id, "done"], statistics.num_done)
        for reason, count in statistics.num_failed.items():
            ended.add_metric([worker_id, reason], count)
        tokens.add_metric([worker_id], statistics.num_tokens)
        vouched.add_metric([worker_id], statistics.blocks_vouched)
    yield ended
    yield tokens
    yield vouched
    yield links


def _tier_metrics(reported: list[tuple[str, TierStatistics]]) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "lineclear_tier_blocks", "KV blocks of a tier, by state.", labels=["worker", "tier", "state"]
    )
    sizes = GaugeMetricFamily("lineclear_tier_bytes", "The same in bytes.", labels=["worker", "tier", "state"])
    prefetches = GaugeMetricFamily("lineclear_tier_prefetches", "Sequences that wait for the disk.", labels=["worker"])
    for worker_id, statistics in reported:
        for tier, each in statistics.blocks.items():
            for state, count in (("free", each.free), ("held", each.held), ("quarantined", each.quarantined)):
                blocks.add_metric([worker_id, tier, state], count)
                sizes.add_metric([worker_id, tier, state], count * each.block_bytes)
        prefetches.add_metric([worker_id], statistics.num_prefetches)
    yield from (blocks, sizes, prefetches)
    for name, label, help_text, read in _TIER_COUNTERS:
        counter = CounterMetricFamily(
            f"lineclear_tier_{name}", help_text, labels=["worker", label] if label else ["worker"]
        )
        for worker_id, statistics in reported:
            for word, value in read(statistics).items():
                counter.add_metric([worker_id, word] if label else [worker_id], value)
        yield counter


_TIER_COUNTERS: tuple[tuple[str, str, str, Callable[[TierStatistics], Mapping[str, float]]], ...] = (
    ("hit_tokens", "tier", "Prompt tokens found in a tier.", lambda each: each.hit_tokens),
    ("moved_bytes", "copy", "KV copied between tiers.", lambda each: each.moved_bytes),
    ("moving_seconds", "copy", "Time in which such a copy was running.", lambda each: each.moving_seconds),
    ("failures", "kind", "Copies between tiers that failed.", lambda each: each.failures),
    ("waits", "", "Times that a pass found a part not ready.", lambda each: {"": each.num_waits}),
    ("wait_seconds", "", "Time that passes waited for parts.", lambda each: {"": each.wait_seconds}),
    ("dropped_blocks", "", "Blocks given up without a copy below.", lambda each: {"": each.dropped_blocks}),
)


def _rank_metrics(reported: list[tuple[str, RankStatistics]]) -> Iterator[Metric]:
    sizes = GaugeMetricFamily("lineclear_ranks", "Processes that compute prompts together.", labels=["worker"])
    for worker_id, statistics in reported:
        sizes.add_metric([worker_id], statistics.num_ranks)
    yield sizes
    for name, label, help_text, read in _RANK_COUNTERS:
        counter = CounterMetricFamily(
            f"lineclear_ranks_{name}", help_text, labels=["worker", label] if label else ["worker"]
        )
        for worker_id, statistics in reported:
            for word, value in read(statistics).items():
                counter.add_metric([worker_id, word] if label else [worker_id], value)
        yield counter


_RANK_COUNTERS: tuple[tuple[str, str, str, Callable[[RankStatistics], Mapping[str, float]]], ...] = (
    ("broadcasts", "", "Broadcasts of KV by the first rank.", lambda each: {"": each.num_broadcasts}),
    ("sent_bytes", "part", "KV in them, by part.", lambda each: each.sent_bytes),
    ("gathered_bytes", "", "New rows and results of the first rank.", lambda each: {"": each.gathered_bytes}),
    ("transfer_seconds", "lane", "Time in which the lane was at work.", lambda each: each.transfer_seconds),
    ("wait_seconds", "lane", "Time in which a pass stood still for the lane.", lambda each: each.wait_seconds),
    ("load_wait_seconds", "", "Time in which broadcasts waited for tiers.", lambda each: {"": each.load_wait_seconds}),
)


_SANITIZER_COUNTERS: tuple[tuple[str, str, Callable[[SanitizerStatistics], int]], ...] = (
    ("seals", "Times that rows of a KV block were sealed.", lambda each: each.num_seals),
    ("checks", "Times that a KV block was compared with its seal.", lambda each: each.num_checks),
    ("poisoned", "KV blocks poisoned when they became free.", lambda each: each.num_poisoned),
)


def _sanitizer_metrics(reported: list[tuple[str, SanitizerStatistics]]) -> Iterator[Metric]:
    yield from _counters("sanitizer", _SANITIZER_COUNTERS, reported)
    faults = CounterMetricFamily(
        "lineclear_sanitizer_faults", "Faults of KV blocks that were found, by kind.", labels=["worker", "kind"]
    )
    for worker_id, statistics in reported:
        for kind, count in statistics.num_faults.items():
            faults.add_metric([worker_id, kind], count)
    yield faults


_JUDGING_COUNTERS: tuple[tuple[str, str, Callable[[JudgingStatistics], float]], ...] = (
    ("sequences", "Sequences that the guard has judged to their end.", lambda each: each.num_judged_sequences),
    ("tokens", "Tokens that the guard has judged.", lambda each: each.num_judged_tokens),
    ("forgotten_blocks", "KV blocks on the device that a verdict gave up.", lambda each: each.num_forgotten_blocks),
)


def _judging_metrics(reported: list[tuple[str, JudgingStatistics]]) -> Iterator[Metric]:
    yield from _counters("worker_judged", _JUDGING_COUNTERS, reported)
    highest = GaugeMetricFamily("lineclear_worker_cusum_highest", "Of what runs; 1: a verdict.", labels=["worker"])
    drift = GaugeMetricFamily(
        "lineclear_worker_acceptance_drift",
        "Acceptance over the latest requests, away from the baseline: beyond 1 or -1 is an alarm.",
        labels=["worker", "position"],
    )
    for worker_id, statistics in reported:
        highest.add_metric([worker_id], statistics.highest_cusum)
        for position, level in enumerate(statistics.drift_by_position):
            drift.add_metric([worker_id, str(position)], level)
    yield highest
    yield drift


def _counters(
    prefix: str,
    counters: Iterable[tuple[str, str, Callable[[_StatisticsT], float]]],
    reported: list[tuple[str, _StatisticsT]],
) -> Iterator[Metric]:
    """One counter by worker for each entry: its name behind the prefix, its help, how it is read."""
    for name, help_text, read in counters:
        counter = CounterMetricFamily(f"lineclear_{prefix}_{name}", help_text, labels=["worker"])
        for worker_id, statistics in reported:
            counter.add_metric([worker_id], read(statistics))
        yield counter


def _drafts(verb: str, counts: list[tuple[str, list[int]]]) -> Metric:
    metric = CounterMetricFamily(
        f"lineclear_worker_drafts_{verb}", f"Drafts {verb}, by position.", labels=["worker", "position"]
    )
    for worker_id, by_position in counts:
        for position, count in enumerate(by_position):
            metric.add_metric([worker_id, str(position)], count)
    return metric


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"lineclear_{name}", help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"lineclear_{name}", help_text, value=value)
