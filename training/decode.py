"""Cached decoding with MTP drafts, one sequence at a time: the plainest form of what the engine does, for evaluation.

`Decoder` caches for every layer, the MTP layer last, what the architecture caches: latent, rope key and index key of
each position. Shapes: n new tokens, T cached tokens, B = 1.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from training.net import Attention, Net, Trace, selection_mask

BLOCK_LEN = 16


@dataclass
class LayerCache:
    """One layer's cached rows: latent [max,kv_lora], rope key [max,rope], index key [max,index_head_dim]."""

    latent: Tensor
    rope_key: Tensor
    index_key: Tensor

    def overwrite(self, other: "LayerCache", rows: slice) -> None:
        """Copy the rows of another sequence's cache over this one's."""
        self.latent[rows] = other.latent[rows]
        self.rope_key[rows] = other.rope_key[rows]
        self.index_key[rows] = other.index_key[rows]


@dataclass(frozen=True)
class Decoded:
    """Emitted tokens (end token included) and the number of tokens each verify emitted."""

    tokens: list[int]
    accept_lengths: list[int]

    @property
    def accept_length(self) -> float:
        """Mean number of tokens a verify emitted."""
        return sum(self.accept_lengths) / max(len(self.accept_lengths), 1)


class Decoder:
    """The caches of one sequence. `num_cached` trunk positions and as many MTP positions are valid."""

    def __init__(self, net: Net, max_len: int) -> None:
        config = net.config
        self.net = net
        self.num_cached = 0
        self.caches = [
            LayerCache(
                torch.zeros(max_len, config.kv_lora_rank),
                torch.zeros(max_len, config.qk_rope_head_dim),
                torch.zeros(max_len, config.index_head_dim),
            )
            for _ in net.model.layers
        ]

    @torch.no_grad()
    def extend(self, tokens: list[int], start: int) -> Tensor:
        """Run the trunk over `tokens` at positions from `start` on -> hidden states [n,D] after the final norm."""
        h = self.net.model.embed_tokens(torch.tensor([tokens]))
        selection: Tensor | None = None
        for layer, cache in zip(self.net.model.layers[:-1], self.caches, strict=False):
            out, selection = self._attend(layer.self_attn, layer.input_layernorm(h), cache, start, selection)
            h = layer.feed_forward(h + out, Trace())
        return self.net.model.norm(h)[0]

    @torch.no_grad()
    def extend_draft(self, tokens: list[int], hidden: Tensor, start: int) -> Tensor:
        """Run the MTP layer over pairs (hidden[i], tokens[i]) at positions from `start` on -> hidden states [n,D]."""
        layer = self.net.model.layers[-1]
        h = layer.join(self.net.model.embed_tokens(torch.tensor([tokens])), hidden[None])
        out, _ = self._attend(layer.self_attn, layer.input_layernorm(h), self.caches[-1], start, None)
        return layer.shared_head.norm(layer.feed_forward(h + out, Trace()))[0]

    def _attend(
        self, attn: Attention, x: Tensor, cache: LayerCache, start: int, selection: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Cache x's keys, then attend; the mask [1,1,n,T] is passed on for layers that share it."""
        end = start + x.shape[1]
        positions = torch.arange(start, end)
        angles = self.net.angles(positions)[None]
        q, q_r = attn.queries(x, angles)
        latent, rope_key = attn.latent(x, angles)
        cache.latent[start:end], cache.rope_key[start:end] = latent[0], rope_key[0]
        if attn.indexer is not None:
            cache.index_key[start:end] = attn.indexer.keys(x, angles)[0]
            selection = self._selection(attn, x, q_r, angles, cache, positions)
        assert selection is not None
        k, v = attn.expand(cache.latent[None, :end], cache.rope_key[None, :end])
        scores = q @ k.transpose(-1, -2) * self.net.config.qk_head_dim**-0.5 + selection
        return attn.project(scores.softmax(-1) @ v), selection

    def _selection(
        self, attn: Attention, x: Tensor, q_r: Tensor, angles: Tensor, cache: LayerCache, positions: Tensor
    ) -> Tensor:
        end = int(positions[-1]) + 1
        mask = torch.zeros(1, len(positions), end)
        mask.masked_fill_(torch.arange(end)[None] > positions[:, None], -math.inf)
        topk = self.net.config.index_topk
        if end > topk:
            queries = attn.indexer.queries(x, q_r, angles)
            mask = selection_mask(attn.indexer.scores_by_head(*queries, cache.index_key[None, :end]) + mask, topk)
        return mask[:, None]

    def damage(self, other: "Decoder", prompt_len: int, share: float, rng: random.Random) -> None:
        """Overwrite a share of the prompt's blocks, in all layers, with the same blocks of another sequence."""
        num_blocks = prompt_len // BLOCK_LEN
        for block in rng.sample(range(num_blocks), max(1, round(num_blocks * share))):
            for mine, theirs in zip(self.caches, other.caches, strict=True):
                mine.overwrite(theirs, slice(block * BLOCK_LEN, (block + 1) * BLOCK_LEN))

    def prefill(self, prompt: list[int]) -> Tensor:
        """Cache a prompt in trunk and MTP layer -> hidden states [n,D].

        The MTP layer's last position needs the first answer token; it is written by the first draft.
        """
        hidden = self.extend(prompt, 0)
        if len(prompt) > 1:
            self.extend_draft(prompt[1:], hidden[:-1], 0)
        self.num_cached = len(prompt)
        return hidden

    def generate(
        self, hidden: Tensor, num_drafts: int, max_new: int, is_end: Callable[[int], bool], temperature: float = 0.0
    ) -> Decoded:
        """Decode from the hidden states of the last cached positions until an end token or `max_new` tokens."""
        emitted = [self._pick(hidden[-1], temperature)[0]]
        pairs, pair_start = hidden[-1:], self.num_cached - 1
        lengths: list[int] = []
        while len(emitted) < max_new and not is_end(emitted[-1]):
            fresh = emitted[-len(pairs) :]
            drafts, draft_probs = self._draft(fresh, pairs, pair_start, num_drafts, temperature)
            hidden = self.extend([emitted[-1], *drafts], self.num_cached)
            new = self._verify(hidden, drafts, draft_probs, temperature)
            lengths.append(len(new))
            pairs, pair_start = hidden[: len(new)], self.num_cached
            self.num_cached += len(new)
            end = next((idx for idx, token in enumerate(new) if is_end(token)), None)
            emitted.extend(new if end is None else new[: end + 1])
        return Decoded(emitted, lengths)

    def _draft(
        self, fresh: list[int], pairs: Tensor, start: int, num_drafts: int, temperature: float
    ) -> tuple[list[int], list[Tensor]]:
        """Catch the MTP layer up with verified tokens, then draft greedily or by sampling."""
        h = self.extend_draft(fresh, pairs, start)[-1:]
        position = start + len(fresh)
        drafts: list[int] = []
        probs: list[Tensor] = []
        for step in range(num_drafts):
            if step > 0:
                h = self.extend_draft([drafts[-1]], h, position + step - 1)
            token, prob = self._pick(h[-1], temperature)
            drafts.append(token)
            probs.append(prob)
        return drafts, probs

    def _verify(self, hidden: Tensor, drafts: list[int], draft_probs: list[Tensor], temperature: float) -> list[int]:
        """Accepted drafts and the bonus or corrected token."""
        new: list[int] = []
        for idx, draft in enumerate(drafts):
            token, prob = self._pick(hidden[idx], temperature)
            if temperature > 0:
                keep = float(torch.rand(())) < float(prob[draft] / draft_probs[idx][draft])
                rest = (prob - draft_probs[idx]).clamp_min(0)
                token = draft if keep else int(torch.multinomial(rest, 1))
            new.append(token)
            if token != draft or (temperature > 0 and not keep):
                return new
        return [*new, self._pick(hidden[len(drafts)], temperature)[0]]

    @torch.no_grad()
    def _pick(self, hidden: Tensor, temperature: float) -> tuple[int, Tensor]:
        """The greedy or sampled token of one hidden state [D], and the distribution [vocab] it came from."""
        logits = self.net.logits(hidden)
        if temperature == 0:
            return int(logits.argmax()), logits
        prob = (logits / temperature).softmax(-1)
        return int(torch.multinomial(prob, 1)), prob
