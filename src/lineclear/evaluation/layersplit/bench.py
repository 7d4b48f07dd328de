"""The run: for each number of ranks one instance a layout, asked in turns.

    ready ──▶ spare: few sessions ──▶ rotation of the first length ──▶ of the next ──▶ …
                each:  every session's first 90 % in both layouts (not measured), then every whole prompt in both

Both instances live side by side, and one computes while the other sleeps, so that what is compared is minutes apart.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from lineclear.config.components import ModelSource, ServeConfig
from lineclear.evaluation.layersplit.communication import batch_bytes, measure, pool_bytes
from lineclear.evaluation.layersplit.instance import Instance, serve_config, start_instance
from lineclear.evaluation.layersplit.messages import Answer, Step
from lineclear.evaluation.layersplit.records import Kind, Point, PointKey, Records, Room, Turn, wanted_points
from lineclear.evaluation.layersplit.setting import LAYOUTS, Budget, budget_for
from lineclear.evaluation.layersplit.spans import SpansByRank
from lineclear.evaluation.layersplit.traffic import Traffic
from lineclear.model.config import load_config
from lineclear.parallel.build import KvLayout
from lineclear.worker.ranks.instance import whole_shape

SPARE_SESSIONS = 2
"""Of a spare point, if there is room: what they are for is seen with few."""

OnProgress = Callable[[str], None]

OnTrace = Callable[[int, KvLayout, SpansByRank], None]
"""Gets the spans of one measured step of the newest point, by number of ranks and layout."""


@dataclass(slots=True)
class _Measuring:
    """One layout's measured prompts of a point."""

    instance: Instance
    answers: list[Answer] = field(default_factory=list[Answer])
    started_ns: int = 0
    cpu_seconds: float = 0.0
    digests: dict[str, str] = field(default_factory=dict[str, str])
    """Of the newest prompt."""

    def ask(self, prompt: list[int]) -> Answer:
        before = self.instance.cpu_seconds()
        answer = self.instance.ask(prompt, digests=True)
        self.cpu_seconds += self.instance.cpu_seconds() - before
        self.answers.append(answer)
        self.digests = self.instance.take_digests()
        return answer

    @property
    def steps(self) -> list[Step]:
        return [step for answer in self.answers for step in answer.steps]


class Bench:
    """Measures what records lack.

    Args:
        model_dir: the checkpoint.
        records: what there is. Mutates: adds to it.
        traffic: at least twice as many sessions as the setting's: the spare points have their own.
        on_progress: hears what is done, in words.
        on_trace: hears of one step of every point.
    """

    def __init__(
        self, model_dir: Path, records: Records, traffic: Traffic, on_progress: OnProgress, on_trace: OnTrace
    ) -> None:
        self._model_dir = model_dir
        self._records = records
        self._setting = records.setting
        self._traffic = traffic
        self._on_progress = on_progress
        self._on_trace = on_trace
        self._shape = whole_shape(ServeConfig(source=ModelSource(model=str(model_dir))))
        self._index_topk = load_config(model_dir).index_topk

    def run(self, num_ranks: int) -> Iterator[Point]:
        """Measure what is missing for one number of ranks; each point is in the records when it comes out."""
        budget = budget_for(self._setting, self._shape, num_ranks)
        wanted = wanted_points(self._setting, budget, num_ranks)
        missing = [key for key in wanted if self._records.find(key) is None]
        if not missing:
            return
        with ExitStack() as stack:
            instances: dict[KvLayout, Instance] = {}
            for layout in LAYOUTS:
                config = serve_config(self._model_dir, self._setting, budget, layout, num_ranks)
                instances[layout] = stack.enter_context(start_instance(config))
                self._on_progress(f"{num_ranks} ranks, {layout}: ready")
            self._records.rooms[num_ranks] = {
                layout: self._room(layout, instance, budget) for layout, instance in instances.items()
            }
            for key in missing:
                point = self._measure(key, instances, budget)
                self._records.points.append(point)
                yield point

    def _room(self, layout: KvLayout, instance: Instance, budget: Budget) -> Room:
        ready = instance.ready
        return Room(
            num_tokens=ready.num_tokens,
            kv_bytes=ready.num_tokens * budget.row_bytes[layout],
            staging_bytes=ready.staging_bytes,
        )

    def _measure(self, key: PointKey, instances: dict[KvLayout, Instance], budget: Budget) -> Point:
        sessions = self._sessions(key.kind, budget)
        for session in sessions:
            for layout, instance in instances.items():
                seen_len = self._setting.seen_len(key.length)
                answer = instance.ask(self._traffic.prompt(session, seen_len))
                self._tell(key, layout, f"session {session} warmed", seen_len, answer)
        measuring: dict[KvLayout, _Measuring] = {layout: _Measuring(instance) for layout, instance in instances.items()}
        for each in measuring.values():
            each.instance.spans.skip()
            each.started_ns = time.perf_counter_ns()
        num_digests = num_different = 0
        for session in sessions:
            prompt = self._traffic.prompt(session, key.length)
            for layout, each in measuring.items():
                answer = each.ask(prompt)
                self._tell(key, layout, f"session {session} measured", key.length, answer)
            one, other = (each.digests for each in measuring.values())
            common = one.keys() & other.keys()
            num_digests += len(common)
            num_different += sum(one[name] != other[name] for name in common)
        return Point(
            key=key,
            num_sessions=len(sessions),
            turns={layout: self._turn(key, layout, each) for layout, each in measuring.items()},
            num_digests=num_digests,
            num_different=num_different,
            load=os.getloadavg()[0],
        )

    def _turn(self, key: PointKey, layout: KvLayout, measuring: _Measuring) -> Turn:
        answers, steps = measuring.answers, measuring.steps
        spans = measuring.instance.spans.read(measuring.started_ns)
        self._on_trace(key.num_ranks, layout, _within(spans, steps[len(steps) // 2]))
        num_tokens = measuring.instance.ready.num_tokens
        return Turn(
            num_prompt_tokens=key.length * len(answers),
            num_hit_tokens=sum(answer.num_hit_tokens for answer in answers),
            num_computed_tokens=sum(step.end - step.start for step in steps),
            num_steps=len(steps),
            seconds=sum(answer.seconds for answer in answers),
            cpu_seconds=measuring.cpu_seconds,
            communication=measure(spans, steps),
            batch_bytes=batch_bytes(steps, self._shape, self._setting.block_size, self._index_topk),
            pool_bytes=pool_bytes(len(steps), self._shape, num_tokens),
        )

    def _sessions(self, kind: Kind, budget: Budget) -> range:
        """Whose turn it is; sessions of a spare point have been seen by no other."""
        num_sessions = self._setting.num_sessions
        if kind == "rotation":
            return range(num_sessions)
        room = min(SPARE_SESSIONS, num_sessions, budget.room_sessions(self._setting.lengths[0]))
        return range(num_sessions, num_sessions + room)

    def _tell(self, key: PointKey, layout: KvLayout, what: str, length: int, answer: Answer) -> None:
        hits = f"{answer.num_hit_tokens:,} of {length:,} tokens found, {answer.seconds:.1f} s"
        self._on_progress(f"{key.num_ranks} ranks, {key.kind} {key.length}, {layout}: {what}: {hits}")


def _within(spans: SpansByRank, step: Step) -> SpansByRank:
    """The spans of one step."""
    return {
        rank: [span for span in of_rank if step.started_ns <= span.started_ns < step.ended_ns]
        for rank, of_rank in spans.items()
    }
