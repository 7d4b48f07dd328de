"""Against `transformers` on the same checkpoint: layers, index scores, selections, logits and greedy tokens."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lineclear.kernels.invariant import invariant_ops
from lineclear.kernels.ops import Ops
from lineclear.kernels.reference import REFERENCE
from lineclear.model.glm import GlmModel, load_model
from tests.golden.checkpoints import VARIANTS, quantize, tiny_checkpoint
from tests.golden.published import Published, Recording
from tests.golden.recorded import Recorded
from tests.golden.sequences import Sequences

pytestmark = pytest.mark.golden

NUM_TOKENS = 150
INDEX_TOPK = 32
CLOSE = {"rtol": 1e-3, "atol": 2e-4}
"""For states of magnitude 1 to 10 after four layers in fp32, computed in another order."""
CLEAR_GAP = 1e-4
"""Between the last selected score and the first one left out: the two sides may round differently by less."""


def prompt(seed: int = 5, num_tokens: int = NUM_TOKENS) -> Tensor:
    return torch.randint(3, 320, (num_tokens,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", params=VARIANTS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(**VARIANTS[request.param]).write(tmp_path_factory.mktemp(request.param))


@cache
def published(directory: Path) -> tuple[Published, Recording]:
    model = Published(directory)
    return model, model.record(prompt())


def load(directory: Path, dtype: torch.dtype = torch.float32) -> GlmModel:
    return load_model(directory, device=torch.device("cpu"), dtype=dtype)


@pytest.mark.parametrize("make_ops", [invariant_ops, lambda: REFERENCE], ids=["invariant", "reference"])
@pytest.mark.parametrize("chunk", [NUM_TOKENS, 37, 5])
def test_states_scores_selections_and_logits_agree(directory: Path, chunk: int, make_ops: Callable[[], Ops]) -> None:
    expected = published(directory)[1]
    ours = Recorded(directory, NUM_TOKENS, make_ops)
    final = ours.sequences.prefill(0, prompt(), chunk)

    for layer, hidden in expected.hidden.items():
        torch.testing.assert_close(torch.cat(ours.layers[layer].hidden), hidden, **CLOSE)
    torch.testing.assert_close(final, expected.final, **CLOSE)
    torch.testing.assert_close(ours.model.logits(final), expected.logits, rtol=1e-3, atol=1e-3)
    assert_scores_agree(ours.scores, expected, chunk)
    assert_selections_agree(ours, expected)


def assert_scores_agree(scores: list[Tensor], expected: Recording, chunk: int) -> None:
    """Rows come chunk by chunk, in a chunk layer by layer; tokens that attend to everything are not scored."""
    rows = iter(scores)
    for start in range(0, NUM_TOKENS, chunk):
        for layer_scores in expected.scores.values():
            for token in range(max(start, INDEX_TOPK), min(start + chunk, NUM_TOKENS)):
                torch.testing.assert_close(next(rows)[: token + 1], layer_scores[token, : token + 1], **CLOSE)
    assert next(rows, None) is None


def assert_selections_agree(ours: Recorded, expected: Recording) -> None:
    num_unclear = 0
    last_full = 0
    for layer in range(len(ours.layers)):
        last_full = layer if layer in expected.selected else last_full
        for token, selected in enumerate(ours.selected(layer, NUM_TOKENS)):
            assert len(selected) == min(token + 1, INDEX_TOPK)
            if has_clear_gap(expected.scores[last_full][token, : token + 1]):
                assert selected == expected.selected[last_full][token], (layer, token)
            else:
                num_unclear += 1
    assert num_unclear < 0.02 * NUM_TOKENS * len(ours.layers)


def has_clear_gap(scores: Tensor) -> bool:
    if scores.numel() <= INDEX_TOPK:
        return True
    best = scores.sort(descending=True).values
    return bool(best[INDEX_TOPK - 1] - best[INDEX_TOPK] > CLEAR_GAP)


@pytest.mark.parametrize("chunk", [None, 64, 7])
def test_greedy_tokens_agree(directory: Path, chunk: int | None) -> None:
    start = prompt(seed=8, num_tokens=80)
    model = load(directory)
    sequences = Sequences(model, [len(start) + 32])
    hidden = sequences.prefill(0, start, chunk)
    output: list[int] = []
    for position in range(len(start), len(start) + 32):
        output.append(int(model.logits(hidden[-1:]).argmax()))
        (hidden,) = sequences.forward([(0, position, torch.tensor(output[-1:]))])
    assert output == published(directory)[0].greedy(start, 32)


def test_bf16_is_as_close_to_fp32_as_published(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(dtype=torch.bfloat16)
    directory = checkpoint.write(tmp_path)
    exact = Published(directory).record(prompt()).final
    theirs = Published(directory, torch.bfloat16).record(prompt()).final
    model = load(directory, torch.bfloat16)
    ours = Sequences(model, [NUM_TOKENS], torch.bfloat16).prefill(0, prompt(), 64)

    def median_error(states: Tensor) -> float:
        return float((states.float() - exact).abs().median())

    assert ours.dtype == torch.bfloat16
    assert 0 < median_error(ours) < 1.25 * median_error(theirs)


def test_bf16_checkpoint_computed_in_fp32_agrees(tmp_path: Path) -> None:
    directory = tiny_checkpoint(dtype=torch.bfloat16).write(tmp_path)
    model = load(directory)
    logits = model.logits(Sequences(model, [NUM_TOKENS]).prefill(0, prompt()))
    torch.testing.assert_close(logits, Published(directory).record(prompt()).logits, rtol=1e-3, atol=1e-3)


def test_block_scaled_fp8_is_its_plain_twin(tmp_path: Path) -> None:
    quantized, plain = quantize(tiny_checkpoint(hidden_size=72))
    quantized_model, plain_dir = load(quantized.write(tmp_path / "fp8")), plain.write(tmp_path / "plain")
    ours = quantized_model.logits(Sequences(quantized_model, [NUM_TOKENS]).prefill(0, prompt()))
    plain_model = load(plain_dir)
    assert torch.equal(ours, plain_model.logits(Sequences(plain_model, [NUM_TOKENS]).prefill(0, prompt())))
    torch.testing.assert_close(ours, Published(plain_dir).record(prompt()).logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("changes", [{"num_nextn_predict_layers": 0}, {"index_head_dim": 16}, {"kv_lora_rank": 128}])
def test_other_shapes_agree(changes: dict[str, Any], tmp_path: Path) -> None:
    """Without a draft layer; with fully rotated index keys; with factors too costly to multiply out."""
    directory = tiny_checkpoint(**changes).write(tmp_path)
    model = load(directory)
    logits = model.logits(Sequences(model, [NUM_TOKENS]).prefill(0, prompt(), 50))
    torch.testing.assert_close(logits, Published(directory).record(prompt()).logits, rtol=1e-3, atol=1e-3)
