"""What can happen at the decode worker: requests come and go, lives end, peers are lost and fenced."""

from collections.abc import Iterator
from functools import partial

from lineclear.kv.pool import Holder
from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff.messages import FailureReason, PrefillWork
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.testing.explorer import Move, MoveKind
from lineclear.testing.handoff.blocks import acquire, release_if_held, try_allocate
from lineclear.testing.handoff.prefill_moves import restart_rank
from lineclear.testing.handoff.shells import Shells, memory_key, sequence_holder, writer_holder
from lineclear.testing.handoff.world import (
    DECODE,
    Decode,
    Request,
    RequestPhase,
    World,
    WriteState,
    peer_of,
    spend,
    with_request,
)


def request_moves(shells: Shells, world: World) -> Iterator[Move[World]]:
    """A request is admitted, stopped, finished."""
    for index, request in enumerate(world.requests):
        match request.phase:
            case RequestPhase.QUEUED:
                if _num_free(world) >= _num_blocks_needed(shells):
                    yield Move(("admit", index), MoveKind.FAIR, partial(_admit, shells, world, index))
                if shells.scenario.stops:
                    ended = request._replace(phase=RequestPhase.ENDED)
                    yield Move(("give up", index), MoveKind.TIMEOUT, partial(with_request, world, index, ended))
            case RequestPhase.RUNNING:
                if shells.scenario.stops:
                    yield Move(("stop", index), MoveKind.TIMEOUT, partial(_stop, shells, world, index, request))
                    if request.attempts > 1:
                        last = request._replace(attempts=1)
                        yield Move(("leave", index), MoveKind.CHOICE, partial(_stop, shells, world, index, last))
            case RequestPhase.DECODING:
                yield Move(("finish", index), MoveKind.FAIR, partial(_finish, world, index))
            case RequestPhase.ENDED | RequestPhase.LOST:
                pass


def membership_moves(shells: Shells, world: World) -> Iterator[Move[World]]:
    """Peers are found out to be over, and fenced; the decode worker crashes."""
    for rank_index in range(len(world.ranks)):
        yield from _peer_moves(shells, world, rank_index)
    if not shells.physics.hold_outlives_timer:
        for receiver in world.decode.receivers:
            if receiver.phase is rx.ReceiverPhase.CLOSING:
                happen = partial(_release_by_timer, shells, world, receiver)
                yield Move(("timer releases", receiver.epoch), MoveKind.TIMEOUT, happen)
    if world.budget.decode_crashes:
        yield Move(("decode crashes",), MoveKind.FAULT, partial(_crash, shells, world))


def _peer_moves(shells: Shells, world: World, rank_index: int) -> Iterator[Move[World]]:
    decode, peer = world.decode, world.ranks[rank_index].sender.peer
    if decode.lives[rank_index] < peer.life:
        yield Move(("hear of life", peer), MoveKind.FAIR, partial(_learn, shells, world, peer))
    for life in range(peer.life):
        over = peer_of(rank_index, life)
        if any(over in receiver.unproven for receiver in decode.receivers):
            yield Move(("fence", over), MoveKind.PROOF, partial(_fence, shells, world, over))
    if shells.scenario.live_fences and _is_owed(world, peer):
        yield Move(("revoke", peer), MoveKind.PROOF, partial(_revoke, shells, world, peer))
    if decode.lives[rank_index] > peer.life:
        yield Move(("start anew", peer), MoveKind.FAIR, partial(restart_rank, shells, world, rank_index))


def writers_of(receivers: tuple[rx.Receiver, ...]) -> Iterator[tuple[int, Holder]]:
    """Yield each block that writers still hold by right, with the holder."""
    for receiver in receivers:
        for peer in receiver.unproven:
            holder = writer_holder(receiver.epoch, peer)
            yield from ((block_id, holder) for block_id in receiver.work.block_ids)


def _admit(shells: Shells, world: World, index: int) -> World:
    decode = world.decode
    epoch = Epoch(DECODE, decode.life, decode.next_number)
    peers = tuple(peer_of(rank, life) for rank, life in enumerate(decode.lives))
    taken = try_allocate(world.blocks, _num_blocks_needed(shells), writer_holder(epoch, peers[0]))
    if taken is None:
        return world
    blocks, block_ids = taken
    for peer in peers[1:]:
        blocks = acquire(blocks, block_ids, writer_holder(epoch, peer))
    receiver = rx.Receiver(epoch, _work(shells, block_ids, decode.memory), peers)
    receivers = (*decode.receivers, receiver)
    decode = decode._replace(next_number=decode.next_number + 1, receivers=receivers)
    request = world.requests[index]._replace(phase=RequestPhase.RUNNING, epoch=epoch)
    world = with_request(world._replace(decode=decode, blocks=blocks), index, request)
    return shells.to_receiver(world, receiver, rx.Begin())


def _work(shells: Shells, block_ids: tuple[int, ...], memory: int) -> PrefillWork:
    return PrefillWork(
        prompt_token_ids=tuple(range(shells.scenario.num_tokens + 1)),
        block_ids=block_ids,
        memory_key=memory_key(memory),
        sequence_id=0,
    )


def _num_blocks_needed(shells: Shells) -> int:
    return -(-shells.scenario.num_tokens // shells.block_size)


def _num_free(world: World) -> int:
    return sum(not holders for holders in world.blocks)


def _stop(shells: Shells, world: World, index: int, request: Request) -> World:
    receiver = next(receiver for receiver in world.decode.receivers if receiver.epoch == request.epoch)
    reason = FailureReason.DEADLINE if request == world.requests[index] else FailureReason.CANCELLED
    return shells.to_receiver(with_request(world, index, request), receiver, rx.Stop(reason))


def _finish(world: World, index: int) -> World:
    request = world.requests[index]
    if request.epoch is None:
        return world
    blocks = release_if_held(world.blocks, tuple(range(len(world.blocks))), sequence_holder(request.epoch))
    ended = request._replace(phase=RequestPhase.ENDED)
    return with_request(world._replace(blocks=blocks), index, ended)


def _learn(shells: Shells, world: World, peer: Peer) -> World:
    """Send no order to older lives of a rank any more, and tell the receivers."""
    decode = world.decode
    lost = peer_of(peer.rank, decode.lives[peer.rank])
    lives = (*decode.lives[: peer.rank], peer.life, *decode.lives[peer.rank + 1 :])
    return shells.to_receivers(world._replace(decode=decode._replace(lives=lives)), rx.PeerLost(lost))


def _fence(shells: Shells, world: World, peer: Peer) -> World:
    if world.decode.lives[peer.rank] <= peer.life:
        world = _learn(shells, world, peer_of(peer.rank, peer.life + 1))
    if shells.physics.fence_stops_writes:
        world = world._replace(writes=tuple(write for write in world.writes if write.peer != peer))
    return shells.to_receivers(world, rx.Fenced(peer))


def _is_owed(world: World, peer: Peer) -> bool:
    receivers = world.decode.receivers
    return any(peer in each.unproven and each.phase is rx.ReceiverPhase.CLOSING for each in receivers)


def _revoke(shells: Shells, world: World, peer: Peer) -> World:
    """Fence a living rank: its life ends as a sender, though its process runs."""
    world = _learn(shells, world, peer_of(peer.rank, peer.life + 1))
    writes = tuple(
        write._replace(state=WriteState.STOPPED) if write.peer == peer and write.state is WriteState.POSTED else write
        for write in world.writes
    )
    world = world._replace(writes=tuple(sorted(writes)))
    if shells.physics.fence_is_for_good:
        world = world._replace(decode=world.decode._replace(revoked=world.decode.revoked | {peer}))
    return shells.to_receivers(world, rx.Fenced(peer))


def _release_by_timer(shells: Shells, world: World, receiver: rx.Receiver) -> World:
    world = shells.release_writers(world, receiver)
    receivers = tuple(other for other in world.decode.receivers if other is not receiver)
    return world._replace(decode=world.decode._replace(receivers=receivers))


def _crash(shells: Shells, world: World) -> World:
    """The gateway ends what ran there; the next life has new memory, all of it free."""
    physics, decode = shells.physics, world.decode
    phase = RequestPhase.ENDED if physics.gateway_ends_orphans else RequestPhase.LOST
    over = Request(phase, None, 0)
    kept = (RequestPhase.QUEUED, RequestPhase.ENDED)
    requests = tuple(request if request.phase in kept else over for request in world.requests)
    reborn = Decode(
        life=decode.life + physics.fresh_life,
        memory=decode.memory + physics.fresh_memory,
        next_number=1,
        lives=decode.lives,
        receivers=(),
        landed=frozenset(),
        revoked=frozenset(),
    )
    blocks = (frozenset[Holder](),) * len(world.blocks)
    return spend(world._replace(requests=requests, decode=reborn, blocks=blocks), decode_crashes=1)
