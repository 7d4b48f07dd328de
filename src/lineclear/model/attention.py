"""One layer's attention: latent queries over selected slots of the cache, and the indexer that selects them.

Queries are multiplied into the latent space and outputs out of it (the absorbed form), so the cache is never expanded.
A layer without an indexer attends to what the last layer with one selected.

Legend: R rows, T of them tokens, D hidden width, Q query rank, H heads, C latent width, G rope width, K selected slots,
S sequences of a group, N tokens of each, P positions.
"""

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError
from lineclear.kernels.ops import Ops
from lineclear.model.batch import KvCache, Selection
from lineclear.model.config import LATENT_NORM_EPS, GlmConfig
from lineclear.model.prepare import PreparedBatch, QueryTile, ScoreGroup
from lineclear.model.weights import AbsorbWeights, AttentionWeights, IndexerWeights


class Attention:
    """The attention of layer `layer`."""

    def __init__(self, config: GlmConfig, layer: int, weights: AttentionWeights, ops: Ops) -> None:
        self._config = config
        self._layer = layer
        self._weights = weights
        self._ops = ops
        index_width = 0 if weights.indexer is None else config.index_n_heads * config.index_head_dim
        self._query_widths = [weights.query.shape[1] - index_width] + [index_width] * (weights.indexer is not None)
        self._input_widths = [config.q_lora_rank, config.kv_lora_rank, config.qk_rope_head_dim]
        if weights.indexer is not None:
            self._input_widths.append(config.index_head_dim)
            self._input_widths += [config.index_n_heads] * (weights.indexer.head_weights is None)

    def forward(
        self, x: Tensor, prepared: PreparedBatch, cache: KvCache, shared: Selection | None
    ) -> tuple[Tensor, Selection]:
        """Write the tokens' KV and attend, to `shared` where it is given and else to what the indexer selects.

        Shapes: x: [R, D]; returns [T, D] and the selection attended to.
        """
        weights, ops = self._weights, self._ops
        query_latent, latent, rope_key, *index_inputs = ops.matmul(x, weights.input).split_with_sizes(
            self._input_widths, dim=1
        )
        query_latent = ops.rms_norm(query_latent, weights.query_norm, LATENT_NORM_EPS)
        self._write_latent(latent, rope_key, prepared, cache)
        if weights.indexer is not None:
            self._write_index(index_inputs[0], weights.indexer, prepared, cache)
        if shared is None and not prepared.groups:
            shared = prepared.require_whole_context()
        if shared is not None:
            queries = ops.matmul(query_latent, weights.query[:, : self._query_widths[0]])
            return self._attend(queries, prepared, cache, shared), shared
        if weights.indexer is None:
            raise InvariantError(f"layer {self._layer} has neither an indexer nor a selection to share")
        queries, index_queries = ops.matmul(query_latent, weights.query).split_with_sizes(self._query_widths, dim=1)
        head_weights = self._head_weights(x, index_inputs, weights.indexer)
        selection = self._select(index_queries, head_weights, prepared, cache)
        return self._attend(queries, prepared, cache, selection), selection

    def _write_latent(self, latent: Tensor, rope_key: Tensor, prepared: PreparedBatch, cache: KvCache) -> None:
        latent = self._ops.rms_norm(latent, self._weights.latent_norm, LATENT_NORM_EPS)
        self._ops.rotate(rope_key, prepared.cis)
        values = torch.cat([latent, rope_key], dim=1)
        cache.write(self._layer, "latent", prepared.slot_mapping, prepared.tokens(values))

    def _write_index(self, raw: Tensor, weights: IndexerWeights, prepared: PreparedBatch, cache: KvCache) -> None:
        keys = self._ops.layer_norm(raw, weights.key_norm_weight, weights.key_norm_bias, LATENT_NORM_EPS)
        self._ops.rotate(keys[:, : self._config.qk_rope_head_dim], prepared.cis)
        cache.write(self._layer, "index", prepared.slot_mapping, prepared.tokens(keys))

    def _head_weights(self, x: Tensor, index_inputs: list[Tensor], weights: IndexerWeights) -> Tensor:
        if weights.head_weights is None:
            return index_inputs[1]
        return self._ops.matmul(x.float(), weights.head_weights)

    def _select(self, queries: Tensor, head_weights: Tensor, prepared: PreparedBatch, cache: KvCache) -> Selection:
        queries = queries.float().view(queries.shape[0], self._config.index_n_heads, -1)
        self._ops.rotate(queries[..., : self._config.qk_rope_head_dim], prepared.cis_by_head)
        queries, head_weights = prepared.tokens(queries), prepared.tokens(head_weights)
        index_keys = cache.read(self._layer, "index")
        selected = [
            (tile.token_idxs, self._select_tile(queries, head_weights, keys, group, tile))
            for group in prepared.groups
            for keys in [self._keys(index_keys, group)]
            for tile in group.tiles
        ]
        return prepared.selection(selected)

    def _keys(self, index_keys: Tensor, group: ScoreGroup) -> Tensor:
        """The group's keys, [S, P, J] in fp32; those beyond a context are any slot's, and hidden later."""
        num_positions = group.slots.shape[1]
        if group.first_slot is not None and group.first_slot + num_positions <= index_keys.shape[0]:
            return index_keys[group.first_slot : group.first_slot + num_positions].unsqueeze(0).float()
        return self._ops.gather(index_keys, group.slots).float()

    def _select_tile(
        self, queries: Tensor, head_weights: Tensor, keys: Tensor, group: ScoreGroup, tile: QueryTile
    ) -> Tensor:
        """Slots selected for the tile's tokens, [S * N, K]."""
        if tile.token_idxs is not None:
            queries, head_weights = (
                queries.index_select(0, tile.token_idxs),
                head_weights.index_select(0, tile.token_idxs),
            )
        num_sequences = keys.shape[0]
        scores = self._ops.index_scores(
            queries.view(num_sequences, -1, *queries.shape[1:]),
            head_weights.view(num_sequences, -1, head_weights.shape[1]),
            keys[:, : tile.num_positions],
        ).flatten(0, 1)
        scores[:, tile.num_common :].masked_fill_(tile.is_hidden, -torch.inf)
        positions = self._ops.select_positions(scores, self._config.index_topk)
        return torch.gather(group.slots, 1, positions.view(num_sequences, -1)).view_as(positions)

    def _attend(self, queries: Tensor, prepared: PreparedBatch, cache: KvCache, selection: Selection) -> Tensor:
        config, ops, weights = self._config, self._ops, self._weights
        queries = queries.view(queries.shape[0], config.num_attention_heads, -1)
        ops.rotate(queries[..., -config.qk_rope_head_dim :], prepared.cis_by_head)
        if weights.absorb is not None:
            queries = self._absorb(queries, weights.absorb)
        latent = cache.read(self._layer, "latent")
        queries = prepared.tokens(queries)
        attended = ops.latent_attention(queries, latent, selection.slots, selection.beyond, config.kv_lora_rank)
        if weights.absorb is not None:
            attended = ops.matmul(attended.transpose(0, 1), weights.absorb.value).transpose(0, 1)
        return ops.matmul(attended.flatten(1), weights.output)

    def _absorb(self, queries: Tensor, weights: AbsorbWeights) -> Tensor:
        """Shapes: queries: [R, H, N + G]; returns [R, H, C + G], scaled."""
        nope, rope = queries.split([self._config.qk_nope_head_dim, self._config.qk_rope_head_dim], dim=-1)
        latent = self._ops.matmul(nope.transpose(0, 1), weights.key).transpose(0, 1)
        return torch.cat([latent, rope], dim=-1).mul_(self._config.qk_head_dim**-0.5)
