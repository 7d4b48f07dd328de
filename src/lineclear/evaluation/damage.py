"""Damage as a fault of reuse would do it: blocks of a prompt overwritten with another prompt's KV.

All layers and both parts of the chosen blocks are replaced, the draft layer's too, while the sequence runs: right after
its first token, when the prompt is computed and the answer is not, or after so many as is told.
"""

import math
import random
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from lineclear.base.ids import SequenceId
from lineclear.engine.engine import Engine
from lineclear.engine.readiness import AlwaysReady
from lineclear.evaluation.generate import Generation
from lineclear.model.batch import Part
from lineclear.schedule.sequence import Sequence


@dataclass(frozen=True)
class CapturedKv:
    """Copies of the KV of one prompt's full blocks.

    Shapes: each value [num_blocks * block_size, width].
    """

    num_blocks: int
    values: dict[tuple[int, Part], Tensor]


class PromptCapture:
    """A step hook that copies the KV of the run's first prompt as soon as it is computed."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.captured: CapturedKv | None = None

    def __call__(self, engine: Engine, generations: Items[Generation]) -> None:
        """Copy once; the sequence must still run then."""
        sequence = generations[0].sequence
        if self.captured is not None or not sequence.output_token_ids:
            return
        block_ids = _prompt_block_ids(sequence, self._block_size)
        slots = _slots(block_ids, self._block_size)
        values = [engine.store.read(layer, part, AlwaysReady())[slots] for layer, part in engine.store.parts]
        self.captured = CapturedKv(len(block_ids), dict(zip(engine.store.parts, values, strict=True)))


class PromptDamage:
    """A step hook that overwrites a share of a prompt's blocks, once, while its answer is generated.

    Order: the engine runs without a prefix cache, so that no block belongs to two sequences.

    Args:
        share: of a prompt's full blocks, rounded up.
        donor: where the wrong KV comes from; its blocks are drawn at random.
        block_size: tokens of a block.
        seed: of the choice of blocks.
        after: output tokens after which each sequence is damaged, those that are not in it never; None: all after one.
    """

    def __init__(
        self,
        *,
        share: float,
        donor: CapturedKv,
        block_size: int,
        seed: int,
        after: Mapping[SequenceId, int] | None = None,
    ) -> None:
        self._share = share
        self._donor = donor
        self._block_size = block_size
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._after = after
        self.damaged: dict[SequenceId, int] = {}
        """Those whose blocks were overwritten, and how many output tokens each had."""
        self.num_blocks_overwritten = 0

    def __call__(self, engine: Engine, generations: Items[Generation]) -> None:
        """Damage the sequences that have got so far and still run."""
        for generation in generations:
            sequence_id, num_tokens = generation.sequence.sequence_id, len(generation.sequence.output_token_ids)
            if generation.finish_reason is not None or not num_tokens or sequence_id in self.damaged:
                continue
            if self._after is None or num_tokens >= self._after.get(sequence_id, num_tokens + 1):
                self.damaged[sequence_id] = num_tokens
                self._overwrite(engine, generation.sequence)

    def _overwrite(self, engine: Engine, sequence: Sequence) -> None:
        block_ids = _prompt_block_ids(sequence, self._block_size)
        targets = self._random.sample(block_ids, math.ceil(len(block_ids) * self._share))
        sources = [self._random.randrange(self._donor.num_blocks) for _ in targets]
        target_slots, source_rows = _slots(targets, self._block_size), _slots(sources, self._block_size)
        for layer, part in engine.store.parts:
            engine.store.write(layer, part, target_slots, self._donor.values[layer, part][source_rows])
        self.num_blocks_overwritten += len(targets)


def _prompt_block_ids(sequence: Sequence, block_size: int) -> list[int]:
    """The blocks that hold nothing but prompt tokens."""
    return [sequence.block_table[idx] for idx in range(sequence.num_prompt_tokens // block_size)]


def _slots(block_ids: Items[int], block_size: int) -> Tensor:
    """The slots of blocks, in order. Shapes: returns [len(block_ids) * block_size] int64."""
    starts = torch.tensor(block_ids, dtype=torch.int64)[:, None] * block_size
    return (starts + torch.arange(block_size)).flatten()
