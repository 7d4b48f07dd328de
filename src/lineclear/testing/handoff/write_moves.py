"""What can happen to writes: they are posted, land, and are reported, or not."""

from collections.abc import Iterator
from functools import partial

from lineclear.kv.pool import Holder
from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.receiver import ReceiverPhase
from lineclear.testing.explorer import Move, MoveKind, Violation
from lineclear.testing.handoff.shells import Shells, writer_holder
from lineclear.testing.handoff.world import Landing, World, Write, WriteState, spend, with_rank, with_write


def write_moves(shells: Shells, world: World) -> Iterator[Move[World]]:
    """Everything that can happen to each write."""
    for write in world.writes:
        if write.peer in world.decode.revoked:
            yield from _revoked_moves(shells, world, write)
        else:
            yield from _free_moves(shells, world, write)


def _revoked_moves(shells: Shells, world: World, write: Write) -> Iterator[Move[World]]:
    """Nothing of a revoked life lands any more, and its transport says so, sooner or later."""
    match write.state:
        case WriteState.COUNTED:
            yield from _counted_moves(shells, world, write)
        case WriteState.POSTED | WriteState.STOPPED:
            yield _end(shells, world, write, ok=False)
        case WriteState.LANDED:
            yield _end(shells, world, write, ok=True)
        case WriteState.ADRIFT:
            yield _answer_late(shells, world, write, ok=False)
        case WriteState.BEACHED:
            yield _answer_late(shells, world, write, ok=True)
        case WriteState.ORPHANED:
            pass


def _free_moves(shells: Shells, world: World, write: Write) -> Iterator[Move[World]]:
    match write.state:
        case WriteState.COUNTED:
            yield from _counted_moves(shells, world, write)
        case WriteState.POSTED:
            yield _land(shells, world, write, MoveKind.FAIR, WriteState.LANDED)
            if world.budget.errors:
                zombie = None if shells.physics.error_means_ended else WriteState.ORPHANED
                report = partial(_report, shells, spend(world, errors=1), write, ok=False, then=zombie)
                yield Move(("write fails", write), MoveKind.FAULT, report)
            yield from _unknown(shells, world, write, WriteState.ADRIFT)
        case WriteState.LANDED:
            yield _end(shells, world, write, ok=True)
            yield from _unknown(shells, world, write, WriteState.BEACHED)
        case WriteState.STOPPED:
            yield _end(shells, world, write, ok=False)
        case WriteState.ADRIFT:
            yield _land(shells, world, write, MoveKind.CHOICE, WriteState.BEACHED)
            yield _answer_late(shells, world, write, ok=False)
        case WriteState.BEACHED:
            yield _answer_late(shells, world, write, ok=True)
        case WriteState.ORPHANED:
            yield _land(shells, world, write, MoveKind.CHOICE, None)


def _counted_moves(shells: Shells, world: World, write: Write) -> Iterator[Move[World]]:
    yield Move(("post", write), MoveKind.FAIR, partial(_post, shells, world, write))
    record = world.ranks[write.peer.rank].sender.find(write.epoch)
    if record is None or not record.is_open:
        report = partial(_report, shells, world, write, ok=False)
        yield Move(("never post", write), MoveKind.CHOICE, report)


def _post(shells: Shells, world: World, write: Write) -> World:
    world = with_write(world, write, WriteState.POSTED)
    on_post, rank = shells.machines.on_post, world.ranks[write.peer.rank]
    if on_post is None:
        return world
    return with_rank(world, write.peer.rank, rank._replace(sender=on_post(rank.sender, write)))


def _land(shells: Shells, world: World, write: Write, kind: MoveKind, then: WriteState | None) -> Move[World]:
    return Move(("land", write), kind, partial(_do_land, shells, world, write, then))


def _end(shells: Shells, world: World, write: Write, *, ok: bool) -> Move[World]:
    return Move(("write ends", write, ok), MoveKind.FAIR, partial(_report, shells, world, write, ok=ok))


def _answer_late(shells: Shells, world: World, write: Write, *, ok: bool) -> Move[World]:
    return Move(("late answer", write, ok), MoveKind.PROOF, partial(_report, shells, world, write, ok=ok))


def _unknown(shells: Shells, world: World, write: Write, then: WriteState) -> Iterator[Move[World]]:
    if world.budget.unknowns:
        yield Move(("write unknown", write), MoveKind.FAULT, partial(_give_up, shells, world, write, then))


def _give_up(shells: Shells, world: World, write: Write, then: WriteState) -> World:
    world = with_write(spend(world, unknowns=1), write, then)
    return shells.to_sender(world, write.peer.rank, tx.WriteUnknown(write.epoch, write.write_id))


def _report(shells: Shells, world: World, write: Write, *, ok: bool, then: WriteState | None = None) -> World:
    event = tx.WriteEnded(write.epoch, write.write_id, ok)
    return shells.to_sender(with_write(world, write, then), write.peer.rank, event)


def _do_land(shells: Shells, world: World, write: Write, then: WriteState | None) -> World:
    _check_target(shells, world, write)
    _check_source(shells, world, write)
    decode = world.decode
    waits = any(each.epoch == write.epoch and each.phase is ReceiverPhase.WAITING for each in decode.receivers)
    if waits and write.memory == decode.memory:
        landing = Landing(write.epoch, write.peer, write.position)
        world = world._replace(decode=decode._replace(landed=decode.landed | {landing}))
    return with_write(world, write, then)


def _check_target(shells: Shells, world: World, write: Write) -> None:
    if write.memory != world.decode.memory:
        return  # an older life's, which nobody reads
    holders = world.blocks[write.block_id]
    own = shells.holders_of(write.epoch) if write.epoch.life == world.decode.life else frozenset[Holder]()
    if holders - own:
        raise Violation("P1: a write landed in a block that another handoff has")
    if shells.physics.strict and writer_holder(write.epoch, write.peer) not in holders & own:
        raise Violation("P1: a write landed in a block without its writer hold")


def _check_source(shells: Shells, world: World, write: Write) -> None:
    rank = world.ranks[write.peer.rank]
    if rank.sender.peer != write.peer:
        return  # an older life's memory
    source = rank.sources[write.slot]
    if source is not None and source.epoch != write.epoch:
        raise Violation("S1: a write read a source block that another handoff has")
    if shells.physics.strict and (source is None or not source.is_held):
        raise Violation("S1: a write read a source block without its reader hold")
