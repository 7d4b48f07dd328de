"""Who waits and who runs, both oldest first, and how sequences move between the two."""

from bisect import insort

from lineclear.base.errors import InvariantError
from lineclear.base.ids import SequenceId
from lineclear.schedule.sequence import Sequence, SequenceState


class Queues:
    """All sequences that have not ended."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
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
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.num_prompt_tokens += sequence.num_prompt_tokens
            self.num_cached_prompt_tokens += sequence.num_cached_tokens

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
        queue = self.running if sequence.state is SequenceState.RUNNING else self.waiting
        queue.remove(sequence)
        sequence.state = SequenceState.FINISHED
        sequence.draft_token_ids = []

    def check(self) -> None:
        """Compare the queues with each other and with what their sequences say.

        Raises: InvariantError if they differ.
        """
        for queue, state in ((self.waiting, SequenceState.WAITING), (self.running, SequenceState.RUNNING)):
            _require(queue == sorted(queue, key=_arrival), f"{state.value} sequences are out of order")
            _require(all(sequence.state is state for sequence in queue), f"a sequence is not {state.value}")
        _require(not any(len(sequence.block_table) for sequence in self.waiting), "a waiting sequence has blocks")
        ids = sorted(sequence.sequence_id for sequence in self.waiting + self.running)
        _require(ids == sorted(self._sequences), "a sequence is lost, or in both queues")


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _require(ok: bool, broken: str) -> None:
    if not ok:
        raise InvariantError(f"queues: {broken}")
