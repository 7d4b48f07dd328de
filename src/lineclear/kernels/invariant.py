"""Batch-invariant operations for the CPU: a row's bits do not depend on the other rows.

What was measured (torch 2.13 with oneMKL, AVX-512, one and two threads), and what follows from it:

1. `mm` with the weight stored input-major gives a row the same bits for every height from 2 upwards, alone, in a
   batched product and next to other columns, as long as the inner dimension is at most 512; from 1024 on it does not.
   So inner dimensions are cut in tiles of at most `INNER_TILE`, summed in order, and passes have at least `MIN_ROWS`
   rows.
2. A row vector times a matrix gives a column bits that depend on the matrix's width. So the sum over index heads always
   has `KEY_TILE` columns, and the sum over experts a model's own shape.
3. `sigmoid` and `silu` treat the last few values of a tensor otherwise than the rest, `exp` and division do not. So the
   gate is written with these.

Another BLAS may behave otherwise: the first product of each weight shape is compared over several heights, and a shape
that fails is computed in tiles of one fixed height from then on.
"""

import functools

import numpy as np
import torch
from torch import Tensor

from lineclear.kernels import reference
from lineclear.kernels.ops import Ops
from lineclear.kernels.workspace import Workspace

INNER_TILE = 512
"""Largest inner dimension of one product: rows keep their bits up to here (measured)."""

MIN_ROWS = 2
"""Fewest rows of a product: one row takes another path (measured)."""

ROW_TILE = 32
"""Height of the tiles for weight shapes that fail the comparison."""

KEY_TILE = 256
"""Keys that are scored in one product. Contexts are padded to a multiple, so it is not larger than need be."""

MAX_PRODUCTS = 1 << 18
"""Products of index heads and keys in memory at once: 1 MiB, which stays in a core's cache."""

MAX_GATHERED = 1 << 18
"""Values of the slots gathered at once: 1 MiB in fp32. Beyond a core's cache a token took four times as long."""

_PROBE_COUNTS = (1, 2, 3, 4, 5, 7, 8, 16, 31, 64)

MAX_ALL_EXPERTS_PRODUCTS = 1024
"""Tokens times experts up to which computing every expert for every token is faster than gathering tokens (measured).
"""


class InvariantMatmul:
    """Rows times an input-major weight, with the same bits for a row in any company.

    Order: inner tiles are summed from the first to the last.
    """

    def __init__(self) -> None:
        self._is_direct: dict[tuple[torch.dtype, int, int, int], bool] = {}

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Shapes: x: [R, in] or [B, R, in]; weight: [in, out] or [B, in, out]; returns [R, out] or [B, R, out]."""
        if x.shape[-2] < MIN_ROWS:
            return self(torch.cat([x] * MIN_ROWS, dim=-2), weight)[..., : x.shape[-2], :]
        return _inner_tiled(x, weight) if self._keeps_bits(weight, 1) else _row_tiled(x, weight)

    def into(self, out: Tensor, x: Tensor, weight: Tensor, row_unit: int) -> None:
        """The batched product, written to `out`, of rows that come in multiples of `row_unit`.

        Shapes: x: [B, R, in]; weight: [B, in, out]; out: [B, R, out].
        """
        if weight.shape[-2] <= INNER_TILE and self._keeps_bits(weight, row_unit):
            torch.bmm(x, weight, out=out)
        else:
            out.copy_(_row_tiled(x, weight))

    def _keeps_bits(self, weight: Tensor, row_unit: int) -> bool:
        key = (weight.dtype, weight.shape[-2], weight.shape[-1], row_unit)
        is_direct = self._is_direct.get(key)
        if is_direct is None:
            is_direct = _keeps_bits(weight, row_unit)
            self._is_direct[key] = is_direct
        return is_direct


def _inner_tiled(x: Tensor, weight: Tensor) -> Tensor:
    multiply = torch.mm if weight.dim() == 2 else torch.bmm
    inner = weight.shape[-2]
    if inner <= INNER_TILE:
        return multiply(x, weight)
    total = multiply(x[..., :INNER_TILE], weight[..., :INNER_TILE, :])
    for start in range(INNER_TILE, inner, INNER_TILE):
        end = start + INNER_TILE
        total += multiply(x[..., start:end], weight[..., start:end, :])
    return total


def _row_tiled(x: Tensor, weight: Tensor) -> Tensor:
    num_rows = x.shape[-2]
    padded = _with_rows(x, -(-num_rows // ROW_TILE) * ROW_TILE)
    tiles = [_inner_tiled(tile.contiguous(), weight) for tile in padded.split(ROW_TILE, dim=-2)]
    return torch.cat(tiles, dim=-2)[..., :num_rows, :]


def _with_rows(x: Tensor, num_rows: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, num_rows - x.shape[-2]))


def _keeps_bits(weight: Tensor, row_unit: int) -> bool:
    """Whether rows of a product with this weight have the same bits at every height tried."""
    one = weight if weight.dim() == 2 else weight[0]
    heights = [row_unit * count for count in _PROBE_COUNTS if row_unit * count >= MIN_ROWS]
    rows = torch.randn(heights[-1], one.shape[0], generator=torch.Generator().manual_seed(0)).to(one.dtype)
    expected = _inner_tiled(rows, one)
    return all(torch.equal(_inner_tiled(rows[:height].clone(), one), expected[:height]) for height in heights)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm from the vector norm: fewer passes than the reference."""
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    normed = x.mul(torch.addcmul(_scalar(eps), norms, norms, value=1 / x.shape[-1]).rsqrt_())
    if normed.dtype != x.dtype:
        normed = normed.to(x.dtype)
    return normed if weight is None else normed.mul_(weight)


@functools.cache
def _scalar(value: float) -> Tensor:
    return torch.tensor(value)


def rotate(x: Tensor, cis: Tensor) -> None:
    """Rotary embedding as a complex product, in place."""
    if x.dtype == torch.float32:
        x.view(torch.complex64).mul_(cis)
    else:
        reference.rotate(x, cis)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up.

    One thread goes row by row, so the values that `silu` treats otherwise are the same places of every row. Several
    threads cut a tensor anywhere, so that they need operations that treat all values alike.
    """
    width = gate_up.shape[-1] // 2
    gate, up = gate_up.split_with_sizes((width, width), dim=-1)
    if torch.get_num_threads() == 1:
        return torch.nn.functional.silu(gate).mul_(up)
    return gate.div(gate.neg().exp_().add_(1)).mul_(up)


class GatherToWorkspace:
    """Gathers rows into memory that stays."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __call__(self, cache: Tensor, slots: Tensor) -> Tensor:
        """Shapes: as `Gather`."""
        rows = self._workspace.take("gathered", cache.dtype, slots.numel(), cache.shape[1])
        torch.index_select(cache, 0, slots.flatten(), out=rows)
        return rows.view(*slots.shape, -1)


class InvariantScores:
    """Index scores from products of one width: `KEY_TILE` keys."""

    def __init__(self, matmul: InvariantMatmul, workspace: Workspace) -> None:
        self._matmul = matmul
        self._workspace = workspace

    def __call__(self, queries: Tensor, head_weights: Tensor, keys: Tensor) -> Tensor:
        """Shapes: as `IndexScores`. Several sequences at once, or one sequence's keys in several steps."""
        num_sequences, num_tokens, num_heads, width = queries.shape
        num_tiles = keys.shape[1] // KEY_TILE
        scores = self._workspace.take("scores", torch.float32, num_sequences, num_tokens, keys.shape[1])
        score_tiles = scores.view(num_sequences, num_tokens, num_tiles, KEY_TILE).transpose(1, 2)
        key_tiles = keys.view(num_sequences, num_tiles, KEY_TILE, width)
        tiles_a_step = max(1, MAX_PRODUCTS // (num_tokens * num_heads * KEY_TILE))
        if num_sequences * num_tiles <= tiles_a_step:
            score_tiles.copy_(self._score(queries, head_weights, key_tiles))
            return scores
        sequences_a_step = max(1, tiles_a_step // num_tiles)
        for first in range(0, num_sequences, sequences_a_step):
            sequences = slice(first, first + sequences_a_step)
            for start in range(0, num_tiles, tiles_a_step):
                part = (sequences, slice(start, start + tiles_a_step))
                score_tiles[part] = self._score(queries[sequences], head_weights[sequences], key_tiles[part])
        return scores

    def _score(self, queries: Tensor, head_weights: Tensor, key_tiles: Tensor) -> Tensor:
        """Shapes: key_tiles: [S, tiles, KEY_TILE, J]; returns [S, tiles, N, KEY_TILE]."""
        num_sequences, num_tiles, _, width = key_tiles.shape
        num_tokens, num_heads = head_weights.shape[1:]
        num_pairs = num_sequences * num_tiles
        rows = queries.reshape(num_sequences, 1, -1, width).expand(-1, num_tiles, -1, -1).flatten(0, 1)
        products = self._workspace.take("products", torch.float32, num_pairs, rows.shape[1], KEY_TILE)
        self._matmul.into(products, rows, key_tiles.flatten(0, 1).transpose(1, 2), num_heads)
        products = products.relu_().view(-1, num_heads, KEY_TILE)
        weights = head_weights.unsqueeze(1).expand(-1, num_tiles, -1, -1).reshape(-1, 1, num_heads)
        sums = self._workspace.take("sums", torch.float32, num_pairs * num_tokens, 1, KEY_TILE)
        return torch.bmm(weights, products, out=sums).view(num_sequences, num_tiles, num_tokens, KEY_TILE)


class SelectOnHost:
    """Selection by partial sorting with NumPy, several times as fast as `topk`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __call__(self, scores: Tensor, count: int) -> Tensor:
        """Everything above the `count`-th best score, and as many of its equals as there is room for, from the left."""
        num_rows, width = scores.shape
        table = scores.numpy()
        thresholds = self._thresholds(table, count)
        is_selected = self._workspace.take_array("mask", torch.bool, num_rows, width)
        flat_positions = np.greater_equal(table, thresholds, out=is_selected).ravel().nonzero()[0]
        if flat_positions.size != num_rows * count:
            flat_positions = _without_surplus(table, thresholds, count).ravel().nonzero()[0]
        return torch.from_numpy(flat_positions.reshape(num_rows, count) % width)

    def _thresholds(self, table: np.ndarray, count: int) -> np.ndarray:
        """The `count`-th best score of each row, [R, 1]."""
        place = table.shape[1] - count
        partitioned = self._workspace.take_array("partitioned", torch.float32, *table.shape)
        np.copyto(partitioned, table)
        partitioned.partition(place, axis=-1)
        return partitioned[:, place, None]


def _without_surplus(table: np.ndarray, thresholds: np.ndarray, count: int) -> np.ndarray:
    above = table > thresholds
    equal = table == thresholds
    room = count - above.sum(axis=-1, keepdims=True)
    return above | (equal & (equal.cumsum(axis=-1) <= room))


class TiledAttention:
    """Gathers and attends for a few tokens at a time; each token's products have shapes of their own."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __call__(
        self, queries: Tensor, cache: Tensor, slots: Tensor, beyond: Tensor | None, latent_width: int
    ) -> Tensor:
        """Shapes: as `LatentAttention`."""
        num_tokens, num_slots = slots.shape
        step = max(1, MAX_GATHERED // (num_slots * cache.shape[1]))
        if num_tokens <= step:
            return self._attend(queries, cache, slots, beyond, latent_width)
        tiles = [slice(start, start + step) for start in range(0, num_tokens, step)]
        return torch.cat(
            [
                self._attend(queries[tile], cache, slots[tile], None if beyond is None else beyond[tile], latent_width)
                for tile in tiles
            ]
        )

    def _attend(
        self, queries: Tensor, cache: Tensor, slots: Tensor, beyond: Tensor | None, latent_width: int
    ) -> Tensor:
        rows = self._workspace.take("attention", cache.dtype, slots.numel(), cache.shape[1])
        gathered = torch.index_select(cache, 0, slots.flatten(), out=rows).view(*slots.shape, -1)
        scores = torch.bmm(queries, gathered.transpose(1, 2))
        if beyond is not None:
            scores.masked_fill_(beyond, -torch.inf)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
        if weights.dtype != queries.dtype:
            weights = weights.to(queries.dtype)
        return torch.bmm(weights, gathered[..., :latent_width])


class InvariantExperts:
    """Each token's experts, from all experts' outputs or from each expert's tokens: the bits are the same.

    That they are is checked when a shape is first seen; where it does not hold, tokens are always grouped.
    """

    def __init__(self, matmul: InvariantMatmul) -> None:
        self._matmul = matmul
        self._agree: dict[tuple[torch.dtype, torch.Size], bool] = {}

    def __call__(
        self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor, gate_up: Tensor, down: Tensor, num_shared: int
    ) -> Tensor:
        """Shapes: as `Experts`. Order: a token's routed experts as they are listed, then the shared ones."""
        num_products = x.shape[0] * down.shape[0]
        is_few = num_products <= MAX_ALL_EXPERTS_PRODUCTS and down.shape[0] <= 4 * expert_ids.numel()
        if is_few and self._ways_agree(gate_up, down, num_shared):
            routed, shared = self.all_experts(x, expert_ids, gate_up, down, num_shared)
        else:
            routed, shared = self.grouped(x, expert_ids, gate_up, down, num_shared)
        if x.dtype != torch.float32:
            expert_weights = expert_weights.to(x.dtype)
        return torch.baddbmm(shared, expert_weights.unsqueeze(1), routed).squeeze(1)

    def _ways_agree(self, gate_up: Tensor, down: Tensor, num_shared: int) -> bool:
        key = (down.dtype, down.shape)
        agrees = self._agree.get(key)
        if agrees is None:
            num_routed = down.shape[0] - num_shared
            x = torch.randn(2 * num_routed, down.shape[2], generator=torch.Generator().manual_seed(0)).to(down.dtype)
            ids = (torch.arange(2 * num_routed).unsqueeze(1) + torch.arange(min(2, num_routed))) % num_routed
            ways = (self.all_experts, self.grouped)
            ours, theirs = (way(x, ids, gate_up, down, num_shared) for way in ways)
            agrees = all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
            self._agree[key] = agrees
        return agrees

    def all_experts(
        self, x: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor, num_shared: int
    ) -> tuple[Tensor, Tensor]:
        """Outputs of the routed experts, [T, A, D], and of the shared ones together, [T, 1, D]."""
        num_experts = down.shape[0]
        inner = silu_mul(self._matmul(x, gate_up).view(x.shape[0], num_experts, -1))
        outputs = self._matmul(inner.transpose(0, 1), down).transpose(0, 1)
        routed = outputs.gather(1, expert_ids.unsqueeze(-1).expand(-1, -1, x.shape[1]))
        return routed, _sum_of_last(outputs, num_shared)

    def grouped(
        self, x: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor, num_shared: int
    ) -> tuple[Tensor, Tensor]:
        """What `all_experts` returns, from one expert's tokens after the other's."""
        num_active, num_routed = expert_ids.shape[1], down.shape[0] - num_shared
        order = torch.argsort(expert_ids.view(-1), stable=True)
        counts = torch.bincount(expert_ids.view(-1), minlength=num_routed).tolist()
        gathered = x.index_select(0, order.div(num_active, rounding_mode="floor"))
        gate_up_of = gate_up.view(x.shape[1], down.shape[0], -1)
        parts = [
            self._expert(rows, gate_up_of[:, expert], down[expert])
            for expert, rows in enumerate(gathered.split(counts))
            if rows.shape[0]
        ]
        routed = torch.empty_like(gathered).index_copy_(0, order, torch.cat(parts))
        shared = [self._expert(x, gate_up_of[:, expert], down[expert]) for expert in range(num_routed, down.shape[0])]
        return routed.view(*expert_ids.shape, -1), _sum_of_last(torch.stack(shared, dim=1), num_shared)

    def _expert(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return self._matmul(silu_mul(self._matmul(x, gate_up)), down)


def _sum_of_last(outputs: Tensor, count: int) -> Tensor:
    """Shapes: outputs: [T, E, D]; returns [T, 1, D], the last experts summed from the first of them to the last."""
    first, *others = outputs[:, -count:].split(1, dim=1) if count > 1 else [outputs[:, -1:]]
    for other in others:
        first = first + other
    return first


def invariant_ops() -> Ops:
    """A table for the CPU, with a workspace of its own."""
    matmul = InvariantMatmul()
    workspace = Workspace()
    return Ops(
        matmul=matmul,
        rms_norm=rms_norm,
        layer_norm=reference.layer_norm,
        rotate=rotate,
        silu_mul=silu_mul,
        gather=GatherToWorkspace(workspace),
        index_scores=InvariantScores(matmul, workspace),
        select_positions=SelectOnHost(workspace),
        latent_attention=TiledAttention(workspace),
        experts=InvariantExperts(matmul),
        min_rows=MIN_ROWS,
        key_tile=KEY_TILE,
    )
