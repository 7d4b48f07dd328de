"""What a model refuses to do, and that it does the same on a GPU."""

from pathlib import Path

import pytest
import torch

from lineclear.base.errors import InvariantError
from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.store import KvStore
from lineclear.model.batch import Batch, Segment
from lineclear.model.glm import load_model
from tests.golden.checkpoints import GLM_5_2_TYPES, tiny_checkpoint
from tests.golden.sequences import BLOCK_SIZE, Sequences

NUM_TOKENS = 100


def test_drafting_without_a_draft_layer_is_refused(tmp_path: Path) -> None:
    directory = tiny_checkpoint(num_nextn_predict_layers=0).write(tmp_path)
    model = load_model(directory, device=torch.device("cpu"), dtype=torch.float32)
    sequences = Sequences(model, [4])
    batch = sequences.batch([(0, 0, torch.tensor([3, 4]))])
    hidden = model.forward(batch, sequences.cache)
    assert model.num_cache_layers == 4
    with pytest.raises(InvariantError, match="draft layer"):
        model.draft(batch, hidden, torch.tensor([4, 5]), sequences.cache)


def test_logits_are_fp32_in_any_type(tmp_path: Path) -> None:
    directory = tiny_checkpoint().write(tmp_path)
    model = load_model(directory, device=torch.device("cpu"), dtype=torch.bfloat16)
    logits = model.logits(torch.ones(1, 64, dtype=torch.bfloat16))
    assert (logits.dtype, logits.shape) == (torch.float32, (1, 320))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gpu_computes_what_the_cpu_computes(tmp_path: Path, dtype: torch.dtype) -> None:
    directory = tiny_checkpoint(**GLM_5_2_TYPES).write(tmp_path)
    results = [states_on(torch.device(kind), directory, dtype) for kind in ("cpu", "cuda")]
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.1}
    for on_cpu, on_gpu in zip(*results, strict=True):
        close = torch.isclose(on_gpu.cpu().float(), on_cpu.float(), **tolerance)
        assert close.float().mean() > (0.999 if dtype == torch.float32 else 0.9)


def states_on(device: torch.device, directory: Path, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """States, logits and drafts of one prompt, in two chunks."""
    model = load_model(directory, device=device, dtype=dtype)
    cache = KvStore(model.config, 16, BLOCK_SIZE, device=device, dtype=dtype).view(AlwaysReady())
    token_ids = torch.randint(3, 320, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0)).to(device)
    table = torch.arange(16, device=device).flip(0)
    parts: list[torch.Tensor] = []
    for start, end in ((0, 60), (60, NUM_TOKENS)):
        positions = torch.arange(start, end, device=device)
        slots = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        batch = Batch(token_ids[start:end], positions, slots, (Segment(0, end - start, end, table),))
        hidden = model.forward(batch, cache)
        output = model.draft(batch, hidden, token_ids[start:end].roll(-1), cache)
        parts += [hidden, model.logits(hidden), output.hidden]
    return tuple(parts)
