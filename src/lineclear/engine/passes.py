"""One pass over a plan, as the runner sees it: the sampled rows, the draft layer, the steps that draft ahead.

A pass knows who computes which rows and where their KV is; the runner knows what is chosen from them. `LocalPasses`
computes all rows on one model and one store; `lineclear.parallel` deals them to ranks.

Legend: T tokens of the plan, R sampled rows, D hidden_size, S sequences that draft.
"""

from collections.abc import Collection, Generator, Mapping
from collections.abc import Sequence as Items
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError
from lineclear.base.ids import SequenceId
from lineclear.engine.batch import PreparedBatch, PreparedChunk, prepare_batch, prepare_draft_step
from lineclear.engine.readiness import Readiness
from lineclear.engine.store import KvStore, KvView
from lineclear.model.batch import Selection
from lineclear.model.config import GlmConfig
from lineclear.model.glm import GlmModel
from lineclear.schedule.plan import Plan
from lineclear.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What the model's layers computed.

    Shapes: hidden: [R, D], of the sampled rows.
    """

    hidden: Tensor
    damaged: tuple[SequenceId, ...]
    """The sequences with a row, sampled or not, that is not all finite numbers."""


@dataclass(frozen=True, slots=True)
class DraftedRows:
    """What the draft layer computed.

    Shapes: hidden: [R, D], of the sampled rows; selection: theirs, if draft steps share it.
    """

    hidden: Tensor
    selection: Selection | None


class Pass(Protocol):
    """One pass under way. Order: `forward`, then perhaps `draft`, then any number of `draft_step`s."""

    @property
    def chunks(self) -> Items[PreparedChunk]:
        """The plan's chunks and their rows."""
        ...

    def forward(self) -> ForwardOutput:
        """Run the model's layers over all rows."""
        ...

    def draft(self, next_token_ids: Items[int]) -> DraftedRows:
        """Run the draft layer over all rows, of which each one's next token is given, T of them."""
        ...

    def draft_step(
        self, positions: Mapping[SequenceId, int], hidden: Tensor, next_token_ids: Tensor, shared: Selection | None
    ) -> Tensor:
        """Run the draft layer over one more token of each of S sequences, at the given positions.

        Shapes: hidden: [S, D], next_token_ids: [S] int64, shared: S rows; returns [S, D].
        """
        ...


class Passes(Protocol):
    """Begins passes; one at a time."""

    def open(
        self, plan: Plan, sequences: Mapping[SequenceId, Sequence], readiness: Readiness
    ) -> AbstractContextManager[Pass]:
        """A pass over a plan; when the context ends without an error, all of the pass's KV is in place."""
        ...


class PassMaking(Protocol):
    """Whoever makes an engine's passes, as the engine is built: what this process stores, and who else takes part.

    Order: as written here; `agree` any number of times, the same on all ranks.
    """

    @property
    def reserved_bytes(self) -> int:
        """Memory on the device that is not for the store."""
        ...

    def stored_layers(self, config: GlmConfig) -> Collection[int] | None:
        """Choose the layers that are stored here; None for all."""
        ...

    def agree(self, number: int) -> int:
        """Return the smallest of all ranks' numbers."""
        ...

    def max_step_blocks(self, config: GlmConfig) -> int | None:
        """Return how many blocks of the running batch a pass has room for, where it reads copies of them."""
        ...

    def make(self, model: GlmModel, store: KvStore, max_model_len: int) -> Passes:
        """Make the passes.

        Raises: ConfigError if they cannot work for sequences of that length.
        """
        ...


class LocalPassMaking:
    """One process alone."""

    @property
    def reserved_bytes(self) -> int:
        """None."""
        return 0

    def stored_layers(self, config: GlmConfig) -> None:
        """All."""

    def agree(self, number: int) -> int:
        """Its own."""
        return number

    def max_step_blocks(self, config: GlmConfig) -> None:
        """Any number: it reads the store."""

    def make(self, model: GlmModel, store: KvStore, max_model_len: int) -> Passes:  # noqa: ARG002 - any length works
        """Passes that compute every row here."""
        return LocalPasses(model, store)


class LocalPasses:
    """Passes of one model on one store."""

    def __init__(self, model: GlmModel, store: KvStore) -> None:
        self._model = model
        self._store = store

    @contextmanager
    def open(self, plan: Plan, sequences: Mapping[SequenceId, Sequence], readiness: Readiness) -> Generator[Pass]:
        """A pass that computes every row here."""
        prepared = prepare_batch(plan, sequences, block_size=self._store.block_size, device=self._store.device)
        yield _LocalPass(self._model, self._store.view(readiness), prepared, self._store.device)


class _LocalPass:
    def __init__(self, model: GlmModel, view: KvView, prepared: PreparedBatch, device: torch.device) -> None:
        self._model = model
        self._view = view
        self._prepared = prepared
        self._device = device
        self._tables = {each.sequence.sequence_id: each.sequence.block_table for each in prepared.chunks}
        self._hidden: Tensor | None = None

    @property
    def chunks(self) -> Items[PreparedChunk]:
        return self._prepared.chunks

    def forward(self) -> ForwardOutput:
        self._hidden = self._model.forward(self._prepared.batch, self._view)
        damaged = damaged_chunks(self.chunks, self._hidden)
        return ForwardOutput(
            self._hidden[self._prepared.sampled_rows], tuple(self.chunks[idx].sequence.sequence_id for idx in damaged)
        )

    def draft(self, next_token_ids: Items[int]) -> DraftedRows:
        if self._hidden is None:
            raise InvariantError("the draft layer runs after the model's")
        next_tokens = torch.tensor(next_token_ids, dtype=torch.int64, device=self._device)
        output = self._model.draft(self._prepared.batch, self._hidden, next_tokens, self._view)
        rows = self._prepared.sampled_rows
        shares = self._model.config.index_share_for_mtp_iteration
        return DraftedRows(output.hidden[rows], output.selection.rows(rows) if shares else None)

    def draft_step(
        self, positions: Mapping[SequenceId, int], hidden: Tensor, next_token_ids: Tensor, shared: Selection | None
    ) -> Tensor:
        batch = prepare_draft_step(
            list(positions.values()),
            [self._tables[sequence_id] for sequence_id in positions],
            block_size=self._view.block_size,
            device=self._device,
        )
        return self._model.draft(batch, hidden, next_token_ids, self._view, shared).hidden


def damaged_chunks(chunks: Items[PreparedChunk], hidden: Tensor) -> list[int]:
    """The places of chunks with a row that is not finite. Shapes: hidden: [T, D]."""
    is_finite = hidden.isfinite().all(-1)
    if bool(is_finite.all()):
        return []
    rows = is_finite.tolist()
    return [idx for idx, each in enumerate(chunks) if not all(rows[each.first_row : each.end_row])]
