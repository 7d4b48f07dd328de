"""Passes of several ranks over one plan: each computes the rows that it was dealt, and all see the same output.

Every rank's runner opens a pass over the same plan and does the same with it. In order:

    open        all go on                     CONTROL: digests of the plan
    forward     each its rows                 ROWS, and LayerSplit's broadcasts; then CONTROL: sampled rows, damage
    draft       all go on, each its rows      CONTROL: digests of the chosen tokens; ROWS; CONTROL: sampled rows
    draft_step  every rank all rows, alike    nothing
    close       all go on                     CONTROL

Invariants:
1. A rank that fails takes part in all transfers of its phase, and says so in the next exchange on CONTROL; so all ranks
   fail with the same `RankError`, and all lanes are in step for the next pass.
2. A rank that fails between phases says so where the others come next, whichever phase that is.
3. What a draft step computes depends on nothing that only one rank has, so every rank computes it. What it writes is
   written again before a later pass reads it (`engine/runner.py`), so nobody else needs it.

Legend: O tokens of this rank's hand, R sampled rows, D hidden_size, K index_topk, S sequences that draft.
"""

import hashlib
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Items
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError, RankError
from lineclear.base.ids import SequenceId
from lineclear.engine.batch import PreparedChunk, place_chunks, prepare_draft_step
from lineclear.engine.passes import DraftedRows, ForwardOutput, Pass
from lineclear.engine.readiness import Readiness
from lineclear.model.batch import KvCache, Selection
from lineclear.model.cost import double_cost_len
from lineclear.model.glm import GlmModel
from lineclear.parallel.accord import Accord
from lineclear.parallel.communicator import Communicator
from lineclear.parallel.meter import Meter
from lineclear.parallel.pass_kv import PassKv, RankKv
from lineclear.parallel.planning.deal import Span, deal
from lineclear.parallel.timed_cache import TimedCache
from lineclear.schedule.plan import Plan
from lineclear.schedule.sequence import Sequence

DIGEST_BYTES = 16
GOES_ON = bytes(DIGEST_BYTES)
"""Of those that have nothing to compare."""


class _Share(NamedTuple):
    """What one rank gives to an output: its rows, and how many each rank gives."""

    rows: Tensor
    counts: Items[int]


class RankPasses:
    """One rank's.

    Args:
        model: the same on all ranks.
        kv: this rank's.
        communicator: all ranks'.
        device: where the model computes.
        dtype: of hidden states.
        meter: hears of waits.
    """

    def __init__(
        self,
        model: GlmModel,
        kv: RankKv,
        communicator: Communicator,
        *,
        device: torch.device,
        dtype: torch.dtype,
        meter: Meter,
    ) -> None:
        self._model = model
        self._kv = kv
        self._communicator = communicator
        self._device = device
        self._dtype = dtype
        self._meter = meter
        self._accord = Accord(communicator, device, meter)
        self._double_cost_len = double_cost_len(model.config)

    @contextmanager
    def open(self, plan: Plan, sequences: Mapping[SequenceId, Sequence], readiness: Readiness) -> Generator[Pass]:
        """A pass that all ranks open over the same plan.

        Raises: RankError, the same on all ranks, from here, from the pass, or where the context ends.
        """
        current = self._begin(plan, sequences, readiness)
        try:
            yield current
        except Exception as cause:
            if current.has_failed:
                raise
            self._fail(cause)
        else:
            self._accord.go_on(GOES_ON)
        finally:
            current.close()

    def _begin(self, plan: Plan, sequences: Mapping[SequenceId, Sequence], readiness: Readiness) -> "_RankPass":
        try:
            current = self._deal(place_chunks(plan, sequences), readiness)
            digest = _plan_digest(plan, sequences)
        except Exception as cause:  # noqa: BLE001 - whatever it is, the others must hear of it
            self._fail(cause)
        self._accord.go_on(digest)
        return current

    def _deal(self, chunks: tuple[PreparedChunk, ...], readiness: Readiness) -> "_RankPass":
        spans = [Span(each.chunk.start, each.chunk.end) for each in chunks]
        hands = deal(spans, self._communicator.size, self._double_cost_len)
        kv = self._kv.open(chunks, hands, readiness)
        like = torch.empty(0, dtype=self._dtype, device=self._device)
        return _RankPass(self._model, kv, chunks, self._accord, like, self._meter)

    def _fail(self, cause: Exception) -> NoReturn:
        """Tell the others, where they come next. Raises: RankError."""
        try:
            self._accord.go_on(GOES_ON, _rank_error(cause, self._communicator.rank))
        except RankError as agreed:
            raise agreed from _other(cause, agreed)
        raise InvariantError("ranks went on with an error")


class _RankPass:
    def __init__(
        self,
        model: GlmModel,
        kv: PassKv,
        chunks: tuple[PreparedChunk, ...],
        accord: Accord,
        like: Tensor,
        meter: Meter,
    ) -> None:
        self._meter = meter
        self._model = model
        self._kv = kv
        self._hand = kv.hand
        self._chunks = chunks
        self._accord = accord
        self._like = like
        self._hidden: Tensor | None = None
        self.has_failed = False
        """Whether all ranks know that this pass is over."""

    @property
    def chunks(self) -> Items[PreparedChunk]:
        return self._chunks

    def forward(self) -> ForwardOutput:
        config, hand = self._model.config, self._hand
        num_chunks, size = len(self._chunks), len(hand.counts)

        def compute(cache: KvCache) -> list[Tensor]:
            self._hidden = self._model.forward(hand.batch, cache)
            return [self._hidden[hand.sampled], self._damaged(self._hidden)]

        shares = [
            _Share(self._nothing(hand.sampled_counts, config.hidden_size, self._like.dtype), hand.sampled_counts),
            _Share(self._nothing([1] * size, num_chunks, torch.uint8), [1] * size),
        ]
        hidden, damaged = self._together(range(config.num_hidden_layers), compute, shares)
        idxs = damaged.any(dim=0).nonzero().squeeze(1).tolist()
        return ForwardOutput(hidden[hand.sampled_order], tuple(self._chunks[idx].sequence.sequence_id for idx in idxs))

    def draft(self, next_token_ids: Items[int]) -> DraftedRows:
        config, hand = self._model.config, self._hand
        whole = self._hidden
        if whole is None:
            raise InvariantError("the draft layer runs after the model's")
        shares_selection = config.index_share_for_mtp_iteration

        def compute(cache: KvCache) -> list[Tensor]:
            next_tokens = torch.tensor(next_token_ids, dtype=torch.int64, device=whole.device)[hand.plan_rows]
            output = self._model.draft(hand.batch, whole, next_tokens, cache)
            rows = [output.hidden[hand.sampled]]
            if shares_selection:
                selection = output.selection.rows(hand.sampled)
                rows += [selection.slots, selection.places_beyond().squeeze(1).to(torch.uint8)]
            return rows

        widths = [(config.hidden_size, self._like.dtype)]
        if shares_selection:
            widths += [(config.index_topk, torch.int64), (config.index_topk, torch.uint8)]
        shares = [
            _Share(self._nothing(hand.sampled_counts, width, dtype), hand.sampled_counts) for width, dtype in widths
        ]
        self._go_on(hashlib.blake2b(repr(next_token_ids).encode(), digest_size=DIGEST_BYTES).digest())
        layers = range(config.num_hidden_layers, config.num_cache_layers)
        hidden, *selected = self._together(layers, compute, shares)
        selection = None
        if shares_selection:
            slots, beyond = (each[hand.sampled_order] for each in selected)
            selection = Selection(slots, beyond.to(torch.bool).unsqueeze(1))
        return DraftedRows(hidden[hand.sampled_order], selection)

    def draft_step(
        self, positions: Mapping[SequenceId, int], hidden: Tensor, next_token_ids: Tensor, shared: Selection | None
    ) -> Tensor:
        batch = prepare_draft_step(
            list(positions.values()),
            [self._kv.tables[sequence_id] for sequence_id in positions],
            block_size=self._kv.block_size,
            device=hidden.device,
        )
        return self._model.draft(batch, hidden, next_token_ids, self._kv.step_view(), shared).hidden

    def close(self) -> None:
        """End what still runs."""
        self._kv.close()

    def _go_on(self, digest: bytes) -> None:
        try:
            self._accord.go_on(digest)
        except RankError:
            self.has_failed = True
            raise

    def _together(
        self, layers: Items[int], compute: Callable[[KvCache], list[Tensor]], shares: list[_Share]
    ) -> list[Tensor]:
        """Run one phase, and bring every rank's rows to all; `shares` are those of a rank that fails.

        Raises: RankError, the same on all ranks.
        """
        counts = [each.counts for each in shares]
        rows, error, cause = [each.rows for each in shares], None, None
        try:
            self._kv.begin(layers)
            cache = TimedCache(self._kv, self._meter)
            rows = compute(cache)
            cache.end()
            self._kv.finish()
        except Exception as failure:  # noqa: BLE001 - whatever it is, the others must hear of it
            cause, error = failure, _rank_error(failure, self._hand.rank)
            self._kv.abort(error)
        try:
            return self._accord.gather(rows, counts, error)
        except RankError as agreed:
            self.has_failed = True
            raise agreed from _other(cause, agreed)

    def _nothing(self, counts: Items[int], width: int, dtype: torch.dtype) -> Tensor:
        """In place of rows that could not be computed."""
        return torch.zeros(counts[self._hand.rank], width, dtype=dtype, device=self._like.device)

    def _damaged(self, hidden: Tensor) -> Tensor:
        """Which chunks have an own row that is not finite. Shapes: hidden: [O, D]; returns [1, chunks] uint8."""
        damaged = torch.zeros(1, len(self._chunks), dtype=torch.uint8)
        is_finite = hidden.isfinite().all(-1)
        if not bool(is_finite.all()):
            rows = is_finite.tolist()
            for chunk_idx, start, end in self._hand.chunk_rows:
                damaged[0, chunk_idx] = not all(rows[start:end])
        return damaged.to(hidden.device)


def _rank_error(cause: Exception, rank: int) -> RankError:
    return cause if isinstance(cause, RankError) else RankError(rank, f"{type(cause).__name__}: {cause}")


def _other(cause: Exception | None, agreed: RankError) -> Exception | None:
    """What has led to an error on this rank, unless it is that error."""
    return None if cause is agreed else cause


def _plan_digest(plan: Plan, sequences: Mapping[SequenceId, Sequence]) -> bytes:
    """Of all that a pass reads of a plan and its sequences: chunks, their tokens, blocks."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for chunk in plan.chunks:
        sequence = sequences[chunk.sequence_id]
        digest.update(repr((chunk, sequence.token_ids(chunk.start, chunk.end))).encode())
        digest.update(sequence.block_table.packed())
    return digest.digest()
