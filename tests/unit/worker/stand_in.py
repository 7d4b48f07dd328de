"""An engine without a model: each step gives every running sequence its next number, counting up from its prompt."""

from lineclear.base.errors import InvariantError
from lineclear.base.ids import SequenceId
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.sequence import Sequence


class CountingEngine:
    """Follows the contract of `lineclear.engine.engine.Engine`; `check` fails when `is_broken`."""

    def __init__(self) -> None:
        self.sequences: dict[SequenceId, Sequence] = {}
        self.cancelled: list[SequenceId] = []
        self.num_steps = 0
        self.num_checks = 0
        self.is_broken = False

    @property
    def has_work(self) -> bool:
        return bool(self.sequences)

    def submit(self, sequence: Sequence) -> None:
        self.sequences[sequence.sequence_id] = sequence

    def cancel(self, sequence_id: SequenceId) -> bool:
        if sequence_id not in self.sequences:
            return False
        self.cancelled.append(sequence_id)
        return True

    def step(self) -> list[SequenceUpdate]:
        self.num_steps += 1
        return [self._advance(sequence) for sequence in list(self.sequences.values())]

    def filenos(self) -> tuple[int, ...]:
        return ()

    def seconds_until_due(self) -> float:
        return float("inf")

    def take_in_copies(self) -> None:
        pass

    def check(self) -> None:
        self.num_checks += 1
        if self.is_broken:
            raise InvariantError("a block is lost")

    def _advance(self, sequence: Sequence) -> SequenceUpdate:
        if sequence.sequence_id in self.cancelled:
            del self.sequences[sequence.sequence_id]
            return SequenceUpdate(sequence, finish_reason="cancelled")
        if sequence.num_tokens > 100:
            del self.sequences[sequence.sequence_id]
            return SequenceUpdate(sequence, finish_reason="error", error="too long")
        token_id = sequence.token_ids(sequence.num_tokens - 1, sequence.num_tokens)[0] + 1
        sequence.append([token_id])
        sequence.draft_counts.record(1, 1)
        if len(sequence.output_token_ids) < sequence.sampling.max_tokens:
            return SequenceUpdate(sequence, token_ids=[token_id])
        del self.sequences[sequence.sequence_id]
        return SequenceUpdate(sequence, token_ids=[token_id], finish_reason="length")
