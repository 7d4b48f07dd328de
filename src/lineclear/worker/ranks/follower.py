"""The loop of every rank but the first: it does what rank 0 says, in that order, and answers for its own memory.

One turn::

    poll ──▶ messages: plans, copies, orders ──▶ desk ──▶ ends of copies

Between two turns it sleeps until rank 0, a decode worker, the writer or a copy has something. It never plans: what its
blocks are for is rank 0's business, and they are rank 0's to hold.
"""

from collections.abc import Callable, Collection
from typing import assert_never

from lineclear.base.errors import InvariantError, PeerError, RankLostError
from lineclear.base.ids import BlockId, SequenceId
from lineclear.engine.engine import PlanRunner
from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.tier_copies import Copies
from lineclear.kv.block_table import BlockTable
from lineclear.protocol.handoff.ranks import OrderBegun, OrderComputed, OrderStopped
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.plan import Plan
from lineclear.schedule.sequence import Sequence
from lineclear.transport.link import Link
from lineclear.worker.desk import LeaveRequest, LifeOverError
from lineclear.worker.follower_desk import FollowerDesk
from lineclear.worker.ranks.messages import (
    AskLeave,
    BeginCopies,
    CopyEnded,
    FromFollower,
    FromLeader,
    GoOn,
    Leave,
    RankRefusal,
    RankWelcome,
    RunPlan,
    SequenceBegun,
    SequenceEnded,
)

LeaderLink = Link[FromLeader, FromFollower]

IDLE_POLL_SECONDS = 3600.0
"""The poll ends earlier for a message or a heartbeat."""


class FollowerLoop:
    """Follows rank 0 until it leaves.

    Args:
        runner: of this rank.
        link: to rank 0.
        desk: sends what this rank owns.
        copies: of this rank; None without tiers.
        leave: of whoever started this rank: rank 0 is told, and decides.
        close: ends what other ranks wait for.
    """

    def __init__(
        self,
        runner: PlanRunner,
        link: LeaderLink,
        desk: FollowerDesk,
        copies: Copies | None,
        leave: LeaveRequest | None,
        close: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._link = link
        self._desk = desk
        self._copies = copies
        self._leave = leave
        self._close = close
        self._sequences: dict[SequenceId, Sequence] = {}
        self._has_asked = False
        self._has_left = False

    def run(self) -> None:
        """Turn until rank 0 leaves.

        Raises:
            LifeOverError: Rank 0 or another rank is gone, or decode workers take nothing of this life any more.
            PeerError: Rank 0 sent nonsense.
        """
        try:
            while not self._has_left:
                self.turn()
        finally:
            self._close()

    def turn(self) -> None:
        """Obey what has come, serve the desk, tell which copies have ended."""
        try:
            for message in self._link.poll(min(IDLE_POLL_SECONDS, self._desk.seconds_until_due()), self._filenos()):
                self._obey(message)
            if self._leave is not None and self._leave.is_set and not self._has_asked:
                self._has_asked = True
                self._link.send(AskLeave())
            self._desk.turn()
            if self._copies is not None:
                for end in self._copies.poll():
                    self._link.send(CopyEnded(end))
        except ConnectionError as error:
            raise LifeOverError(f"rank 0 of this instance is gone: {error}") from error
        except RankLostError as error:
            raise LifeOverError(str(error)) from error

    def _obey(self, message: FromLeader) -> None:
        match message:
            case RunPlan():
                self._run(message)
            case SequenceBegun(sequence_id, token_ids):
                self._sequences[sequence_id] = Sequence(sequence_id, token_ids, SamplingParams(max_tokens=1))
            case SequenceEnded(sequence_id):
                del self._sequences[sequence_id]
                self._runner.forget(sequence_id)
            case BeginCopies(copies):
                self._tiers.start(copies)
            case OrderBegun() | OrderComputed() | OrderStopped():
                self._desk.on_leader(message)
            case Leave():
                self._has_left = True
            case RankWelcome() | RankRefusal() | GoOn():
                raise PeerError(f"{type(message).__name__} comes too late")
            case _:
                assert_never(message)

    def _run(self, message: RunPlan) -> None:
        """This rank's part of a plan; what the loads behind it have brought is told at once."""
        for chunk, table in zip(message.chunks, message.tables, strict=True):
            self._sequences[chunk.sequence_id].block_table = _unpacked(table)
        plan = Plan(message.chunks, message.num_tokens, message.load_ids)
        readiness = self._tiers.readiness(plan.load_ids) if plan.load_ids else AlwaysReady()
        self._runner.run(plan, self._sequences, readiness)
        if plan.load_ids:
            for end in self._tiers.settle(plan.load_ids):
                self._link.send(CopyEnded(end))

    @property
    def _tiers(self) -> Copies:
        if self._copies is None:
            raise InvariantError("rank 0 has tiers and this rank has none")
        return self._copies

    def _filenos(self) -> Collection[int]:
        copies = () if self._copies is None else self._copies.filenos()
        leave = () if self._leave is None or self._has_asked else (self._leave.fileno(),)
        return (*self._desk.filenos(), *copies, *leave)


def _unpacked(table: bytes) -> BlockTable:
    return BlockTable(BlockId(each) for each in memoryview(table).cast("q"))
