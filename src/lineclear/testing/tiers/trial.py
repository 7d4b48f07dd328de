"""One run of a workload: every answer, with company that comes and is cancelled at random."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lineclear.base.ids import SequenceId
from lineclear.engine.engine import Engine
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.sequence import Sequence as EngineSequence

NUM_OUTPUTS = 6
NUM_BESIDE = 2
"""Requests that run at once."""
GREEDY = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
GUEST_SHARE = 0.2
"""Of requests beside which another with a prompt from before comes, and is cancelled after some steps."""
_FIRST_GUEST_ID = 1_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    token_ids: tuple[int, ...]
    drafts: tuple[tuple[int, ...], tuple[int, ...]]
    """Proposed and accepted, by position: what a damaged draft cache changes, while tokens stay right."""
    error: str | None


@dataclass(slots=True)
class _Open:
    sequence: EngineSequence
    token_ids: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class Trial:
    """Asks everything of one engine, a few requests at once.

    Args:
        guests: whether others come and are cancelled meanwhile.
        after_turn: called after each step, with the sequences that are asked for.
    """

    engine: Engine
    prompts: Sequence[tuple[int, ...]]
    seed: int
    guests: bool = True
    after_turn: Callable[[list[EngineSequence]], None] | None = None
    answers: dict[int, Answer] = field(default_factory=dict[int, Answer])
    _open: dict[SequenceId, _Open] = field(default_factory=dict[SequenceId, _Open])
    _guests: dict[SequenceId, int] = field(default_factory=dict[SequenceId, int])
    """How many steps each is left."""

    def run(self) -> list[Answer]:
        """Ask; check every invariant now and then and in the end."""
        rng = random.Random(self.seed)  # noqa: S311 - no secret
        num_asked = 0
        while len(self.answers) < len(self.prompts):
            while len(self._open) < NUM_BESIDE and num_asked < len(self.prompts):
                self._ask(num_asked, rng)
                num_asked += 1
            self._turn()
        while self._guests or self.engine.has_work or self.engine.wait_for_copies():
            self._turn()
        self.engine.check()
        return [self.answers[idx] for idx in range(len(self.prompts))]

    def _ask(self, idx: int, rng: random.Random) -> None:
        sequence = EngineSequence(SequenceId(idx), self.prompts[idx], GREEDY)
        self._open[sequence.sequence_id] = _Open(sequence)
        self.engine.submit(sequence)
        if self.guests and rng.random() < GUEST_SHARE:
            guest = SequenceId(_FIRST_GUEST_ID + idx)
            prompt = self.prompts[rng.randrange(idx + 1)]
            self._guests[guest] = rng.randint(0, 3)
            self.engine.submit(EngineSequence(guest, prompt, GREEDY))

    def _turn(self) -> None:
        for guest, num_left in list(self._guests.items()):
            self._guests[guest] = num_left - 1
            if num_left == 0:
                self.engine.cancel(guest)
        if not self.engine.has_work:
            self.engine.wait_for_copies()
        for update in self.engine.step():
            self._take(update)
        if self.after_turn is not None:
            self.after_turn([each.sequence for each in self._open.values()])

    def _take(self, update: SequenceUpdate) -> None:
        sequence_id = update.sequence.sequence_id
        if update.finish_reason is not None:
            self._guests.pop(sequence_id, None)
        current = self._open.get(sequence_id)
        if current is None:
            return
        current.token_ids += update.token_ids
        if update.finish_reason is not None:
            del self._open[sequence_id]
            counts = update.sequence.draft_counts
            drafts = (tuple(counts.proposed_by_position), tuple(counts.accepted_by_position))
            self.answers[sequence_id] = Answer(tuple(current.token_ids), drafts, update.error)
