"""The worker's loop: messages in, engine steps, outputs out.

One turn::

    poll ──▶ messages: submit, cancel, drain, questions ──▶ desk ──▶ one engine step ──▶ StepOutputs

While the engine has work the poll does not wait, so a cancel is seen between any two steps; without work the process
sleeps in the poll, which also ends for what the desk waits for. A worker that takes part in handoffs has a desk, and
serves it while there is no gateway as well: other workers do not depend on ours.

Invariants:
1. Every SubmitSequence of a gateway that stays is answered by exactly one output with a finish reason, also while
   draining.
2. A worker that is asked to leave says so to its gateway, once on each link, and ends when it is drained.
3. When the gateway is lost, everything it had asked for is cancelled and has ended before another gateway is served;
   nothing of it is sent to anybody.
4. `Drained` is sent when nothing is left, and only after the engine's `check`.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Protocol, assert_never

import msgspec

from lineclear.base.errors import LineclearError, PeerError
from lineclear.base.ids import SequenceId, WorkerId
from lineclear.engine.bell import wait_readable
from lineclear.protocol import wire
from lineclear.protocol.handoff.names import Peer
from lineclear.protocol.verdicts import Verdict
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.sequence import Sequence, Terms
from lineclear.worker.desk import Desk, LeaveRequest

logger = logging.getLogger(__name__)

IDLE_POLL_SECONDS = 3600.0
"""The poll ends earlier for a message or a heartbeat."""

STATISTICS_SECONDS = 1.0
"""How often a busy worker reports its figures."""


class WorkerRefusedError(LineclearError):
    """The gateway has workers or a model that this one does not fit, or another worker of its name."""


class StepEngine(Protocol):
    """What the loop needs of an engine; `lineclear.engine.engine.Engine` is one."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def submit(self, sequence: Sequence) -> None:
        """Accept a sequence; also the ending of one that can never run comes from `step`."""
        ...

    def cancel(self, sequence_id: SequenceId) -> bool:
        """End a sequence; its ending comes from `step`."""
        ...

    def step(self) -> list[SequenceUpdate]:
        """Compute once."""
        ...

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `take_in_copies` may have something to do."""
        ...

    def seconds_until_due(self) -> float:
        """How long `take_in_copies` may be put off while nothing is readable."""
        ...

    def take_in_copies(self) -> None:
        """Take in which copies between the tiers of the cache have ended; there may be work then."""
        ...

    def check(self) -> None:
        """Assert every invariant."""
        ...


class Link(Protocol):
    """What the loop needs of a link; `lineclear.transport.gateway_link.GatewayLink` is one."""

    def poll(self, timeout_seconds: float, wake_filenos: Collection[int] = ()) -> list[wire.ToWorker]:
        """Return the messages that have come, at once if a descriptor is readable; raises ConnectionError when lost."""
        ...

    def send(self, message: wire.ToGateway) -> None:
        """Send a message; raises ConnectionError when the gateway is lost."""
        ...


class WorkerLoop:
    """Serves one gateway after another with one engine."""

    def __init__(
        self,
        engine: StepEngine,
        read_statistics: Callable[[], wire.WorkerStatistics],
        now: Callable[[], float] = time.monotonic,
        *,
        desk: Desk | None = None,
        leave: LeaveRequest | None = None,
    ) -> None:
        self._engine = engine
        self._leave = leave
        self._has_said_leaving = False
        self._desk = desk
        self._read_statistics = read_statistics
        self._now = now
        self._wants_draft_counts: dict[SequenceId, bool] = {}
        """Every sequence that was accepted and has not ended."""
        self._is_draining = False
        self._owes_drained = False
        self._statistics_due = now()

    @property
    def is_drained(self) -> bool:
        """Whether the gateway has been told that nothing is left and nothing more is accepted."""
        return self._is_draining and not self._owes_drained

    @property
    def has_left(self) -> bool:
        """Whether this worker was asked to leave, and has nothing left to do."""
        return self._is_leaving and self.is_drained

    @property
    def _is_leaving(self) -> bool:
        return self._leave is not None and self._leave.is_set

    def serve(self, link: Link) -> None:
        """Serve a gateway until it is lost, or until this worker has left.

        Raises:
            ConnectionError: The gateway is lost; the engine is idle again.
            PeerError: The gateway sent nonsense; the engine is idle again.
            WorkerRefusedError: The gateway will never give it anything.
        """
        self._is_draining = self._owes_drained = self._has_said_leaving = False
        try:
            while not self.has_left:
                self.turn(link)
        except (ConnectionError, PeerError):
            self._abandon()
            raise

    def turn(self, link: Link) -> None:
        """Poll once, step once, send what came of it."""
        outputs: list[wire.SequenceOutput] = []
        for message in link.poll(self._patience_seconds(IDLE_POLL_SECONDS), self._wake_filenos()):
            self._receive(message, link, outputs)
        if self._is_leaving and not self._has_said_leaving:
            self._has_said_leaving = True
            link.send(wire.Leaving())
        self._serve_desk()
        self._engine.take_in_copies()
        if self._engine.has_work:
            outputs += [self._output(update) for update in self._step() if self._is_of_gateway(update)]
            self._report_statistics(link)
        if outputs:
            link.send(wire.StepOutputs(outputs=outputs))
        if self._owes_drained and self._is_idle:
            self._finish_drain(link)

    def turn_alone(self, timeout_seconds: float) -> bool:
        """A turn without a gateway: wait for the desk at most so long, serve it, and step for it.

        Returns: whether this worker was asked to leave and nothing holds it.
        """
        wait_readable(self._wake_filenos(), self._patience_seconds(timeout_seconds))
        self._serve_desk()
        self._engine.take_in_copies()
        if self._engine.has_work:
            self._step()
        return self._is_leaving and self._is_idle

    def _receive(self, message: wire.ToWorker, link: Link, outputs: list[wire.SequenceOutput]) -> None:
        match message:
            case wire.SubmitSequence() if self._is_draining:
                outputs.append(_refusal(message, "the worker is draining"))
            case wire.SubmitSequence():
                self._submit(message)
            case wire.CancelSequence(sequence_id=sequence_id):
                self._engine.cancel(SequenceId(sequence_id))
            case wire.QueryStatistics() | wire.CheckInvariants() | wire.ReleaseQuarantine():
                link.send(self._answer(message))
            case wire.Refused(reason=reason):
                raise WorkerRefusedError(reason)
            case wire.PrefillInstances(endpoints=endpoints):
                if self._desk is None:
                    raise PeerError("prefill instances were announced to a worker that computes prompts itself")
                self._desk.on_instances(endpoints)
            case wire.Drain():
                self._is_draining = self._owes_drained = True
            case _:
                assert_never(message)

    def _answer(
        self, question: wire.QueryStatistics | wire.CheckInvariants | wire.ReleaseQuarantine
    ) -> wire.WorkerStatistics | wire.InvariantsChecked | wire.QuarantineReleased:
        match question:
            case wire.QueryStatistics():
                return self._read_statistics()
            case wire.CheckInvariants():
                return self._check()
            case wire.ReleaseQuarantine():
                return wire.QuarantineReleased(num_blocks=self._release_quarantine(question))

    def _submit(self, message: wire.SubmitSequence) -> None:
        sequence_id = SequenceId(message.sequence_id)
        if sequence_id in self._wants_draft_counts:
            raise PeerError(f"sequence {sequence_id} is submitted twice")
        terms = Terms(
            uses_cache=message.use_cache,
            is_guarded=message.guard,
            prefer_prefill=message.prefer_prefill,
            avoid_prefill=frozenset(message.avoid_prefill),
        )
        sequence = Sequence(sequence_id, message.prompt_token_ids, message.sampling, terms=terms)
        if self._desk is not None:
            self._desk.submit(sequence)
        self._engine.submit(sequence)
        self._wants_draft_counts[sequence_id] = message.want_draft_counts

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is left to end, and the engine can be checked."""
        is_settled = self._desk is None or self._desk.is_settled
        return is_settled and not self._wants_draft_counts and not self._engine.has_work

    def _patience_seconds(self, longest: float) -> float:
        """How long a poll may sleep."""
        if self._engine.has_work:
            return 0.0
        longest = min(longest, self._engine.seconds_until_due())
        return longest if self._desk is None else min(longest, self._desk.seconds_until_due())

    def _wake_filenos(self) -> Collection[int]:
        filenos = list(self._engine.filenos())
        if self._desk is not None:
            filenos += self._desk.filenos()
        if self._leave is not None and not self._leave.is_set:  # it stays readable: once is enough
            filenos.append(self._leave.fileno())
        return filenos

    def _serve_desk(self) -> None:
        if self._desk is not None:
            self._desk.turn()

    def _step(self) -> list[SequenceUpdate]:
        updates = self._engine.step()
        if self._desk is not None:
            self._desk.on_updates(updates)
        return updates

    def _is_of_gateway(self, update: SequenceUpdate) -> bool:
        return update.sequence.sequence_id in self._wants_draft_counts

    def _output(self, update: SequenceUpdate) -> wire.SequenceOutput:
        sequence = update.sequence
        has_ended = update.finish_reason is not None
        if update.verdict is not None:
            logger.warning("verdict on sequence %d: %s", sequence.sequence_id, _as_json(update.verdict))
        wants_draft_counts = has_ended and self._wants_draft_counts.pop(sequence.sequence_id)
        return wire.SequenceOutput(
            sequence_id=sequence.sequence_id,
            token_ids=list(update.token_ids),
            logprobs=None if update.logprobs is None else list(update.logprobs),
            finish_reason=update.finish_reason,
            stop_token_id=update.stop_token_id,
            error=update.error,
            num_cached_tokens=sequence.num_cached_tokens,
            draft=sequence.draft_counts if wants_draft_counts else None,
            verdict=update.verdict,
        )

    def _report_statistics(self, link: Link) -> None:
        if self._now() >= self._statistics_due:
            self._statistics_due = self._now() + STATISTICS_SECONDS
            link.send(self._read_statistics())

    def _check(self) -> wire.InvariantsChecked:
        try:
            self._engine.check()
        except AssertionError as error:
            return wire.InvariantsChecked(ok=False, detail=str(error))
        return wire.InvariantsChecked(ok=True, detail="")

    def _release_quarantine(self, message: wire.ReleaseQuarantine) -> int:
        if self._desk is None:
            return 0
        return self._desk.vouch(Peer(WorkerId(message.worker_id), message.rank, message.life))

    def _finish_drain(self, link: Link) -> None:
        """Check and answer; an engine that is not clean ends the process.

        Raises:
            AssertionError: An invariant does not hold.
        """
        self._engine.check()
        self._owes_drained = False
        link.send(wire.Drained())

    def _abandon(self) -> None:
        """Cancel all that the gateway asked for, and step until it has ended."""
        for sequence_id in self._wants_draft_counts:
            self._engine.cancel(sequence_id)
        while self._wants_draft_counts:
            for update in self._step():
                if update.finish_reason is not None:
                    self._wants_draft_counts.pop(update.sequence.sequence_id, None)


def _as_json(verdict: Verdict) -> str:
    return msgspec.json.encode(verdict).decode()


def _refusal(message: wire.SubmitSequence, reason: str) -> wire.SequenceOutput:
    return wire.SequenceOutput(sequence_id=message.sequence_id, finish_reason="error", error=reason)
