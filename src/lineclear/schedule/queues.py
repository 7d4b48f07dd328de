"""Who waits and who runs, both oldest first, and how sequences move between the two."""

from bisect import insort
from typing import assert_never

from lineclear.base.errors import InvariantError
from lineclear.base.ids import SequenceId
from lineclear.schedule.sequence import Sequence, SequenceState


class Queues:
    """All sequences that have not ended."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.receiving: list[Sequence] = []
        """Those whose prompt is computed elsewhere, in no order."""
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        """Of all sequences at their first admission, as is the next."""
        self.num_cached_prompt_tokens = 0
        self._sequences: dict[SequenceId, Sequence] = {}
        self._num_arrivals = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def get(self, sequence_id: SequenceId) -> Sequence | None:
        """Return a sequence that has not ended."""
        return self._sequences.get(sequence_id)

    def add(self, sequence: Sequence) -> None:
        """Take in a new sequence as the youngest.

        Raises: InvariantError if it is not new.
        """
        if sequence.sequence_id in self._sequences or sequence.state is not SequenceState.WAITING:
            raise InvariantError(f"sequence {sequence.sequence_id} is added twice")
        self._num_arrivals += 1
        sequence.arrival = self._num_arrivals
        self._sequences[sequence.sequence_id] = sequence
        self.waiting.append(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Let a waiting sequence run; its prefix is in its block table."""
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_arrival)
        sequence.state = SequenceState.RUNNING
        self._count_prompt(sequence)

    def receive(self, sequence: Sequence) -> None:
        """Let a waiting sequence receive its prompt's KV; its prefix is in its block table."""
        self.waiting.remove(sequence)
        self.receiving.append(sequence)
        sequence.state = SequenceState.RECEIVING
        self._count_prompt(sequence)

    def arrive(self, sequence: Sequence) -> None:
        """Let a receiving sequence run: all is there."""
        self.receiving.remove(sequence)
        insort(self.running, sequence, key=_arrival)
        sequence.state = SequenceState.RUNNING

    def return_to_wait(self, sequence: Sequence) -> None:
        """Send a receiving sequence back to wait, before all that arrived after it: it will not come."""
        self.receiving.remove(sequence)
        insort(self.waiting, sequence, key=_arrival)
        sequence.state = SequenceState.WAITING

    def preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to wait, before all that arrived after it."""
        self.running.remove(sequence)
        insort(self.waiting, sequence, key=_arrival)
        sequence.state = SequenceState.WAITING
        sequence.draft_token_ids = []
        sequence.num_preemptions += 1
        self.num_preemptions += 1

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence.

        Raises: InvariantError if it has ended before.
        """
        if self._sequences.pop(sequence.sequence_id, None) is not sequence:
            raise InvariantError(f"sequence {sequence.sequence_id} ends twice")
        self._queue_of(sequence).remove(sequence)
        sequence.state = SequenceState.FINISHED
        sequence.draft_token_ids = []

    def check(self) -> None:
        """Compare the queues with each other and with what their sequences say.

        Raises: InvariantError if they differ.
        """
        for queue, state in ((self.waiting, SequenceState.WAITING), (self.running, SequenceState.RUNNING)):
            _require(queue == sorted(queue, key=_arrival), f"{state.value} sequences are out of order")
            _require(all(sequence.state is state for sequence in queue), f"a sequence is not {state.value}")
        is_receiving = all(sequence.state is SequenceState.RECEIVING for sequence in self.receiving)
        _require(is_receiving, "a sequence is not receiving")
        _require(not any(len(sequence.block_table) for sequence in self.waiting), "a waiting sequence has blocks")
        ids = sorted(sequence.sequence_id for sequence in self.waiting + self.running + self.receiving)
        _require(ids == sorted(self._sequences), "a sequence is lost, or in two queues")

    def _count_prompt(self, sequence: Sequence) -> None:
        """Count a prompt when its sequence leaves the queue for the first time."""
        if sequence.is_counted:
            return
        sequence.is_counted = True
        sequence.num_cached_tokens = sequence.num_computed_tokens
        self.num_prompt_tokens += sequence.num_prompt_tokens
        self.num_cached_prompt_tokens += sequence.num_cached_tokens

    def _queue_of(self, sequence: Sequence) -> list[Sequence]:
        match sequence.state:
            case SequenceState.WAITING | SequenceState.FINISHED:
                return self.waiting
            case SequenceState.RUNNING:
                return self.running
            case SequenceState.RECEIVING:
                return self.receiving
            case _:
                assert_never(sequence.state)


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _require(ok: bool, broken: str) -> None:
    if not ok:
        raise InvariantError(f"queues: {broken}")
