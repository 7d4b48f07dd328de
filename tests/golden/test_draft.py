"""The draft layer against its dense equations: over a prompt, and step by step."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lineclear.model.batch import Batch, DraftOutput, Selection
from lineclear.model.glm import load_model
from tests.golden.checkpoints import TinyCheckpoint, tiny_checkpoint
from tests.golden.oracle import DraftOracle
from tests.golden.sequences import Sequences

pytestmark = pytest.mark.golden

NUM_TOKENS = 100
INDEX_TOPK = 32
CLOSE = {"rtol": 2e-3, "atol": 5e-4}


class Drafting:
    """A sequence whose trunk states are known, drafted by ours and by the equations."""

    def __init__(self, directory: Path, num_tokens: int = NUM_TOKENS) -> None:
        self.checkpoint: TinyCheckpoint = tiny_checkpoint()
        self.model = load_model(self.checkpoint.write(directory), device=torch.device("cpu"), dtype=torch.float32)
        self.oracle = DraftOracle(self.checkpoint.config, self.checkpoint.tensors)
        generator = torch.Generator().manual_seed(3)
        self.token_ids = torch.randint(3, 320, (num_tokens + 1,), generator=generator)
        self.sequences = Sequences(self.model, [num_tokens + 16])
        self.hidden = self.sequences.prefill(0, self.token_ids[:-1])

    def draft(self, start: int, end: int) -> DraftOutput:
        batch = self.batch(start, self.token_ids[start:end])
        next_ids = self.token_ids[start + 1 : end + 1]
        return self.model.draft(batch, self.hidden[start:end], next_ids, self.sequences.cache)

    def batch(self, start: int, token_ids: Tensor) -> Batch:
        return self.sequences.batch([(0, start, token_ids)])


@pytest.mark.parametrize("chunk", [NUM_TOKENS, 23, 3])
def test_prompt_agrees_with_the_equations(tmp_path: Path, chunk: int) -> None:
    drafting = Drafting(tmp_path)
    parts = [drafting.draft(start, min(start + chunk, NUM_TOKENS)).hidden for start in range(0, NUM_TOKENS, chunk)]
    ours = torch.cat(parts)
    expected = drafting.oracle.run(drafting.hidden, drafting.token_ids[1:])
    torch.testing.assert_close(ours, expected.float(), **CLOSE)
    torch.testing.assert_close(
        drafting.model.logits(ours), drafting.oracle.logits(expected).float(), rtol=2e-3, atol=2e-3
    )


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("num_tokens", [NUM_TOKENS, INDEX_TOPK - 2, INDEX_TOPK, 10])
def test_further_steps_agree_with_the_equations(tmp_path: Path, num_tokens: int, *, is_shared: bool) -> None:
    """Each step feeds the last one's output on; a shared selection is the first step's, once contexts are longer."""
    drafting = Drafting(tmp_path, num_tokens)
    output = drafting.draft(0, num_tokens)
    hidden, last = drafting.hidden, output.hidden[-1:]
    next_ids = drafting.token_ids[1:]
    row = output.selection.rows(torch.tensor([num_tokens - 1]))
    given: dict[int, set[int]] = {}
    for position in range(num_tokens, num_tokens + 3):
        draft_id = drafting.model.logits(last).argmax(-1)
        hidden, next_ids = torch.cat([hidden, last]), torch.cat([next_ids, draft_id])
        if is_shared and position >= INDEX_TOPK:
            given[position] = positions_of(drafting, row, num_tokens)
        batch = drafting.batch(position, draft_id)
        last = drafting.model.draft(batch, last, draft_id, drafting.sequences.cache, row if is_shared else None).hidden
        expected = drafting.oracle.run(hidden, next_ids, given)
        torch.testing.assert_close(last, expected[-1:].float(), **CLOSE)


def positions_of(drafting: Drafting, row: Selection, num_tokens: int) -> set[int]:
    position_of = {slot: position for position, slot in enumerate(drafting.sequences.slots(0, num_tokens).tolist())}
    return {position_of[slot] for slot in row.slots[0][~row.places_beyond()[0, 0]].tolist()}


def test_draft_kv_is_not_read_from_the_future(tmp_path: Path) -> None:
    """Rows of rejected drafts are written again before anybody reads them."""
    drafting = Drafting(tmp_path)
    clean = drafting.draft(0, NUM_TOKENS).hidden
    junk = torch.randn(8, drafting.hidden.shape[1])
    drafting.model.draft(
        drafting.batch(NUM_TOKENS - 4, drafting.token_ids[:8]), junk, drafting.token_ids[:8], drafting.sequences.cache
    )
    again = drafting.draft(NUM_TOKENS - 4, NUM_TOKENS).hidden
    assert torch.equal(again, clean[-4:])
