"""Runs the cells of a plan, one after the other, and keeps each outcome in a file: an interrupted run goes on there."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from lineclear.base.errors import ConfigError
from lineclear.lab.intervals import exact_interval, wilson_interval
from lineclear.lab.judging import DEFAULT_TIE_MARGIN, Judgement, Outcome
from lineclear.lab.load import TIMEOUT_SECONDS, Load, requests_of, run_load
from lineclear.lab.plan import Cell, Plan
from lineclear.lab.reference import ServerReferences
from lineclear.lab.results import Result, answer_text, api_path
from lineclear.lab.service import lab_service, read_firings, read_metrics
from lineclear.lab.tribunal import judge_results, tally

REFERENCE_CELL = Cell((), 1, 0, 1, "off")
"""What everything is compared with: one worker as shipped, which serves one request at a time."""


class CellOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a cell."""

    key: str
    faults: tuple[str, ...]
    num_clients: int
    num_prefill: int
    num_decode: int
    sanitizer: str
    num_requests: int
    num_answers: int
    """Compared with their references."""
    num_corrupted: int
    num_ties: int
    num_garbled: int
    num_loops: int
    num_foreign: int
    num_left: int
    errors: dict[str, int]
    num_corrupted_alone: int
    """Of the corrupted: asked again alone, of the same workers with the same faults, and wrong again."""
    firings: dict[str, int]
    sanitizer_faults: dict[str, int]
    seconds: float
    seconds_p50: float | None
    """Of an answer."""
    seconds_p95: float | None

    @property
    def unfired(self) -> list[str]:
        """Armed faults that never fired: the cell says nothing about them."""
        return [fault for fault, count in self.firings.items() if not count]

    @property
    def in_10000(self) -> float:
        """Corrupted answers in 10,000."""
        return 10_000 * self.num_corrupted / self.num_answers if self.num_answers else 0.0

    @property
    def exact_in_10000(self) -> tuple[float, float]:
        """The exact 95 % interval of that."""
        low, high = exact_interval(self.num_corrupted, self.num_answers) if self.num_answers else (0.0, 1.0)
        return 10_000 * low, 10_000 * high

    @property
    def wilson_in_10000(self) -> tuple[float, float]:
        """Wilson's 95 % interval of that."""
        low, high = wilson_interval(self.num_corrupted, self.num_answers) if self.num_answers else (0.0, 1.0)
        return 10_000 * low, 10_000 * high

    @property
    def answers_per_second(self) -> float:
        """Throughput, answers that ended well."""
        return self.num_answers / self.seconds if self.seconds else 0.0


OnProgress = Callable[[str, int, int], None]
"""Hears what runs, and how many of how many requests are done."""


class Ablation:
    """One run of a plan in a folder.

    Args:
        folder: gets references, one folder a cell with logs and results, and an outcome a cell.
        on_progress: hears how far it is.

    Raises: ConfigError if the folder has a run of another plan.
    """

    def __init__(self, plan: Plan, folder: Path, on_progress: OnProgress) -> None:
        self._plan = plan
        self._folder = folder
        self._on_progress = on_progress
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(msgspec.json.encode(plan, order="sorted")).hexdigest()
        mark = folder / "plan.sha256"
        if mark.exists() and mark.read_text(encoding="ascii") != digest:
            raise ConfigError("out", str(folder), "a new folder, or that of a run of the same plan")
        mark.write_text(digest, encoding="ascii")

    def run(self) -> Iterator[CellOutcome]:
        """Run what is not there yet; yields the outcome of every cell, in the plan's order."""
        references: ServerReferences | None = None
        for cell in self._plan.cells():
            path = self._folder / f"{cell.key}.json"
            if path.exists():
                yield msgspec.json.decode(path.read_bytes(), type=CellOutcome)
                continue
            if references is None:
                references = self._references()
            outcome = self._run(cell, references)
            path.write_bytes(msgspec.json.encode(outcome))
            yield outcome

    def _references(self) -> ServerReferences:
        """Every request of the plan asked alone, of the product as shipped."""
        kept = self._folder / "references.jsonl"
        folder = self._folder / "reference"
        folder.mkdir(exist_ok=True)
        requests = requests_of(self._plan)
        with (
            lab_service(REFERENCE_CELL, (), folder, self._plan.seed) as url,
            httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) as client,
        ):
            references = ServerReferences(client, kept)
            for number, request in enumerate(requests, 1):
                references.body(request)
                self._on_progress("reference", number, len(requests))
        return references

    def _run(self, cell: Cell, references: ServerReferences) -> CellOutcome:
        plan, folder = self._plan, self._folder / cell.key
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():  # of a run that was interrupted: what fired then does not count
            old.unlink()
        num_done = 0

        def on_answer() -> None:
            nonlocal num_done
            num_done += 1
            self._on_progress(cell.key, num_done, plan.requests)

        with lab_service(cell, plan.options, folder, plan.seed) as url:
            load = asyncio.run(run_load(url, plan, cell.num_clients, on_answer))
            judgements = list(judge_results(load.results, references, DEFAULT_TIE_MARGIN))
            corrupted = [result for result in load.results if _is_corrupted(result, judgements)]
            num_alone = _num_wrong_alone(url, corrupted, references)
            metrics = read_metrics(url)
        (folder / "results.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in load.results))
        (folder / "judgements.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in judgements))
        return _outcome(cell, plan, load, judgements, num_alone, read_firings(folder, cell.faults), metrics)


def _is_corrupted(result: Result, judgements: list[Judgement]) -> bool:
    return any(each.request_id == result.id and each.is_anomaly for each in judgements)


def _num_wrong_alone(url: str, corrupted: list[Result], references: ServerReferences) -> int:
    """Ask again, one after the other, with nothing beside."""
    num_wrong = 0
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) as client:
        for result in corrupted:
            response = client.post(api_path(result.request), json=result.request)
            if response.is_success:
                again = [Result(id=result.id, request=result.request, text=answer_text(response.json()))]
                num_wrong += sum(each.is_anomaly for each in judge_results(again, references, DEFAULT_TIE_MARGIN))
    return num_wrong


def _outcome(
    cell: Cell,
    plan: Plan,
    load: Load,
    judgements: list[Judgement],
    num_alone: int,
    firings: dict[str, int],
    metrics: dict[str, float],
) -> CellOutcome:
    counted = tally(judgements)
    times = sorted(result.seconds for result in load.results if result.error is None and result.seconds is not None)
    facts: dict[str, Any] = {
        "faults": cell.faults,
        "num_clients": cell.num_clients,
        "num_prefill": cell.num_prefill,
        "num_decode": cell.num_decode,
        "sanitizer": cell.sanitizer,
    }
    return CellOutcome(
        key=cell.key,
        **facts,
        num_requests=plan.requests,
        num_answers=counted.num_judged,
        num_corrupted=counted.num_by_outcome[Outcome.CORRUPTION],
        num_ties=counted.num_by_outcome[Outcome.TIE],
        num_garbled=counted.num_garbled,
        num_loops=counted.num_loops,
        num_foreign=counted.num_foreign,
        num_left=load.num_left,
        errors=dict(load.errors),
        num_corrupted_alone=num_alone,
        firings=firings,
        sanitizer_faults=_sanitizer_faults(metrics),
        seconds=load.seconds,
        seconds_p50=_percentile(times, 0.5),
        seconds_p95=_percentile(times, 0.95),
    )


def _sanitizer_faults(metrics: dict[str, float]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in metrics.items():
        if name.startswith("lineclear_sanitizer_faults_total{"):
            kind = name.partition('kind="')[2].partition('"')[0]
            found[kind] = found.get(kind, 0) + int(value)
    return found


def _percentile(ordered: list[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
