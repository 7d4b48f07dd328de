"""Copies between tiers that several ranks execute: they end when all have, with what the least able has done."""

import socket
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pytest

from lineclear.base.ids import BlockId
from lineclear.config.components import LinkConfig
from lineclear.engine.readiness import AlwaysReady, Readiness
from lineclear.engine.tier_copies import CopyStatistics, OnEarlyRead
from lineclear.kv.copies import Copy, CopyEnd, CopyFailure, CopyId, DiskDelete, DiskFind, DiskRead, DiskWrite, Load
from lineclear.kv.prefix_key import PrefixKey
from lineclear.transport.link import Link, Talk
from lineclear.worker.desk import LifeOverError
from lineclear.worker.ranks.follower import LeaderLink
from lineclear.worker.ranks.leader import FollowerLinks, LeaderCopies
from lineclear.worker.ranks.messages import (
    BeginCopies,
    CopyEnded,
    FilesFound,
    RankHello,
    decode_from_follower,
    decode_from_leader,
    encode,
)

KEYS = tuple(PrefixKey(bytes([number]) * 32) for number in range(4))
BLOCKS = tuple(BlockId(number) for number in range(4))
LOAD = Load(CopyId(7), BLOCKS, BLOCKS)


class End(NamedTuple):
    """What a rank has done of a copy of four blocks."""

    num: int
    failure: CopyFailure | None = None


DONE, FULL, MISSING = End(4), End(1, CopyFailure.FULL), End(2, CopyFailure.MISSING)


class OwnCopies:
    """Rank 0's, which end when the test says so."""

    def __init__(self) -> None:
        self.started: list[Copy] = []
        self.ends: list[CopyEnd] = []

    @property
    def is_idle(self) -> bool:
        return True

    def start(self, copies: Iterable[Copy]) -> None:
        self.started += copies

    def readiness(self, load_ids: Collection[CopyId]) -> Readiness:  # noqa: ARG002
        return AlwaysReady()

    def watch_reads(self, on_early: OnEarlyRead) -> None:
        raise NotImplementedError

    def settle(self, load_ids: Collection[CopyId]) -> list[CopyEnd]:
        return [CopyEnd(load_id, len(BLOCKS)) for load_id in load_ids]

    def poll(self) -> list[CopyEnd]:
        ends, self.ends = self.ends, []
        return ends

    def take_found(self) -> list[PrefixKey]:
        return []

    def filenos(self) -> Collection[int]:
        return ()

    def statistics(self) -> CopyStatistics:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Ranks:
    """Rank 0's copies, and the far ends of its links to two others."""

    def __init__(self, known: Collection[PrefixKey] = ()) -> None:
        links, self.others = {}, []
        for rank in (1, 2):
            ours, theirs = socket.socketpair()
            config = LinkConfig()
            links[rank] = Link(ours, Talk("a rank", encode, decode_from_follower), config, time.monotonic)
            other: LeaderLink = Link(theirs, Talk("rank 0", encode, decode_from_leader), config, time.monotonic)
            self.others.append(other)
        self.own = OwnCopies()
        self.links = FollowerLinks(links)
        self.copies = LeaderCopies(self.own, self.links, known, patience_seconds=0.2)

    def heard(self) -> list[Copy]:
        """What both others were told to copy since the last call."""
        first, second = ([copy for message in link.poll(0) for copy in _copies(message)] for link in self.others)
        assert first == second
        return first

    def close(self) -> None:
        self.links.close()
        for link in self.others:
            link.close()


def _copies(message: object) -> tuple[Copy, ...]:
    assert isinstance(message, BeginCopies)
    return message.copies


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks(known=KEYS[:1])
    yield made
    made.close()


def test_a_copy_has_ended_when_it_has_on_every_rank(ranks: Ranks) -> None:
    ranks.copies.start([LOAD])
    assert ranks.heard() == ranks.own.started == [LOAD]
    ranks.own.ends = [CopyEnd(LOAD.copy_id, 4)]
    ranks.others[0].send(CopyEnded(CopyEnd(LOAD.copy_id, 4)))
    assert ranks.copies.poll() == []
    assert not ranks.copies.is_idle
    ranks.others[1].send(CopyEnded(CopyEnd(LOAD.copy_id, 4)))
    assert ranks.copies.poll() == [CopyEnd(LOAD.copy_id, 4)]
    assert ranks.copies.is_idle


def test_what_one_rank_has_not_copied_is_not_there(ranks: Ranks) -> None:
    ranks.copies.start([LOAD])
    ranks.own.ends = [CopyEnd(LOAD.copy_id, 4)]
    ranks.others[0].send(CopyEnded(CopyEnd(LOAD.copy_id, 0, CopyFailure.COPY)))
    ranks.others[1].send(CopyEnded(CopyEnd(LOAD.copy_id, 4)))
    assert ranks.copies.poll() == [CopyEnd(LOAD.copy_id, 0, CopyFailure.COPY)]


@pytest.mark.parametrize(
    ("copy", "ends", "joint", "deleted"),
    [
        (DiskFind(CopyId(1), KEYS), (End(3), End(1), DONE), End(1), ()),
        (DiskWrite(CopyId(1), KEYS, BLOCKS), (DONE, FULL, DONE), FULL, KEYS[1:]),
        (DiskWrite(CopyId(1), KEYS, BLOCKS), (DONE, DONE, DONE), DONE, ()),
        (DiskRead(CopyId(1), KEYS, BLOCKS), (DONE, DONE, MISSING), MISSING, KEYS[2:3]),
    ],
)
def test_files_that_not_all_ranks_have_are_deleted(
    ranks: Ranks,
    copy: DiskFind | DiskWrite | DiskRead,
    ends: tuple[End, ...],
    joint: End,
    deleted: tuple[PrefixKey, ...],
) -> None:
    ranks.copies.start([copy])
    assert ranks.heard() == [copy]
    own, *others = (CopyEnd(copy.copy_id, *end) for end in ends)
    ranks.own.ends = [own]
    for link, end in zip(ranks.others, others, strict=True):
        link.send(CopyEnded(end))
    assert ranks.copies.poll() == [CopyEnd(copy.copy_id, *joint)]
    assert ranks.heard() == ([DiskDelete(deleted)] if deleted else [])


def test_files_that_rank_0_does_not_know_are_deleted_at_the_start(ranks: Ranks) -> None:
    ranks.others[0].send(FilesFound(list(KEYS[:2])))
    assert ranks.copies.poll() == []
    assert ranks.heard() == [DiskDelete(KEYS[1:2])]


def test_loads_that_a_pass_has_read_are_waited_for(ranks: Ranks) -> None:
    ranks.copies.start([LOAD])
    for link in ranks.others:
        link.send(CopyEnded(CopyEnd(LOAD.copy_id, 4)))
    assert ranks.copies.settle([LOAD.copy_id]) == [CopyEnd(LOAD.copy_id, 4)]


def test_a_rank_that_never_ends_a_load_ends_the_life(ranks: Ranks) -> None:
    ranks.copies.start([LOAD])
    with pytest.raises(LifeOverError, match=r"not ended on all ranks within 0\.2 s"):
        ranks.copies.settle([LOAD.copy_id])


def test_an_end_that_nobody_waits_for_ends_the_life(ranks: Ranks) -> None:
    ranks.others[0].send(CopyEnded(CopyEnd(CopyId(5), 1)))
    with pytest.raises(LifeOverError, match="rank 1 ends copy 5"):
        ranks.copies.poll()


def test_a_rank_that_is_gone_or_speaks_nonsense_ends_the_life(ranks: Ranks) -> None:
    ranks.others[1].send(RankHello(rank=2, num_ranks=3, worker_id="p"))
    with pytest.raises(LifeOverError, match="rank 2 of this instance is gone: a hello comes twice"):
        ranks.links.poll()
    ranks.others[0].close()
    with pytest.raises(LifeOverError, match="rank 1 of this instance is gone"):
        ranks.links.poll()
