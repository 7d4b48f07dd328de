"""One layer's attention: latent queries over selected slots of the cache, and the indexer that selects them.

Queries are multiplied into the latent space and outputs out of it (the absorbed form), so the cache is never expanded. A
layer without an indexer attends to what the last layer with one selected.

Legend: R rows, T of them tokens, D hidden width, Q query rank, H heads, C latent width, G rope width, K selected slots, S
sequences of a group, N tokens of each, P positions.
"""

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError
from lineclear.kernels.ops import Ops
from lineclear.model.batch import KvCache, Selection
from lineclear.model.config import LATENT_NORM_EPS, GlmConfig
from lineclear.model.prepare import PreparedBatch, QueryTile, ScoreGroup
from lineclear.model.weights import AttentionWeights, IndexerWeights


class Attention:
    """The attention of layer `layer`."""

    def __init__(self, config: GlmConfig, layer: int, weights: AttentionWeights, ops: Ops) -> None:
        self._config = config
        self._layer = layer
        self._weights = weights
        self._ops = ops
        self._scale = config.qk_head_dim**-0.5

    def forward(
        self, x: Tensor, prepared: PreparedBatch, cache: KvCache, shared: Selection | None
    ) -> tuple[Tensor, Selection]:
        """Write the tokens' KV and attend, to `shared` where it is given and else to what the indexer selects.

        Shapes: x: [R, D]; returns [R, D] and the selection attended to.
        """
        joined = self._ops.matmul(x, self._weights.input)
        query_latent = self._ops.rms_norm(
            joined[:, : self._config.q_lora_rank], self._weights.query_norm, LATENT_NORM_EPS
        )
        queries = self._ops.matmul(query_latent, self._weights.query)
        self._write_latent(joined, prepared, cache)
        if self._weights.indexer is not None:
            self._write_index(joined, self._weights.indexer, prepared, cache)
        selection = shared or self._select(x, queries, prepared, cache)
        return self._attend(queries, prepared, cache, selection), selection

    def _write_latent(self, joined: Tensor, prepared: PreparedBatch, cache: KvCache) -> None:
        start, width = self._config.q_lora_rank, self._config.kv_lora_rank
        latent = self._ops.rms_norm(joined[:, start : start + width], self._weights.latent_norm, LATENT_NORM_EPS)
        rope_key = joined[:, start + width : start + self._config.latent_width]
        self._ops.rotate(rope_key.unsqueeze(1), prepared.cis)
        values = torch.cat([latent, rope_key], dim=-1)[: prepared.num_tokens]
        cache.write(self._layer, "latent", prepared.slot_mapping, values)

    def _write_index(self, joined: Tensor, weights: IndexerWeights, prepared: PreparedBatch, cache: KvCache) -> None:
        raw = joined[:, -self._config.index_head_dim :]
        keys = self._ops.layer_norm(raw, weights.key_norm_weight, weights.key_norm_bias, LATENT_NORM_EPS)
        self._ops.rotate(keys[:, : self._config.qk_rope_head_dim].unsqueeze(1), prepared.cis)
        cache.write(self._layer, "index", prepared.slot_mapping, keys[: prepared.num_tokens])

    def _select(self, x: Tensor, queries: Tensor, prepared: PreparedBatch, cache: KvCache) -> Selection:
        if self._weights.indexer is None:
            raise InvariantError(f"layer {self._layer} has neither an indexer nor a selection to share")
        whole_context = prepared.whole_context
        if not prepared.groups:
            return prepared.require_whole_context()
        config = self._config
        index_queries = queries[:, -config.index_n_heads * config.index_head_dim :]
        index_queries = index_queries.unflatten(1, (config.index_n_heads, config.index_head_dim)).float()
        self._ops.rotate(index_queries[..., : config.qk_rope_head_dim], prepared.cis)
        head_weights = self._ops.matmul(x.float(), self._weights.indexer.head_weights)
        slots = prepared.blank_slots(config.index_topk)
        index_keys = cache.read(self._layer, "index")
        for group in prepared.groups:
            self._select_group(index_queries, head_weights, index_keys, group, slots)
        return Selection(slots, None if whole_context is None else whole_context.beyond)

    def _select_group(
        self, index_queries: Tensor, head_weights: Tensor, index_keys: Tensor, group: ScoreGroup, slots: Tensor
    ) -> None:
        """Mutates: the group's rows of `slots`."""
        num_sequences = group.slots.shape[0]
        keys = self._ops.gather(index_keys, group.slots).float()
        for tile in group.tiles:
            scores = self._ops.index_scores(
                index_queries.index_select(0, tile.row_idxs).unflatten(0, (num_sequences, -1)),
                head_weights.index_select(0, tile.row_idxs).unflatten(0, (num_sequences, -1)),
                keys[:, : tile.num_positions],
            ).flatten(0, 1)
            _hide_future(scores, tile)
            positions = self._ops.select_positions(scores, slots.shape[1])
            selected = torch.gather(group.slots, 1, positions.view(num_sequences, -1))
            slots.index_copy_(0, tile.row_idxs, selected.view_as(positions))

    def _attend(self, queries: Tensor, prepared: PreparedBatch, cache: KvCache, selection: Selection) -> Tensor:
        config, ops = self._config, self._ops
        heads = queries[:, : config.num_attention_heads * config.qk_head_dim].unflatten(1, (-1, config.qk_head_dim))
        nope, rope = heads.split([config.qk_nope_head_dim, config.qk_rope_head_dim], dim=-1)
        ops.rotate(rope, prepared.cis)
        latent_queries = ops.matmul(nope.transpose(0, 1), self._weights.absorb_key).transpose(0, 1)
        latent_queries = torch.cat([latent_queries, rope], dim=-1).mul_(self._scale)
        attended = ops.latent_attention(
            latent_queries, cache.read(self._layer, "latent"), selection.slots, selection.beyond, config.kv_lora_rank
        )
        values = ops.matmul(attended.transpose(0, 1), self._weights.absorb_value)
        return ops.matmul(values.transpose(0, 1).flatten(1), self._weights.output)


def _hide_future(scores: Tensor, tile: QueryTile) -> None:
    """Give the positions after a token's own the lowest score. Mutates: scores, [S * N, P]."""
    tail = scores[:, tile.num_common :]
    places = torch.arange(tile.num_common, scores.shape[1], device=scores.device)
    tail.masked_fill_(places > tile.positions.unsqueeze(1), -torch.inf)
