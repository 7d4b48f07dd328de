"""The published implementation run on a checkpoint, with everything recorded that ours is compared with."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaIndexer, apply_rotary_pos_emb_interleave
from transformers.utils import logging as transformers_logging


@dataclass
class Recording:
    """One forward pass over `T` tokens from position 0.

    Shapes: hidden: by layer [T, D], the output of the layer; final: [T, D]; logits: [T, V]; scores and selected by
    layer with an indexer: [T, T] and, of each token, a set of positions.
    """

    hidden: dict[int, Tensor] = field(default_factory=dict)
    scores: dict[int, Tensor] = field(default_factory=dict)
    selected: dict[int, list[set[int]]] = field(default_factory=dict)
    final: Tensor = field(default_factory=lambda: torch.empty(0))
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


class Published:
    """`GlmMoeDsaForCausalLM`, eager attention."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self.model = GlmMoeDsaForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()

    @torch.inference_mode()
    def record(self, token_ids: Tensor) -> Recording:
        recording = Recording()
        handles = [self.model.model.norm.register_forward_hook(_keep_final(recording))]
        for layer, block in enumerate(self.model.model.layers):
            handles.append(block.register_forward_hook(_keep_hidden(recording, layer)))
            if block.self_attn.indexer is not None:
                handles.append(block.self_attn.indexer.register_forward_hook(_keep_index(recording, layer)))
        recording.logits = self.model(token_ids[None]).logits[0].float()
        for handle in handles:
            handle.remove()
        return recording

    @torch.inference_mode()
    def greedy(self, token_ids: Tensor, num_tokens: int) -> list[int]:
        """Continue by the most likely token, one at a time, with a cache."""
        cache = DynamicCache(config=self.model.config)
        output: list[int] = []
        step = token_ids[None]
        for _ in range(num_tokens):
            step = self.model(step, cache=cache, use_cache=True).logits[:, -1:].argmax(-1)
            output.append(int(step))
        return output


def _keep_final(recording: Recording) -> Any:
    def keep(_module: Any, _inputs: Any, output: Tensor) -> None:
        recording.final = output[0]

    return keep


def _keep_hidden(recording: Recording, layer: int) -> Any:
    def keep(_module: Any, _inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        recording.hidden[layer] = output[0][0]

    return keep


def _keep_index(recording: Recording, layer: int) -> Any:
    def keep(module: GlmMoeDsaIndexer, inputs: tuple[Any, ...], output: Tensor) -> None:
        hidden, q_resid, position_embeddings = inputs[:3]
        recording.scores[layer] = _scores(module, hidden, q_resid, position_embeddings)
        recording.selected[layer] = [
            {position for position in row if position <= token} for token, row in enumerate(output[0].tolist())
        ]

    return keep


def _scores(indexer: GlmMoeDsaIndexer, hidden: Tensor, q_resid: Tensor, embeddings: tuple[Tensor, Tensor]) -> Tensor:
    """The scores that the module computes on its way but does not return, [T, T]."""
    cos, sin = embeddings
    rope = indexer.qk_rope_head_dim
    queries = indexer.wq_b(q_resid).unflatten(-1, (indexer.n_heads, indexer.head_dim))
    keys = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
    q_rope, k_rope = apply_rotary_pos_emb_interleave(queries[..., :rope], keys[..., :rope], cos, sin, unsqueeze_dim=2)
    queries = torch.cat([q_rope, queries[..., rope:]], dim=-1)[0].float()
    keys = torch.cat([k_rope, keys[..., rope:]], dim=-1)[0, :, 0].float()
    weights = indexer.weights_proj(hidden.to(indexer.weights_proj.weight.dtype))[0].float() * indexer.n_heads**-0.5
    products = torch.einsum("thd,sd->ths", queries, keys) * indexer.softmax_scale
    return torch.einsum("th,ths->ts", weights, products.relu())
