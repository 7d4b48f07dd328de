"""What each detector finds of sequences whose KV is overwritten while they run, and of those that are healthy.

The same requests run twice through the serving engine: untouched, and with some of them damaged at random moments.
Whose tokens differ went wrong, from the first that differs on; that is exact, since a request's tokens do not depend on
its company. What both runs did at each verify is written down, and every detector judges that alike, afterwards.
"""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TypeAlias

from lineclear.base.ids import SequenceId
from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_engine
from lineclear.evaluation.damage import CapturedKv, PromptCapture, PromptDamage
from lineclear.evaluation.figures import Figure
from lineclear.evaluation.generate import Prompt, StepHook, generate
from lineclear.evaluation.guard.calibration import SAMPLED_TEMPERATURE, RecordingGuard
from lineclear.evaluation.guard.traffic import TrafficSize, healthy_prompts
from lineclear.gateway.detokenize import detokenize
from lineclear.gateway.served_model import load_text_assets
from lineclear.gateway.vocabulary import Vocabulary
from lineclear.guard.baselines import Baselines, HealthySequence
from lineclear.guard.calibrated import CalibratedDetector, CalibratedModel
from lineclear.guard.evidence import Detector
from lineclear.guard.heuristic import find_in_text, scripts_of
from lineclear.guard.seed import SeedDetector

FIRST_NUMBER = 500_000
"""Of the prompts: none that baselines were learned from."""

BATCH = 64
"""Requests of one engine run."""

DAMAGED_BLOCKS_SHARE = 0.25
MIN_TOKENS_LEFT = 64
"""Recall is of sequences that had so many tokens to go when they went wrong."""

_TEXT_LOOK_TOKENS = 32
"""The heuristic detector reads the text once in so many tokens."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request of the damaged run."""

    record: HealthySequence
    is_greedy: bool
    damaged_at: int | None
    """Output tokens when its KV was overwritten; None: it was not."""
    wrong_from: int | None
    """The first output token that differs from the untouched run; None: none does."""

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return len(self.record.tokens) - self.record.num_prompt_tokens


Judge: TypeAlias = Callable[[Outcome], int | None]
"""How many output tokens there were when a detector first objected; None: it never did."""


def run_damaged(
    model_dir: Path, config: EngineConfig, num_requests: int, *, damaged_share: float, seed: int
) -> Iterator[list[Outcome]]:
    """Run the requests, batch after batch, half of them greedy, each batch untouched and with its share damaged."""
    assets = load_text_assets(model_dir)
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    config = replace(config, prefix_cache=False, max_running=BATCH, max_waiting=BATCH)
    donor = _donor(model_dir, config)
    for number in range(0, num_requests, BATCH):
        count = min(BATCH, num_requests - number)
        size = TrafficSize(num_edits=count - count // 3 - count // 16, num_code=count // 3, num_lists=count // 16)
        is_greedy = number // BATCH % 2 == 0
        temperature = 0.0 if is_greedy else SAMPLED_TEMPERATURE
        prompts = healthy_prompts(assets, size, temperature=temperature, first_number=FIRST_NUMBER + number)
        clean = _record(model_dir, config, prompts, None)
        lengths = [len(each.tokens) - each.num_prompt_tokens for each in clean]
        after = {
            SequenceId(idx): dice.randrange(1, max(2, length))
            for idx, length in enumerate(lengths)
            if dice.random() < damaged_share
        }
        damage = PromptDamage(
            share=DAMAGED_BLOCKS_SHARE, donor=donor, block_size=config.block_size, seed=seed + number, after=after
        )
        touched = _record(model_dir, config, prompts, damage)
        yield [
            Outcome(each, is_greedy, damage.damaged.get(SequenceId(idx)), _first_difference(clean[idx], each))
            for idx, each in enumerate(touched)
        ]


def detector_judges(baselines: Baselines, vocabulary: Vocabulary) -> Mapping[str, Judge]:
    """Return each detector as a judge of outcomes."""
    models = {True: CalibratedModel(baselines.greedy), False: CalibratedModel(baselines.sampled)}
    return {
        "seed": lambda outcome: _first_finding(SeedDetector(), outcome),
        "calibrated": lambda outcome: _first_finding(CalibratedDetector(models[outcome.is_greedy]), outcome),
        "heuristic": lambda outcome: _first_in_text(vocabulary, outcome),
    }


def figures(outcomes: Sequence[Outcome], judges: Mapping[str, Judge]) -> Iterator[Figure]:
    """What ran, and by detector: recall, precision, tokens until detection, false alarms."""
    wrong = [each for each in outcomes if each.wrong_from is not None]
    healthy = [each for each in outcomes if each.damaged_at is None]
    had_time = [each for each in wrong if _tokens_left(each) >= MIN_TOKENS_LEFT]
    num_healthy_tokens = sum(each.num_tokens for each in healthy)
    yield Figure("requests", len(outcomes))
    yield Figure("damaged", len(outcomes) - len(healthy))
    yield Figure("wrong", len(wrong))
    yield Figure("wrong_undamaged", sum(each.damaged_at is None for each in wrong))
    yield Figure("wrong_with_time", len(had_time))
    yield Figure("healthy_tokens", num_healthy_tokens, "tokens")
    for name, judge in judges.items():
        found = {id(each): judge(each) for each in outcomes}
        delays = [
            at - each.wrong_from
            for each in had_time
            if each.wrong_from is not None and (at := found[id(each)]) is not None and at > each.wrong_from
        ]
        true = sum(_is_true(each, found[id(each)]) for each in wrong)
        false = sum(found[id(each)] is not None for each in healthy)
        yield Figure(f"{name}_recall", len(delays) / len(had_time) if had_time else 0.0)
        yield Figure(f"{name}_precision", true / (true + false) if true + false else 0.0)
        yield Figure(f"{name}_delay_median", median(delays) if delays else 0.0, "tokens")
        yield Figure(f"{name}_delay_p95", quantiles(delays, n=20)[-1] if len(delays) > 1 else 0.0, "tokens")
        yield Figure(f"{name}_false", false, "requests")
        yield Figure(f"{name}_false_per_million", 1e6 * false / max(1, num_healthy_tokens), "tokens")


def _is_true(outcome: Outcome, found_at: int | None) -> bool:
    return found_at is not None and outcome.wrong_from is not None and found_at > outcome.wrong_from


def _tokens_left(outcome: Outcome) -> int:
    return 0 if outcome.wrong_from is None else outcome.num_tokens - outcome.wrong_from


def _donor(model_dir: Path, config: EngineConfig) -> CapturedKv:
    capture = PromptCapture(config.block_size)
    assets = load_text_assets(model_dir)
    size = TrafficSize(num_edits=0, num_code=1, num_lists=0)
    (prompt,) = healthy_prompts(assets, size, temperature=0.0, first_number=FIRST_NUMBER - 1)
    generate(build_engine(config, model_dir), [prompt], after_step=capture)
    assert capture.captured is not None
    return capture.captured


def _record(
    model_dir: Path, config: EngineConfig, prompts: list[Prompt], hook: StepHook | None
) -> list[HealthySequence]:
    guard = RecordingGuard()
    generations = generate(build_engine(config, model_dir, guard=guard), prompts, after_step=hook)
    return [
        HealthySequence(
            array("I", [*prompt.token_ids, *generation.token_ids]), len(prompt.token_ids), recorder.verifies
        )
        for prompt, generation, recorder in zip(prompts, generations, guard.recorders, strict=True)
    ]


def _first_difference(clean: HealthySequence, touched: HealthySequence) -> int | None:
    ours, theirs = (each.tokens[each.num_prompt_tokens :] for each in (clean, touched))
    if ours == theirs:
        return None
    pairs = zip(ours, theirs, strict=False)
    return next((idx for idx, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))


def _first_finding(detector: Detector, outcome: Outcome) -> int | None:
    record = outcome.record
    for verify in record.verifies:
        tokens = record.tokens[: record.num_prompt_tokens + verify.num_tokens]
        if detector.judge(verify, tokens, record.num_prompt_tokens) is not None:
            return verify.num_tokens
    return None


def _first_in_text(vocabulary: Vocabulary, outcome: Outcome) -> int | None:
    record = outcome.record
    known = scripts_of(detokenize(vocabulary, list(record.tokens[: record.num_prompt_tokens])))
    output = list(record.tokens[record.num_prompt_tokens :])
    for end in _looks(len(output)):
        if find_in_text(detokenize(vocabulary, output[:end]), known) is not None:
            return end
    return None


def _looks(num_tokens: int) -> Iterable[int]:
    return [*range(_TEXT_LOOK_TOKENS, num_tokens, _TEXT_LOOK_TOKENS), num_tokens]
