"""What can happen at the prefill ranks: chunks are computed, prefill fails, ranks crash and hear of decode's end."""

from collections.abc import Iterator
from functools import partial

from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.names import Epoch
from lineclear.testing.explorer import Move, MoveKind
from lineclear.testing.handoff.shells import Shells
from lineclear.testing.handoff.world import (
    DECODE,
    Rank,
    Source,
    World,
    WriteState,
    peer_of,
    spend,
    with_rank,
    with_source,
)

_ORPHANED_FROM = (WriteState.POSTED, WriteState.ADRIFT, WriteState.ORPHANED)


def rank_moves(shells: Shells, world: World) -> Iterator[Move[World]]:
    """Everything at the ranks, but for messages and reports of writes."""
    for rank_index, rank in enumerate(world.ranks):
        yield from _start_moves(world, rank_index, rank)
        yield from _source_moves(shells, world, rank_index, rank)
        yield from _record_moves(shells, world, rank_index, rank)
        last_life = tx.DecodeGone(DECODE, world.decode.life - 1)
        if shells.physics.decode_death_is_told and _is_behind(world, rank):
            happen = partial(shells.to_sender, world, rank_index, last_life)
            yield Move(("hear of decode's end", rank.sender.peer), MoveKind.FAIR, happen)
        if world.budget.rank_crashes:
            happen = partial(restart_rank, shells, spend(world, rank_crashes=1), rank_index)
            yield Move(("rank crashes", rank.sender.peer), MoveKind.FAULT, happen)


def restart_rank(shells: Shells, world: World, rank_index: int) -> World:
    """Begin a new life of a rank. What the old one posted may still land, unless its access was revoked."""
    peer = world.ranks[rank_index].sender.peer
    reborn = new_rank(shells, rank_index, peer.life + 1)
    is_revoked = peer in world.decode.revoked
    others = [write for write in world.writes if write.peer != peer]
    orphans = [
        write._replace(state=WriteState.ORPHANED)
        for write in world.writes
        if write.peer == peer and write.state in _ORPHANED_FROM and not is_revoked
    ]
    return with_rank(world._replace(writes=tuple(sorted(others + orphans))), rank_index, reborn)


def new_rank(shells: Shells, rank_index: int, life: int) -> Rank:
    """Return a rank that has heard nothing."""
    sender = shells.machines.new_sender(peer_of(rank_index, life))
    return Rank(sender, (), (None,) * shells.scenario.num_sources)


def _start_moves(world: World, rank_index: int, rank: Rank) -> Iterator[Move[World]]:
    if None not in rank.sources:
        return
    for epoch in rank.queue:
        yield Move(("start", rank.sender.peer, epoch), MoveKind.FAIR, partial(_start, world, rank_index, epoch))


def _start(world: World, rank_index: int, epoch: Epoch) -> World:
    rank = world.ranks[rank_index]
    record = rank.sender.find(epoch)
    if record is None:
        return world
    slot = rank.sources.index(None)
    queue = tuple(other for other in rank.queue if other != epoch)
    world = with_rank(world, rank_index, rank._replace(queue=queue))
    return with_source(world, rank_index, slot, Source(epoch, record.work.start, record.work.end, is_held=True))


def _source_moves(shells: Shells, world: World, rank_index: int, rank: Rank) -> Iterator[Move[World]]:
    peer = rank.sender.peer
    for slot, source in enumerate(rank.sources):
        if source is None or source.computed == source.end:
            continue
        compute = partial(_compute, shells, world, rank_index, slot, source)
        yield Move(("compute", peer, source.epoch, source.computed), MoveKind.FAIR, compute)
        record = rank.sender.find(source.epoch)
        if record is None or not record.is_open:
            stop = partial(with_source, world, rank_index, slot, source._replace(computed=source.end))
            yield Move(("stop computing", peer, source.epoch), MoveKind.CHOICE, stop)


def _compute(shells: Shells, world: World, rank_index: int, slot: int, source: Source) -> World:
    end = source.computed + 1
    world = shells.to_sender(world, rank_index, tx.ChunkComputed(source.epoch, end))
    after = world.ranks[rank_index].sources[slot]
    return world if after is None else with_source(world, rank_index, slot, after._replace(computed=end))


def _record_moves(shells: Shells, world: World, rank_index: int, rank: Rank) -> Iterator[Move[World]]:
    peer = rank.sender.peer
    for record in rank.sender.records:
        if record.is_open and world.budget.failures:
            event = tx.PrefillFailed(record.epoch)
            happen = partial(shells.to_sender, spend(world, failures=1), rank_index, event)
            yield Move(("prefill fails", peer, record.epoch), MoveKind.FAULT, happen)
    if shells.scenario.forgets:
        for keep in range(len(rank.sender.done)):
            happen = partial(shells.to_sender, world, rank_index, tx.Trim(keep))
            yield Move(("forget", peer, keep), MoveKind.CHOICE, happen)


def _is_behind(world: World, rank: Rank) -> bool:
    """Whether a record is open, or an answer kept, for a decode life that is over."""
    life = world.decode.life
    is_open = any(record.is_open and record.epoch.life < life for record in rank.sender.records)
    return is_open or any(answer.epoch.life < life for answer in rank.sender.done)
