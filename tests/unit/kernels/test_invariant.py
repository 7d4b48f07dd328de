"""The CPU's table agrees with the reference, and its rows do not depend on their company."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lineclear.kernels import invariant, reference
from lineclear.kernels.invariant import InvariantExperts, InvariantMatmul, SelectOnHost, invariant_ops
from lineclear.kernels.reference import REFERENCE
from lineclear.kernels.workspace import Workspace


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("inner", [16, 512, 513, 1300])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 33])
def test_matmul_agrees_with_the_reference(inner: int, num_rows: int) -> None:
    x, weight = values(num_rows, inner), values(inner, 40, seed=1)
    torch.testing.assert_close(InvariantMatmul()(x, weight), x @ weight, rtol=1e-4, atol=1e-3)
    batched = InvariantMatmul()(x.expand(3, -1, -1), weight.expand(3, -1, -1))
    torch.testing.assert_close(batched[1], x @ weight, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("inner", [48, 1300, 2048])
def test_matmul_rows_keep_bits_at_every_height(inner: int) -> None:
    matmul, x, weight = InvariantMatmul(), values(300, inner), values(inner, 272, seed=1)
    expected = matmul(x, weight)
    for start, end in ((0, 1), (7, 9), (3, 20), (100, 300)):
        assert torch.equal(matmul(x[start:end], weight), expected[start:end])


def test_a_shape_that_fails_the_comparison_is_computed_in_tiles_of_one_height(monkeypatch: pytest.MonkeyPatch) -> None:
    heights: list[int] = []

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        """A library whose rounding depends on the height."""
        heights.append(x.shape[-2])
        return torch.matmul(x, weight) + x.shape[-2] * 1e-3

    monkeypatch.setattr(invariant, "_inner_tiled", multiply)
    matmul, x, weight = InvariantMatmul(), values(70, 16), values(16, 8, seed=1)
    expected = matmul(x, weight)
    heights.clear()
    assert torch.equal(matmul(x[64:], weight), expected[64:])
    assert torch.equal(matmul(x[:1], weight), expected[:1])
    assert set(heights) == {invariant.ROW_TILE}


def test_into_writes_the_product_where_it_is_told() -> None:
    x, weight, out = values(2, 8, 16), values(2, 16, 8, seed=1), torch.empty(2, 8, 8)
    InvariantMatmul().into(out, x, weight, row_unit=4)
    torch.testing.assert_close(out, x @ weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_rms_norm_agrees_with_the_reference(dtype: torch.dtype, *, is_weighted: bool) -> None:
    x = values(5, 48).to(dtype)
    weight = values(48, seed=1).to(dtype) if is_weighted else None
    result = invariant.rms_norm(x, weight, 1e-6)
    assert result.dtype == dtype
    torch.testing.assert_close(result, reference.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotate_agrees_with_the_reference(dtype: torch.dtype) -> None:
    cis = torch.polar(torch.ones(6, 8), values(6, 8, seed=1))
    ours, expected = values(6, 3, 24).to(dtype), values(6, 3, 24).to(dtype)
    invariant.rotate(ours[..., 8:], cis.unsqueeze(1))
    reference.rotate(expected[..., 8:], cis.unsqueeze(1))
    torch.testing.assert_close(ours, expected)
    assert torch.equal(ours[..., :8], values(6, 3, 24).to(dtype)[..., :8])


def test_rotate_turns_pairs_by_their_angle() -> None:
    x = torch.tensor([[1.0, 0.0, 0.0, 2.0]])
    reference.rotate(x, torch.polar(torch.ones(1, 2), torch.tensor([[torch.pi / 2, torch.pi]])))
    torch.testing.assert_close(x, torch.tensor([[0.0, 1.0, 0.0, -2.0]]))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("width", [21, 32, 100])
def test_silu_mul_keeps_bits(width: int, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        gate_up = values(1001, 2 * width)
        expected = invariant.silu_mul(gate_up)
        torch.testing.assert_close(expected, reference.silu_mul(gate_up))
        for start, end in ((0, 1), (5, 8), (400, 900)):
            assert torch.equal(invariant.silu_mul(gate_up[start:end].clone()), expected[start:end])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("num_sequences", "num_tokens", "num_tiles"), [(1, 1, 1), (1, 32, 9), (3, 4, 2), (20, 2, 5)])
def test_index_scores_agree_with_the_reference(num_sequences: int, num_tokens: int, num_tiles: int) -> None:
    queries, weights = values(num_sequences, num_tokens, 16, 8), values(num_sequences, num_tokens, 16, seed=1)
    keys = values(num_sequences, num_tiles * invariant.KEY_TILE, 8, seed=2)
    ours = invariant_ops().index_scores(queries, weights, keys)
    torch.testing.assert_close(ours, reference.index_scores(queries, weights, keys), rtol=1e-4, atol=1e-4)


def test_index_scores_keep_bits_whatever_the_context_and_the_company() -> None:
    queries, weights, keys = (
        values(3, 32, 16, 8),
        values(3, 32, 16, seed=1),
        values(3, 4 * invariant.KEY_TILE, 8, seed=2),
    )
    score = invariant_ops().index_scores
    expected = score(queries, weights, keys).clone()
    for sequence, tokens, num_tiles in ((0, slice(0, 1), 1), (1, slice(3, 7), 2), (2, slice(0, 32), 3)):
        positions = slice(0, num_tiles * invariant.KEY_TILE)
        part = score(queries[sequence, None, tokens], weights[sequence, None, tokens], keys[sequence, None, positions])
        assert torch.equal(part[0], expected[sequence, tokens, positions])


SELECTIONS: list[Callable[[Tensor, int], Tensor]] = [reference.select_positions, SelectOnHost(Workspace())]


@pytest.mark.parametrize("select", SELECTIONS, ids=["reference", "host"])
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.1, 0.9, 0.5, 0.7, 0.2], [1, 2, 3]),
        ([1.0, 1.0, 1.0, 1.0, 1.0], [0, 1, 2]),
        ([0.0, 2.0, 1.0, 1.0, 1.0], [1, 2, 3]),
        ([1.0, 0.0, -0.0, 0.0, 2.0], [0, 1, 4]),
        ([-1.0, -3.0, -2.0, float("-inf"), float("-inf")], [0, 1, 2]),
        ([1.0, float("-inf"), float("-inf"), float("-inf"), 0.0], [0, 1, 4]),
    ],
)
def test_equal_scores_go_to_the_lower_position(
    select: Callable[[Tensor, int], Tensor], scores: list[float], expected: list[int]
) -> None:
    other = [0.3, 0.1, 0.2, 0.5, 0.4]
    assert select(torch.tensor([other, scores]), 3).tolist() == [[0, 3, 4], expected]


@pytest.mark.parametrize("num_levels", [2, 7, 10_000])
def test_host_selection_is_the_stable_sort(num_levels: int) -> None:
    scores = torch.randint(0, num_levels, (40, 700), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(SelectOnHost(Workspace())(scores, 64), reference.select_positions(scores, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 7, 300])
def test_latent_attention_agrees_with_the_reference(num_tokens: int, dtype: torch.dtype) -> None:
    queries, cache = values(num_tokens, 4, 40).to(dtype), values(500, 40, seed=1).to(dtype)
    slots = torch.randint(0, 500, (num_tokens, 64), generator=torch.Generator().manual_seed(2))
    counts = torch.randint(1, 65, (num_tokens,), generator=torch.Generator().manual_seed(3))
    for beyond in (None, torch.arange(64) >= counts[:, None, None]):
        ours = invariant_ops().latent_attention(queries, cache, slots, beyond, 32)
        torch.testing.assert_close(ours, reference.latent_attention(queries, cache, slots, beyond, 32))


def test_places_beyond_take_no_part() -> None:
    queries, cache = values(1, 2, 8), values(4, 8, seed=1)
    beyond = torch.tensor([[[False, False, True]]])
    for ops in (REFERENCE, invariant_ops()):
        ours = ops.latent_attention(queries, cache, torch.tensor([[1, 2, 0]]), beyond, 6)
        without = ops.latent_attention(queries, cache, torch.tensor([[1, 2]]), None, 6)
        torch.testing.assert_close(ours, without)


class Mixture:
    """Random experts and a random routing. Shapes: as `Experts`."""

    def __init__(self, num_tokens: int, num_experts: int = 8, num_active: int = 3, num_shared: int = 2) -> None:
        total = num_experts + num_shared
        self.num_shared = num_shared
        self.x = values(num_tokens, 24)
        order = values(num_tokens, num_experts, seed=1).argsort(dim=1)
        self.ids, self.weights = order[:, :num_active].contiguous(), values(num_tokens, num_active, seed=2).abs()
        self.gate_up, self.down = values(24, total * 2 * 12, seed=3), values(total, 12, 24, seed=4)


@pytest.mark.parametrize("num_tokens", [1, 5, 200])
def test_experts_agree_with_the_reference(num_tokens: int) -> None:
    mix = Mixture(num_tokens)
    ours = InvariantExperts(InvariantMatmul())(mix.x, mix.ids, mix.weights, mix.gate_up, mix.down, mix.num_shared)
    expected = reference.experts(mix.x, mix.ids, mix.weights, mix.gate_up, mix.down, mix.num_shared)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("num_tokens", [2, 5, 64])
@pytest.mark.parametrize("num_shared", [1, 2])
def test_grouped_and_all_experts_have_the_same_bits(num_tokens: int, num_shared: int) -> None:
    mix = Mixture(num_tokens, num_shared=num_shared)
    experts = InvariantExperts(InvariantMatmul())
    grouped = experts.grouped(mix.x, mix.ids, mix.gate_up, mix.down, num_shared)
    everything = experts.all_experts(mix.x, mix.ids, mix.gate_up, mix.down, num_shared)
    assert torch.equal(grouped[0], everything[0])
    assert torch.equal(grouped[1], everything[1])


def test_experts_keep_bits_in_any_company() -> None:
    """Few tokens compute all experts, many are grouped."""
    mix = Mixture(400)
    experts = InvariantExperts(InvariantMatmul())
    expected = experts(mix.x, mix.ids, mix.weights, mix.gate_up, mix.down, mix.num_shared)
    for start, end in ((0, 2), (5, 9), (17, 80), (0, 399)):
        part = slice(start, end)
        ours = experts(mix.x[part], mix.ids[part], mix.weights[part], mix.gate_up, mix.down, mix.num_shared)
        assert torch.equal(ours, expected[part])


def test_workspace_reuses_memory_and_grows() -> None:
    workspace = Workspace()
    first = workspace.take("a", torch.float32, 4, 8)
    assert workspace.take("a", torch.float32, 8, 4).data_ptr() == first.data_ptr()
    assert workspace.take("b", torch.float32, 8, 4).data_ptr() != first.data_ptr()
    assert workspace.take("a", torch.bool, 3).dtype == torch.bool
    large = workspace.take("a", torch.float32, 100)
    assert workspace.take("a", torch.float32, 4, 8).data_ptr() == large.data_ptr()
    assert workspace.size_bytes == 4 * 100 + 4 * 32 + 3


def test_workspace_forgets_shapes_but_not_memory() -> None:
    workspace = Workspace()
    large = workspace.take("a", torch.float32, 1000)
    for size in range(1, 600):
        assert workspace.take("a", torch.float32, size).data_ptr() == large.data_ptr()
    assert workspace.size_bytes == 4000
