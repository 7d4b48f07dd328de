"""Runs many prompts through one engine in this process, and gives their outputs.

A hook sees the engine between two steps: that is how the evaluation damages blocks of running sequences.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from lineclear.base.errors import InvariantError
from lineclear.base.ids import SequenceId
from lineclear.engine.engine import Engine
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.sampling import SamplingParams
from lineclear.protocol.wire import FinishReason
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one sequence is asked."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(slots=True)
class Generation:
    """What came of one prompt."""

    sequence: Sequence
    token_ids: list[int]
    finish_reason: FinishReason | None = None

    @property
    def draft_counts(self) -> DraftCounts:
        """Its verifies."""
        return self.sequence.draft_counts


StepHook = Callable[[Engine, Items[Generation]], None]
"""Called after every step with all generations of the run, in the order of their prompts."""


def generate(engine: Engine, prompts: Items[Prompt], *, after_step: StepHook | None = None) -> list[Generation]:
    """Run the prompts together until all have ended.

    Order: nothing but `after_step` uses the engine meanwhile; what that submits runs along.
    Raises: InvariantError if the engine stops without having ended a sequence.
    """
    generations: dict[SequenceId, Generation] = {}
    for number, prompt in enumerate(prompts):
        sequence = Sequence(SequenceId(number), prompt.token_ids, prompt.sampling)
        generations[sequence.sequence_id] = Generation(sequence, [])
        engine.submit(sequence)
    ordered = list(generations.values())
    while engine.has_work or engine.wait_for_copies():
        for update in engine.step():
            if update.sequence.sequence_id in generations:
                _apply(generations[update.sequence.sequence_id], update)
        if after_step is not None:
            after_step(engine, ordered)
    engine.check()
    if any(generation.finish_reason is None for generation in ordered):
        raise InvariantError("the engine has no work left, but a sequence has not ended")
    return ordered


def _apply(generation: Generation, update: SequenceUpdate) -> None:
    generation.token_ids.extend(update.token_ids)
    generation.finish_reason = update.finish_reason or generation.finish_reason
