"""What a token costs, by its place: for the scheduler, which wants steps of equal length.

In multiply-adds of one pass over the model's own layers and the draft layer; the attention to the selected tokens has a
bound and is counted as if it were at it.
"""

from lineclear.model.config import GlmConfig

SCORING_SPEED = 2.5
"""How much faster a multiply-add of scoring is than others, as it is one large product: measured on CPU, prefill of
`lineclear-tiny`, 0 to 24,000 tokens."""


def double_cost_len(config: GlmConfig) -> int:
    """The context at which scoring it costs as much as everything else that is computed for a token."""
    layers = range(config.num_cache_layers)
    per_context_token = sum(
        config.index_n_heads * config.index_head_dim for layer in layers if config.has_indexer(layer)
    )
    return max(1, int(sum(_layer_cost(config, layer) for layer in layers) * SCORING_SPEED / per_context_token))


def _layer_cost(config: GlmConfig, layer: int) -> int:
    hidden, heads = config.hidden_size, config.num_attention_heads
    attention = hidden * (config.q_lora_rank + config.latent_width)
    attention += config.q_lora_rank * heads * config.qk_head_dim
    attention += heads * config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim)
    attention += heads * config.index_topk * (config.latent_width + config.kv_lora_rank)
    attention += heads * config.v_head_dim * hidden
    is_sparse = layer >= config.num_hidden_layers or config.mlp_layer_types[layer] == "sparse"
    experts = config.num_experts_per_tok + config.n_shared_experts
    width = experts * config.moe_intermediate_size if is_sparse else config.intermediate_size
    return attention + 3 * hidden * width
