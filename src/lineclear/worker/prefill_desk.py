"""The first rank's side of handoffs: orders become sequences of the engine, and their computed KV becomes writes.

    order ──▶ BeginPrefill ──▶ engine.submit(sequence with a reader)
                  step: num_computed_tokens ──▶ ChunkComputed ──▶ PostWrite

What it does as any rank is in `sender_desk.py`. Chunks are written as they are computed, while the next one is. The
other ranks are told what begins, how far it is, and when nothing more comes (`protocol.handoff.ranks`).

Invariants:
    1. The reader of an epoch holds its source blocks, on all ranks at once, from the first chunk until every rank has
       released them.
    2. An order that does not fit this model or the memory of who sent it is answered as failed; it computes nothing.
"""

import itertools
import logging
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from lineclear.base.errors import PeerError
from lineclear.base.ids import BlockId, SequenceId
from lineclear.kv.layout import Layout
from lineclear.kv.pool import Holder, HolderKind
from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.messages import ForgetPrompt, PrefillWork
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.protocol.handoff.ranks import OrderBegun, OrderComputed, OrderStopped, SourceReleased, ToFollower
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.sequence import Sequence, Terms
from lineclear.worker.sender_desk import Job, RankParts, SenderDesk

logger = logging.getLogger(__name__)


class SourceEngine(Protocol):
    """What the desk needs of an engine."""

    def submit(self, sequence: Sequence) -> None:
        """Accept a sequence."""
        ...

    def cancel(self, sequence_id: SequenceId) -> bool:
        """End a sequence."""
        ...


class SourceBlocks(Protocol):
    """What the desk needs of a scheduler."""

    def blocks_read(self, reader: Holder) -> list[BlockId]:
        """The blocks that a reader holds, in the order of its sequence's tokens."""
        ...

    def forget_prompt(self, tokens: "array[int]") -> int:
        """Give up, on every tier, what there is of prompts with the same first block."""
        ...

    def end_read(self, reader: Holder) -> None:
        """End a reader's holds."""
        ...


class Followers(Protocol):
    """What the desk needs of the instance's other ranks, 1 to `count`."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def tell(self, message: ToFollower) -> None:
        """Send to all of them; raises LifeOverError if one is gone."""
        ...

    def poll(self) -> None:
        """Take in what they say; raises LifeOverError if one is gone."""
        ...

    def take_released(self) -> list[tuple[int, SourceReleased]]:
        """Return, once, what they have said, each with its rank."""
        ...

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `poll` has something to do."""
        ...

    def seconds_until_due(self) -> float:
        """How long `poll` may be put off while nothing is readable."""
        ...


class Nobody:
    """The other ranks of an instance of one."""

    count = 0

    def tell(self, message: ToFollower) -> None:
        """Nobody hears it."""

    def poll(self) -> None:
        """Nobody says anything."""

    def take_released(self) -> list[tuple[int, SourceReleased]]:
        """Nothing."""
        return []

    def filenos(self) -> Collection[int]:
        """None."""
        return ()

    def seconds_until_due(self) -> float:
        """For ever."""
        return float("inf")


ALONE = Nobody()


@dataclass(slots=True)
class _Computing:
    """What the scheduler knows of an order."""

    sequence_id: SequenceId
    reader: Holder
    num_told: int
    """Blocks of the prompt, from the first on, that the other ranks know of or need not."""
    readers: set[int]
    """Ranks whose writes may still read the source blocks."""


class PrefillDesk(SenderDesk):
    """Serves the orders of all decode workers with one engine.

    Args:
        parts: as any rank's.
        vocab_size: token ids are below it.
        engine, blocks: what computes, and its scheduler.
        followers: the other ranks, which hear of every step after their own part of it.
    """

    def __init__(
        self,
        parts: RankParts,
        vocab_size: int,
        engine: SourceEngine,
        blocks: SourceBlocks,
        followers: Followers = ALONE,
    ) -> None:
        super().__init__(parts)
        self._vocab_size = vocab_size
        self._engine = engine
        self._blocks = blocks
        self._followers = followers
        self._computing: dict[Epoch, _Computing] = {}
        """Those whose source blocks a rank may still read."""
        self._epochs: dict[SequenceId, Epoch] = {}
        self._next_id = itertools.count(1)

    @property
    def is_settled(self) -> bool:
        """Whether no write of any rank is flying and nothing is being computed."""
        return super().is_settled and not self._computing

    def filenos(self) -> Collection[int]:
        """Those of any rank, and the links to the others."""
        return (*super().filenos(), *self._followers.filenos())

    def seconds_until_due(self) -> float:
        """As of any rank, and when the others are to be told that this one lives."""
        return min(super().seconds_until_due(), self._followers.seconds_until_due())

    def turn(self) -> None:
        """Take in what the other ranks say, and then as any rank.

        Raises:
            LifeOverError: As of any rank, or another rank is gone.
        """
        self._followers.poll()
        for rank, released in self._followers.take_released():
            self._release_for(rank, released.epoch)
        super().turn()

    def submit(self, sequence: Sequence) -> None:
        """Refuse it: a prefill instance generates nothing.

        Raises:
            PeerError: Always.
        """
        raise PeerError(f"sequence {sequence.sequence_id} was sent to a prefill instance")

    def on_instances(self, endpoints: Collection[str]) -> None:
        """Refuse it: decode workers come to prefill instances.

        Raises:
            PeerError: Always.
        """
        raise PeerError(f"{len(endpoints)} prefill instances were announced to a prefill instance")

    def on_updates(self, updates: Iterable[SequenceUpdate]) -> None:
        """Write what a step has computed."""
        self._step_seconds = self._now() - self._turned_at
        for update in updates:
            epoch = self._epochs.get(update.sequence.sequence_id)
            if epoch is None:
                continue
            if update.num_computed_tokens:
                self._on_computed(epoch, update.num_computed_tokens)
            if update.finish_reason is not None:
                del self._epochs[update.sequence.sequence_id]
            if update.error is not None:
                logger.warning("%s cannot be computed: %s", epoch, update.error)
                self._feed(tx.PrefillFailed(epoch))

    def vouch(self, peer: Peer) -> int:  # noqa: ARG002 - the desk's interface
        """Nothing here waits for the end of a life: a write that stays unknown ends the writer's own."""
        return 0

    def _begin(self, epoch: Epoch, job: Job) -> None:
        sequence_id = SequenceId(next(self._next_id))
        reader = Holder(HolderKind.READER, sequence_id)
        num_there = job.work.start // job.layout.block_size
        computing = self._computing[epoch] = _Computing(sequence_id, reader, num_there, {0})
        wrong = self._what_is_wrong(job.work, job.layout)
        if wrong is not None:
            logger.error("%s is refused: %s", epoch, wrong)
            self._feed(tx.PrefillFailed(epoch))
            return
        self._epochs[sequence_id] = epoch
        computing.readers.update(range(1, self._followers.count + 1))
        self._followers.tell(OrderBegun(epoch, job.work, job.layout.num_blocks))
        sampling = SamplingParams(max_tokens=1)
        terms = Terms(uses_cache=job.work.use_cache)
        self._engine.submit(Sequence(sequence_id, job.work.prompt_token_ids, sampling, reader=reader, terms=terms))

    def _forget_prompt(self, message: ForgetPrompt) -> None:
        num_blocks = self._blocks.forget_prompt(array("I", message.token_ids))
        logger.warning("a decode worker's verdict: %d blocks of a prompt are given up", num_blocks)

    def _stop(self, epoch: Epoch) -> None:
        self._engine.cancel(self._computing[epoch].sequence_id)
        self._followers.tell(OrderStopped(epoch))

    def _let_go(self, epoch: Epoch) -> None:
        self._epochs.pop(self._computing[epoch].sequence_id, None)
        self._release_for(0, epoch)

    def _on_computed(self, epoch: Epoch, num_computed_tokens: int) -> None:
        job, computing = self._jobs[epoch], self._computing[epoch]
        end = min(num_computed_tokens, job.work.end)
        job.source = self._blocks.blocks_read(computing.reader)
        if self._followers.count and end > job.work.start:
            block_size = job.layout.block_size
            first, last = computing.num_told, -(-end // block_size)
            self._followers.tell(OrderComputed(epoch, end, first, tuple(job.source[first:last])))
            computing.num_told = end // block_size
        self._feed(tx.ChunkComputed(epoch, end))

    def _release_for(self, rank: int, epoch: Epoch) -> None:
        computing = self._computing.get(epoch)
        if computing is None or rank not in computing.readers:
            logger.error("rank %d releases the source of %s, which it does not read", rank, epoch)
            return
        computing.readers.remove(rank)
        if not computing.readers:
            del self._computing[epoch]
            self._blocks.end_read(computing.reader)

    def _what_is_wrong(self, work: PrefillWork, layout: Layout) -> str | None:
        largest = max(work.prompt_token_ids)
        if largest >= self._vocab_size:
            return f"prompt_token_ids: got {largest}, allowed: below {self._vocab_size}"
        if work.start % layout.block_size:
            return f"start: got {work.start}, allowed: multiples of {layout.block_size}"
        num_wanted = -(-work.end // layout.block_size) - work.start // layout.block_size
        if len(work.block_ids) < num_wanted:
            return f"block_ids: got {len(work.block_ids)}, allowed: at least {num_wanted}"
        if max(work.block_ids) >= layout.num_blocks:
            return f"block_ids: got {max(work.block_ids)}, allowed: below {layout.num_blocks}"
        if len(set(work.block_ids)) < len(work.block_ids):
            return "block_ids: one is there twice"
        return None
