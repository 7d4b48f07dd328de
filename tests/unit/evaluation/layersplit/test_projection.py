import pytest

from lineclear.evaluation.layersplit.projection import SGLANG_CAPACITY_RATIO, Projection

PROJECTION = Projection()


def test_78_layers_on_8_ranks_reach_the_bound() -> None:
    assert PROJECTION.layers_ratio() == 7.8 > SGLANG_CAPACITY_RATIO


def test_capacity_pays_for_staging() -> None:
    capacity = PROJECTION.capacity(120_000, 8192)
    assert 7.8 < capacity.ratio < 7.9  # 79 layers with the draft layer, 10 of them on the heaviest rank
    assert capacity.replicated_tokens == pytest.approx((141e9 * 0.9 - 753.9e9 / 8) / (79 * 788), abs=1)


def test_a_layer_of_a_step() -> None:
    step = PROJECTION.layer_step(108_000, 8192)
    assert step.latent_bytes == 108_000 * 656
    assert step.index_bytes == 108_000 * 132
    assert step.latent_broadcast_seconds == pytest.approx(108_000 * 656 / 450e9)
    scores = 1024 * 2 * 32 * 128 * (108_000 + 4096)
    assert step.score_seconds == pytest.approx(scores / 1979e12)
    assert step.broadcast_share < 0.2


def test_the_models_arithmetic_is_that_of_its_published_size() -> None:
    model = PROJECTION.model
    # 40.7 B active parameters, of which 1.9 B are embedding and head; dense layers are near to sparse ones.
    assert model.num_layers * model.linear_flops / 2 == pytest.approx(40.7e9 - 1.9e9, rel=0.1)
    assert model.num_layers * model.layer_weight_bytes == pytest.approx(model.num_parameters, rel=0.05)


def test_found_prefixes_are_worth_less_than_their_share_of_tokens_where_contexts_cost() -> None:
    assert 1 < PROJECTION.throughput_bound(120_000, 0.9) < PROJECTION.throughput_bound(40_000, 0.9) < 10
