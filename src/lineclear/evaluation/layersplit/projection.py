"""What LayerSplit should give GLM-5.1 on eight H200: arithmetic from the same ownership, no measurement.

Peaks of one GPU are NVIDIA's: https://www.nvidia.com/en-us/data-center/h200/ (SXM: 141 GB at 4.8 TB/s; NVLink
900 GB/s, both directions together; 1,979 TFLOPS BF16 and 3,958 TFLOPS FP8, both "with sparsity", so dense half of
them). The model's sizes are those of its published configuration; KV is laid out as FlashMLA and DeepGEMM want it.

What is assumed, each in favour of the one or the other:
1. Computing runs at the peak, which no kernel reaches: the least time there is to hide a broadcast behind.
2. A broadcast takes what its bytes take over one GPU's link in one direction, as pipelined rings and multicast come
   near to. An owner that sends to seven peers one after the other takes seven times as long: given beside it.
3. Work is even over ranks; experts are spread over ranks, and a step reads all of a layer's weights once.
4. Draft layer and staging count; activations, graphs and the rest of the memory are a tenth of it.
"""

from dataclasses import dataclass
from typing import Final

from lineclear.kv.layout import PartShape
from lineclear.parallel.planning.ownership import own_layers

SGLANG_CAPACITY_RATIO: Final = 7.09
"""Of 78 layers on 8 ranks, as SGLang reports for its LayerSplit: a spare layer slot, as large as the pool, on each."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of one GPU, dense. Units: bytes, bytes/s, FLOP/s; `link` is one direction."""

    memory: float = 141e9
    memory_rate: float = 4.8e12
    link_rate: float = 450e9
    bf16_rate: float = 989e12
    fp8_rate: float = 1979e12


@dataclass(frozen=True, slots=True)
class LargeModel:
    """GLM-5.1."""

    num_layers: int = 78
    num_draft_layers: int = 1
    hidden: int = 6144
    num_heads: int = 64
    q_rank: int = 2048
    kv_rank: int = 512
    rope_dim: int = 64
    nope_dim: int = 192
    value_dim: int = 256
    num_experts: int = 256
    num_active_experts: int = 9
    """The shared one included."""
    expert_width: int = 2048
    num_index_heads: int = 32
    index_dim: int = 128
    index_topk: int = 2048
    num_parameters: float = 753.9e9
    """The draft layer's included; FP8, so as many bytes."""
    latent_bytes: int = 656
    """Of one token in one layer: 512 FP8 values, 4 scales, 64 BF16 values."""
    index_bytes: int = 132
    """128 FP8 values and a scale."""

    def shape(self, num_layers: int) -> list[PartShape]:
        """The KV parts of layers; every layer has an indexer."""
        sizes = {"latent": self.latent_bytes, "index": self.index_bytes}
        return [PartShape(layer, part, size) for layer in range(num_layers) for part, size in sizes.items()]

    @property
    def linear_flops(self) -> float:
        """Of one token in one sparse layer, without attention and scores."""
        heads, latent = self.num_heads, self.kv_rank
        attention = self.hidden * (self.q_rank + latent + self.rope_dim)
        attention += self.q_rank * heads * (self.nope_dim + self.rope_dim)
        attention += heads * latent * (self.nope_dim + self.value_dim) + heads * self.value_dim * self.hidden
        index = self.q_rank * self.num_index_heads * self.index_dim + self.hidden * (
            self.index_dim + self.num_index_heads
        )
        experts = self.num_active_experts * 3 * self.hidden * self.expert_width
        return 2.0 * (attention + index + experts)

    @property
    def attention_flops(self) -> float:
        """Of one token that attends to `index_topk` others, in the latent space."""
        return 2.0 * self.num_heads * self.index_topk * (2 * self.kv_rank + self.rope_dim)

    def score_flops(self, context_len: float) -> float:
        """Of one token that scores so many others."""
        return 2.0 * self.num_index_heads * self.index_dim * context_len

    @property
    def layer_weight_bytes(self) -> float:
        """Of one sparse layer's experts in FP8."""
        return 3.0 * (self.num_experts + 1) * self.hidden * self.expert_width


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One layer of one step. Units: bytes, seconds."""

    latent_bytes: int
    index_bytes: int
    latent_broadcast_seconds: float
    index_broadcast_seconds: float
    score_seconds: float
    """What an index part's successor, the latent part, can hide behind at the least."""
    compute_seconds: float
    """Of the whole layer, scores included."""

    @property
    def broadcast_share(self) -> float:
        """Broadcasts' time, of the time that they can hide behind."""
        return (self.latent_broadcast_seconds + self.index_broadcast_seconds) / self.compute_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What fits into the ranks of one instance. Units: tokens."""

    replicated_tokens: int
    layersplit_tokens: int

    @property
    def ratio(self) -> float:
        """LayerSplit against replicated, staging paid for."""
        return self.layersplit_tokens / self.replicated_tokens


@dataclass(frozen=True, slots=True)
class Projection:
    """One model on some GPUs."""

    model: LargeModel = LargeModel()
    gpu: Gpu = Gpu()
    num_ranks: int = 8
    kv_share: float = 0.9
    """Of a GPU's memory that weights and KV may take."""

    def layer_step(self, prefix_len: int, chunk_len: int) -> StepTimes:
        """One layer of a step that computes a chunk after so long a prefix."""
        model, gpu = self.model, self.gpu
        num_own = chunk_len / self.num_ranks
        latent, index = prefix_len * model.latent_bytes, prefix_len * model.index_bytes
        score = num_own * model.score_flops(prefix_len + chunk_len / 2) / gpu.fp8_rate
        linear = num_own * model.linear_flops / gpu.fp8_rate
        weights = model.layer_weight_bytes / self.num_ranks / gpu.memory_rate
        attention = num_own * model.attention_flops / gpu.bf16_rate
        return StepTimes(
            latent_bytes=latent,
            index_bytes=index,
            latent_broadcast_seconds=latent / gpu.link_rate,
            index_broadcast_seconds=index / gpu.link_rate,
            score_seconds=score,
            compute_seconds=score + attention + max(linear, weights),
        )

    def capacity(self, longest: int, chunk_len: int) -> Capacity:
        """With staging of two buffers a part, for a sequence of the longest length and a chunk."""
        model = self.model
        free = self.gpu.memory * self.kv_share - model.num_parameters / self.num_ranks
        owners = own_layers(model.shape(model.num_layers + model.num_draft_layers), self.num_ranks)
        staging = 2 * (longest + chunk_len) * (model.latent_bytes + model.index_bytes)
        return Capacity(
            replicated_tokens=int(free / sum(owners.row_bytes)),
            layersplit_tokens=int((free - staging) / max(owners.row_bytes)),
        )

    def layers_ratio(self) -> float:
        """Tokens that fit for the model's own layers, staging and the draft layer apart."""
        return own_layers(self.model.shape(self.model.num_layers), self.num_ranks).capacity_ratio

    def throughput_bound(self, length: int, seen_share: float) -> float:
        """Input throughput with so much of each prompt found, against nothing found: the most that memory is worth."""
        seen_len = length * seen_share
        return self._seconds(0, length) / self._seconds(seen_len, length)

    def _seconds(self, start: float, end: float) -> float:
        """Of tokens [start, end) in one layer, at the peak."""
        model, gpu = self.model, self.gpu
        each = model.linear_flops / gpu.fp8_rate + model.attention_flops / gpu.bf16_rate
        return (end - start) * (each + model.score_flops((start + end) / 2) / gpu.fp8_rate)
