"""What rank 0 adds to a worker's parts, so that the other ranks do what they do.

    Engine ── run, forget ──▶ LeaderRunner ──▶ Runner                 tells: SequenceBegun, RunPlan, SequenceEnded
           ── start, poll ──▶ LeaderCopies ──▶ Copies                 tells: BeginCopies, hears: CopyEnded
    PrefillDesk ────────────▶ FollowerLinks                           tells: OrderBegun …, hears: SourceReleased

The engine and the desk are those of a worker that is alone.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from lineclear.base.errors import PeerError, RankLostError
from lineclear.base.ids import SequenceId
from lineclear.engine.bell import wait_readable
from lineclear.engine.engine import PlanRunner
from lineclear.engine.readiness import Readiness
from lineclear.engine.tier_copies import Copies, CopyStatistics, OnEarlyRead
from lineclear.kv.copies import Copy, CopyEnd, CopyId, DiskDelete, DiskRead, DiskWrite
from lineclear.kv.prefix_key import PrefixKey
from lineclear.protocol.handoff.ranks import SourceReleased
from lineclear.schedule.plan import ChunkResult, Plan
from lineclear.schedule.sequence import Sequence
from lineclear.transport.link import Link
from lineclear.worker.desk import LeaveRequest, LifeOverError
from lineclear.worker.ranks.messages import (
    AskLeave,
    BeginCopies,
    CopyEnded,
    FilesFound,
    FromFollower,
    FromLeader,
    Leave,
    RankArrived,
    RankHello,
    RankReady,
    RunPlan,
    SequenceBegun,
    SequenceEnded,
)

FollowerLink = Link[FromFollower, FromLeader]


class FollowerLinks:
    """The links to all other ranks.

    Args:
        links: by rank. Owns: closes them.
    """

    def __init__(self, links: Mapping[int, FollowerLink]) -> None:
        self._links = dict(links)
        self._ends: list[tuple[int, CopyEnd]] = []
        self._released: list[tuple[int, SourceReleased]] = []
        self._found: list[PrefixKey] = []
        self.num_arrived = 0
        """Ranks that have told so since they were last let go on."""
        self.wants_to_leave = False
        """Whether one of them was asked to leave."""
        self.peer_endpoints: dict[int, str] = {}
        """Where decode workers reach the ranks that are ready."""

    @property
    def count(self) -> int:
        """Ranks that follow."""
        return len(self._links)

    def tell(self, message: FromLeader) -> None:
        """Send to all of them.

        Raises:
            LifeOverError: One is gone.
        """
        for rank, link in self._links.items():
            with _ending_life(rank):
                link.send(message)

    def poll(self, timeout_seconds: float = 0.0) -> None:
        """Take in what they say, waiting so long for the first of it.

        Raises:
            LifeOverError: One is gone, or speaks nonsense.
        """
        if timeout_seconds > 0:
            due = min(link.seconds_until_due() for link in self._links.values())
            wait_readable(self.filenos(), min(timeout_seconds, due))
        for rank, link in self._links.items():
            with _ending_life(rank):
                for message in link.poll(0):
                    self._take_in(rank, message)

    def take_ends(self) -> list[tuple[int, CopyEnd]]:
        """Return, once, the ends of copies that they have told, each with its rank."""
        ends, self._ends = self._ends, []
        return ends

    def take_released(self) -> list[tuple[int, SourceReleased]]:
        """Return, once, the releases that they have told, each with its rank."""
        released, self._released = self._released, []
        return released

    def take_found(self) -> list[PrefixKey]:
        """Return, once, the files that they have found at the start."""
        found, self._found = self._found, []
        return found

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `poll` has something to do."""
        return [link.fileno() for link in self._links.values()]

    def seconds_until_due(self) -> float:
        """How long `poll` may be put off while nothing is readable."""
        return min(link.seconds_until_due() for link in self._links.values())

    def close(self) -> None:
        """Let them go: there is nothing more to do."""
        for link in self._links.values():
            with contextlib.suppress(ConnectionError):
                link.send(Leave())
            link.close()

    def _take_in(self, rank: int, message: FromFollower) -> None:
        match message:
            case CopyEnded(end):
                self._ends.append((rank, end))
            case SourceReleased():
                self._released.append((rank, message))
            case FilesFound(keys):
                self._found += keys
            case RankArrived():
                self.num_arrived += 1
            case AskLeave():
                self.wants_to_leave = True
            case RankReady(peer_endpoint):
                self.peer_endpoints[rank] = peer_endpoint
            case RankHello():
                raise PeerError("a hello comes twice")
            case _:
                assert_never(message)


class LeaderLeave:
    """A wish to leave, of whoever started rank 0 or another rank."""

    def __init__(self, own: LeaveRequest, links: FollowerLinks) -> None:
        self._own = own
        self._links = links

    @property
    def is_set(self) -> bool:
        """Whether somebody wants this instance to leave."""
        return self._own.is_set or self._links.wants_to_leave

    def fileno(self) -> int:
        """A descriptor that is readable once rank 0 is to leave; the others say so on their links."""
        return self._own.fileno()


class LeaderRunner:
    """A runner that lets the other ranks run the same."""

    def __init__(self, runner: PlanRunner, links: FollowerLinks) -> None:
        self._runner = runner
        self._links = links
        self._told: set[SequenceId] = set()
        """Sequences that the others know."""

    def run(
        self, plan: Plan, sequences: Mapping[SequenceId, Sequence], readiness: Readiness
    ) -> dict[SequenceId, ChunkResult]:
        """Execute a plan with all ranks.

        Raises:
            LifeOverError: One is gone.
        """
        for chunk in plan.chunks:
            if chunk.sequence_id not in self._told:
                self._told.add(chunk.sequence_id)
                sequence = sequences[chunk.sequence_id]
                self._links.tell(SequenceBegun(chunk.sequence_id, sequence.tokens.tolist()))
        tables = tuple(sequences[chunk.sequence_id].block_table.packed().tobytes() for chunk in plan.chunks)
        self._links.tell(RunPlan(plan.chunks, tables, plan.num_tokens, plan.load_ids))
        try:
            return self._runner.run(plan, sequences, readiness)
        except RankLostError as error:
            raise LifeOverError(str(error)) from error

    def forget(self, sequence_id: SequenceId) -> None:
        """Drop what is kept for a sequence, on all ranks."""
        self._runner.forget(sequence_id)
        if sequence_id in self._told:
            self._told.remove(sequence_id)
            self._links.tell(SequenceEnded(sequence_id))


@dataclass(slots=True)
class _Shared:
    """A copy that not all ranks have ended."""

    copy: Copy
    waits_for: set[int]
    """Ranks."""
    ends: list[CopyEnd]

    def joint_end(self) -> CopyEnd:
        """What all ranks have done of it; the failure is that of a rank that has done least."""
        return min(self.ends, key=lambda end: (end.num_done, end.failure is None))


class LeaderCopies:
    """Copies between tiers on all ranks: one has ended when it has on every rank.

    A file is of use only where every rank has its own, so what one rank has failed to write or to find is deleted on
    the others.

    Args:
        copies: this rank's.
        known: what this rank had on disk at the start.
        patience_seconds: how long the others may take longer over a load that a pass has read.
    """

    def __init__(
        self,
        copies: Copies,
        links: FollowerLinks,
        known: Collection[PrefixKey],
        patience_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._copies = copies
        self._links = links
        self._known = frozenset(known)
        self._patience_seconds = patience_seconds
        self._now = now
        self._shared: dict[CopyId, _Shared] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no copy is under way on any rank."""
        return self._copies.is_idle and not self._shared

    def start(self, copies: Iterable[Copy]) -> None:
        """Begin copies on all ranks, in order."""
        copies = tuple(copies)
        if not copies:
            return
        for copy in copies:
            if not isinstance(copy, DiskDelete):
                self._shared[copy.copy_id] = _Shared(copy, set(range(self._links.count + 1)), [])
        self._links.tell(BeginCopies(copies))
        self._copies.start(copies)

    def readiness(self, load_ids: Collection[CopyId]) -> Readiness:
        """What this rank's part of a pass waits with."""
        return self._copies.readiness(load_ids)

    def watch_reads(self, on_early: OnEarlyRead) -> None:
        """Watch this rank's part of passes."""
        self._copies.watch_reads(on_early)

    def settle(self, load_ids: Collection[CopyId]) -> list[CopyEnd]:
        """Wait until loads have ended on all ranks, and return their ends.

        Raises:
            LifeOverError: A rank is gone, or takes for ever.
        """
        for end in self._copies.settle(load_ids):
            self._note(0, end)
        deadline = self._now() + self._patience_seconds
        while any(self._shared[load_id].waits_for for load_id in load_ids):
            left = deadline - self._now()
            if left <= 0:
                raise LifeOverError(f"a load has not ended on all ranks within {self._patience_seconds:g} s")
            self._links.poll(left)
            self._note_others()
        return [self._take(load_id) for load_id in load_ids]

    def poll(self) -> list[CopyEnd]:
        """Return the ends of what has ended on all ranks since the last call."""
        for end in self._copies.poll():
            self._note(0, end)
        self._links.poll()
        self._note_others()
        strays = [key for key in self._links.take_found() if key not in self._known]
        if strays:
            self._delete(tuple(strays))
        return [self._take(copy_id) for copy_id, shared in list(self._shared.items()) if not shared.waits_for]

    def take_found(self) -> list[PrefixKey]:
        """Return what this rank's look at its disk has found; a guess for the others, which a read corrects."""
        return self._copies.take_found()

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `poll` may have something."""
        return [*self._copies.filenos(), *self._links.filenos()]

    def statistics(self) -> CopyStatistics:
        """This rank's totals."""
        return self._copies.statistics()

    def close(self) -> None:
        """End this rank's threads."""
        self._copies.close()

    def _note_others(self) -> None:
        for rank, end in self._links.take_ends():
            self._note(rank, end)

    def _note(self, rank: int, end: CopyEnd) -> None:
        shared = self._shared.get(end.copy_id)
        if shared is None or rank not in shared.waits_for:
            raise LifeOverError(f"rank {rank} ends copy {end.copy_id}, which it does not execute")
        shared.waits_for.remove(rank)
        shared.ends.append(end)

    def _take(self, copy_id: CopyId) -> CopyEnd:
        shared = self._shared.pop(copy_id)
        end = shared.joint_end()
        if any(each.num_done > end.num_done for each in shared.ends):
            if isinstance(shared.copy, DiskWrite):
                self._delete(shared.copy.keys[end.num_done :])
            elif isinstance(shared.copy, DiskRead):
                self._delete(shared.copy.keys[end.num_done :][:1])
        return end

    def _delete(self, keys: tuple[PrefixKey, ...]) -> None:
        self.start((DiskDelete(keys),))


@contextlib.contextmanager
def _ending_life(rank: int) -> Generator[None]:
    try:
        yield
    except (ConnectionError, PeerError) as error:
        raise LifeOverError(f"rank {rank} of this instance is gone: {error}") from error
