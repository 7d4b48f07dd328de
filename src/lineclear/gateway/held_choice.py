"""One choice on its way to the client: what was computed, what may be told, what was sent.

    outputs ─ ChoiceAssembler ─▶ deltas ─ num_holdback_tokens later, or at the ending ─▶ released ─ mark_sent ─▶ sent
                                   └──────────────── go_back: forgotten ◀──────────────────┘

Held are deltas and not tokens: the ending of an answer, a stop string above all, is seen at once and releases all.

Invariants:
1. Every delta is released once, in order; with an ending nothing is held any more.
2. Without an ending, at least `num_holdback_tokens` tokens were computed after the last one that was released.
3. After `go_back` the choice is as it was when it had been sent that much: what follows continues it, and nothing of
   what was sent is told again or changes.
"""

from collections import deque
from dataclasses import dataclass

from lineclear.gateway.choice import AnswerFormat, ChoiceAssembler, ChoiceDelta
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.vocabulary import Vocabulary
from lineclear.protocol.wire import SequenceOutput


@dataclass(frozen=True, slots=True)
class ReleasedDelta:
    """What may be told now, and how many tokens it is of, the one that ends the choice included."""

    delta: ChoiceDelta
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Held:
    """An output that was read; `end` counts the tokens computed up to it."""

    output: SequenceOutput
    delta: ChoiceDelta
    num_tokens: int
    end: int


class HeldChoice:
    """A choice of which the newest tokens are kept back.

    Args:
        vocabulary: the bytes of every token.
        answer_format: how the tokens are read.
        num_holdback_tokens: that are computed after a token before it is released; 0: it is released at once.
    """

    def __init__(self, vocabulary: Vocabulary, answer_format: AnswerFormat, num_holdback_tokens: int = 0) -> None:
        self._vocabulary = vocabulary
        self._format = answer_format
        self._num_holdback_tokens = num_holdback_tokens
        self._held: deque[_Held] = deque()
        self._unsent: list[SequenceOutput] = []
        self._sent: list[SequenceOutput] = []
        self._begin()

    def _begin(self) -> None:
        self._assembler = ChoiceAssembler(self._vocabulary, self._format)
        self._collected = CollectedChoice()
        self._num_computed = 0

    @property
    def assembler(self) -> ChoiceAssembler:
        """What reads the tokens, for its counts; what is held counts as well."""
        return self._assembler

    @property
    def collected(self) -> CollectedChoice:
        """What was released, added up."""
        return self._collected

    @property
    def is_finished(self) -> bool:
        """Whether the choice has its ending; then all of it is released."""
        return self._assembler.is_finished

    @property
    def has_sent(self) -> bool:
        """Whether the client was sent anything of it."""
        return bool(self._sent)

    @property
    def num_unsent_tokens(self) -> int:
        """Tokens that `go_back` would forget."""
        return self._num_computed - sum(len(output.token_ids) for output in self._sent)

    def push(self, output: SequenceOutput) -> list[ReleasedDelta]:
        """What may be told after this output, which is not one that ends as broken.

        Raises:
            GenerationError: The worker ended the sequence without an answer.
        """
        was_finished = self._assembler.is_finished
        delta = self._assembler.push(output)
        self._collected.draft = self._assembler.draft
        if was_finished:
            return []
        self._num_computed += len(output.token_ids)
        num_tokens = len(output.token_ids) + (output.stop_token_id is not None)
        self._held.append(_Held(output, delta, num_tokens, self._num_computed))
        return self._release()

    def mark_sent(self) -> None:
        """Everything that was released cannot be taken back any more."""
        self._sent += self._unsent
        self._unsent.clear()

    def go_back(self) -> list[int]:
        """Forget whatever was not sent; returns the tokens of what was.

        Cost: O(tokens that were sent).
        """
        self._held.clear()
        self._unsent.clear()
        self._begin()
        for output in self._sent:
            self._collected.add(self._assembler.push(output))
            self._num_computed += len(output.token_ids)
        return [token_id for output in self._sent for token_id in output.token_ids]

    def _release(self) -> list[ReleasedDelta]:
        released: list[ReleasedDelta] = []
        while self._held and self._may_go(self._held[0]):
            held = self._held.popleft()
            self._collected.add(held.delta)
            self._unsent.append(held.output)
            released.append(ReleasedDelta(held.delta, held.num_tokens))
        return released

    def _may_go(self, held: _Held) -> bool:
        return self.is_finished or self._num_computed - held.end >= self._num_holdback_tokens
