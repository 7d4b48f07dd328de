"""Learns a model's baselines from healthy traffic through the serving engine.

A recording guard stands where the judging one stands in a worker, so what is learned is what will be judged.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_engine
from lineclear.evaluation.generate import Prompt, generate
from lineclear.evaluation.guard.traffic import TrafficSize, healthy_prompts
from lineclear.gateway.served_model import load_text_assets
from lineclear.guard.baselines import Baselines, HealthySequence, ModeBaselines, learn
from lineclear.guard.evidence import Detector, Finding, Verify
from lineclear.guard.guard import Guard
from lineclear.model.digest import model_digest

SAMPLED_TEMPERATURE = 0.6

OnMode: TypeAlias = Callable[[str, int], None]
"""Hears of each sampling mode before it runs, and of how many prompts it has."""


@dataclass(slots=True)
class Recorder:
    """Writes down one sequence's verifies and finds nothing: a `Detector`."""

    verifies: list[Verify] = field(default_factory=list[Verify])
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    num_prompt_tokens: int = 0
    level: float = 0.0

    def judge(self, verify: Verify, tokens: "array[int]", num_prompt_tokens: int) -> Finding | None:
        """Take in one verify; see `Detector`."""
        self.verifies.append(verify)
        self.tokens, self.num_prompt_tokens = tokens, num_prompt_tokens
        return None

    def healthy(self) -> HealthySequence:
        """What the sequence did."""
        return HealthySequence(self.tokens, self.num_prompt_tokens, self.verifies)


class RecordingGuard(Guard):
    """A guard whose detectors only write down what they are given."""

    def __init__(self) -> None:
        super().__init__("observe", None)
        self.recorders: list[Recorder] = []

    def open(self, *, is_greedy: bool) -> Detector:  # noqa: ARG002 - each run has one mode
        """Return the recorder of one new sequence."""
        self.recorders.append(Recorder())
        return self.recorders[-1]


def calibrate(
    model_dir: Path, config: EngineConfig, size: TrafficSize, *, alarms_per_million: float, on_mode: OnMode
) -> Baselines:
    """Learn the baselines of a checkpoint.

    Args:
        model_dir: the checkpoint.
        config: of the engine; drafting must be on.
        size: how much traffic.
        alarms_per_million: false alarms allowed per million healthy tokens, of each kind.
        on_mode: hears how far it is.

    Raises: ConfigError if the traffic has too few drafts at some position.
    """
    assets = load_text_assets(model_dir)

    def mode(name: str, temperature: float) -> ModeBaselines:
        prompts = healthy_prompts(assets, size, temperature=temperature)
        on_mode(name, len(prompts))
        healthy = record(model_dir, config, prompts)
        return learn(healthy, draft_tokens=config.draft_tokens, alarms_per_million=alarms_per_million)

    return Baselines(
        model=model_digest(model_dir),
        draft_tokens=config.draft_tokens,
        alarms_per_million=alarms_per_million,
        greedy=mode("greedy", 0.0),
        sampled=mode("sampled", SAMPLED_TEMPERATURE),
    )


def record(model_dir: Path, config: EngineConfig, prompts: list[Prompt]) -> list[HealthySequence]:
    """Run prompts and return what each sequence that had a verify did."""
    guard = RecordingGuard()
    engine = build_engine(replace(config, max_waiting=len(prompts)), model_dir, guard=guard)
    generate(engine, prompts)
    return [each.healthy() for each in guard.recorders if each.verifies]
