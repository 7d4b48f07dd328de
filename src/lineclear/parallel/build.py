"""Puts one rank together: what it stores, its staging, its passes.

Every rank of an instance builds at the same time, since they compare what they have (`require_same_facts`) and agree on
how many blocks there are. A rank is, in this order:

    wire → RankCommunicator → RankMaking → build_engine(…, pass_making=…) on rank 0, build_parts(…) on the others
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from lineclear.config.components import EngineConfig
from lineclear.engine.build import DTYPES
from lineclear.engine.passes import Passes
from lineclear.engine.store import KvStore, kv_layout
from lineclear.kv.layout import ALIGNMENT
from lineclear.model.config import GlmConfig
from lineclear.model.glm import GlmModel
from lineclear.parallel.accord import Accord
from lineclear.parallel.communicator import Communicator
from lineclear.parallel.facts import rank_facts, require_same_facts, smallest
from lineclear.parallel.layersplit import BeforeFill, LayerSplitKv, LayerSplitPass, SplitParts
from lineclear.parallel.meter import Meter
from lineclear.parallel.pass_kv import RankKv
from lineclear.parallel.passes import RankPasses
from lineclear.parallel.planning.ownership import LayerOwners, own_layers
from lineclear.parallel.planning.staging import most_blocks, require_room
from lineclear.parallel.replicated import ReplicatedKv

KvLayout: TypeAlias = Literal["replicated", "layersplit"]


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    """How ranks share KV; the same on all of them."""

    kv_layout: KvLayout
    staging_bytes: int = 0
    """With layersplit: memory of each rank for the running batch's blocks."""


@dataclass(frozen=True, slots=True)
class RankLab:
    """What tests and the lab replace: delays before an owner's copies, and passes without one of their guards."""

    before_fill: BeforeFill | None = None
    make_pass: type[LayerSplitPass] = LayerSplitPass


IN_SERVICE = RankLab()


class RankMaking:
    """The `PassMaking` of one rank; used once.

    Args:
        ranks: how ranks share KV.
        config: the engine's.
        model_dir: of the checkpoint.
        communicator: all ranks'. Whoever made it closes it, after the last pass.
        meter: counts this rank's communication; the communicator's `on_span` is the same one.
        lab: for tests.

    Raises: ConfigError, the same on all ranks, if their facts differ; RankLostError if one does not come.
    """

    def __init__(
        self,
        ranks: RankConfig,
        config: EngineConfig,
        model_dir: Path,
        communicator: Communicator,
        meter: Meter,
        lab: RankLab = IN_SERVICE,
    ) -> None:
        self._ranks = ranks
        self._config = config
        self._communicator = communicator
        self._meter = meter
        self._lab = lab
        self._device = torch.device(config.device)
        self._dtype = DTYPES[config.dtype]
        self._accord = Accord(communicator, self._device, meter)
        self._owners: LayerOwners | None = None
        facts = rank_facts(config, model_dir)
        facts |= {"kv_layout": ranks.kv_layout, "staging_bytes": str(ranks.staging_bytes)}
        require_same_facts(self._accord, facts | {"cp": str(communicator.size)}, self._device)

    @property
    def reserved_bytes(self) -> int:
        """Staging."""
        return self._ranks.staging_bytes if self._ranks.kv_layout == "layersplit" else 0

    def stored_layers(self, config: GlmConfig) -> Collection[int] | None:
        """All if replicated, else those that this rank owns.

        Raises: ConfigError for more ranks than layers.
        """
        if self._ranks.kv_layout == "replicated":
            return None
        shape = kv_layout(config, 1, self._config.block_size, self._dtype).shape
        self._owners = own_layers(shape, self._communicator.size)
        return self._owners.layers_of(self._communicator.rank)

    def agree(self, number: int) -> int:
        """The smallest of all ranks' numbers. Raises: RankError."""
        return smallest(self._accord, number, self._device)

    def max_step_blocks(self, config: GlmConfig) -> int | None:
        """What fits into staging beside block 0; None if replicated."""
        if self._owners is None:
            return None
        return most_blocks(self._ranks.staging_bytes, self._row_bytes(config), self._config.block_size) - 1

    def make(self, model: GlmModel, store: KvStore, max_model_len: int) -> Passes:
        """Passes with all ranks.

        Raises: ConfigError if staging has no room for a sequence of that length.
        """
        return RankPasses(
            model,
            self._kv(model.config, store, max_model_len),
            self._communicator,
            device=self._device,
            dtype=self._dtype,
            meter=self._meter,
        )

    def _kv(self, config: GlmConfig, store: KvStore, max_model_len: int) -> RankKv:
        if self._owners is None:
            return ReplicatedKv(config, store, self._dtype, self._communicator, self._meter)
        staging_bytes = self._ranks.staging_bytes
        require_room(staging_bytes, self._row_bytes(config), self._config.block_size, max_model_len)
        parts = SplitParts(
            config=config,
            owners=self._owners,
            store=store,
            memory=torch.zeros(staging_bytes + 2 * ALIGNMENT, dtype=torch.uint8, device=self._device),
            dtype=self._dtype,
            communicator=self._communicator,
            meter=self._meter,
            **({} if self._lab.before_fill is None else {"before_fill": self._lab.before_fill}),
        )
        return LayerSplitKv(parts, drafts=bool(self._config.draft_tokens), make_pass=self._lab.make_pass)

    def _row_bytes(self, config: GlmConfig) -> int:
        """Of one token in one buffer of each part."""
        return (config.latent_width + config.index_head_dim) * self._dtype.itemsize
