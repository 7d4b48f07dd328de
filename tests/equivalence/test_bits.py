"""A token's states, KV and logits have the same bits alone and in any company, whole and in any chunks (fp32, CPU)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from lineclear.engine.readiness import AlwaysReady
from lineclear.model.glm import GlmModel, load_model
from tests.golden.checkpoints import GLM_5_2_TYPES, GROUPED, tiny_checkpoint
from tests.golden.sequences import Sequences

SHAPES: dict[str, dict[str, Any]] = {
    "shared": GLM_5_2_TYPES,
    "groups": GROUPED,
    "bundled": {
        "hidden_size": 192,
        "intermediate_size": 384,
        "moe_intermediate_size": 96,
        "q_lora_rank": 128,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "index_head_dim": 64,
        "index_topk": 256,
        "num_hidden_layers": 2,
    },
    "wide": {
        "hidden_size": 1056,
        "intermediate_size": 1100,
        "kv_lora_rank": 576,
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
    },
    "odd": {"hidden_size": 70, "intermediate_size": 90, "moe_intermediate_size": 21, "n_routed_experts": 6},
}
"""Several tiles in the inner dimension (wide), widths that no vector divides (odd), the bundled model's (bundled)."""

LENGTHS = {"bundled": 700, "wide": 90}
DEFAULT_LENGTH = 180


@dataclass
class Reference:
    """A sequence computed alone, in one piece."""

    model: GlmModel
    token_ids: Tensor
    hidden: Tensor
    logits: Tensor
    draft: Tensor
    kv: list[Tensor]


def build(directory: Path, num_tokens: int, **changes: Any) -> Reference:
    tiny_checkpoint(**changes).write(directory)
    model = load_model(directory, device=torch.device("cpu"), dtype=torch.float32)
    token_ids = random_ids(num_tokens + 1, seed=1)
    sequences = Sequences(model, [num_tokens])
    batch = sequences.batch([(0, 0, token_ids[:-1])])
    hidden = model.forward(batch, sequences.cache)
    draft = model.draft(batch, hidden, token_ids[1:], sequences.cache).hidden
    return Reference(model, token_ids, hidden, model.logits(hidden), draft, kv_of(sequences, 0, num_tokens))


def random_ids(num_tokens: int, seed: int) -> Tensor:
    return torch.randint(3, 320, (num_tokens,), generator=torch.Generator().manual_seed(seed))


def kv_of(sequences: Sequences, sequence: int, num_tokens: int) -> list[Tensor]:
    """Every layer's and part's rows of a sequence."""
    slots = sequences.slots(sequence, num_tokens)
    config = sequences.model.config
    return [
        sequences.store.read(layer, part, AlwaysReady())[slots]
        for layer in range(config.num_cache_layers)
        for part in ("latent", "index")
        if config.part_width(layer, part) is not None
    ]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=SHAPES)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    num_tokens = LENGTHS.get(request.param, DEFAULT_LENGTH)
    return build(tmp_path_factory.mktemp(request.param), num_tokens, **SHAPES[request.param])


class Replay:
    """Computes the reference's sequence again as sequence 0 of several, chunk by chunk, and compares bits."""

    def __init__(self, reference: Reference, neighbour_lens: Sequence[int] = (), seed: int = 7) -> None:
        self.reference = reference
        num_tokens = len(reference.hidden)
        self.sequences = Sequences(
            reference.model, [num_tokens, *(length + 4 * num_tokens for length in neighbour_lens)], seed=seed
        )
        self.neighbour_lens = list(neighbour_lens)
        self.random = Random(seed)
        self.position = 0
        for neighbour, length in enumerate(neighbour_lens, start=1):
            self.sequences.prefill(neighbour, random_ids(length, seed + neighbour))

    def step(self, num_tokens: int, neighbours: Sequence[tuple[int, int]] = ()) -> None:
        """The next tokens, amid `neighbours` that each compute some tokens: `(sequence, number)`."""
        end = min(self.position + num_tokens, len(self.reference.hidden))
        rows = slice(self.position, end)
        chunks = [self._neighbour_chunk(sequence, number) for sequence, number in neighbours]
        place = self.random.randint(0, len(chunks))
        chunks.insert(place, (0, self.position, self.reference.token_ids[rows]))
        batch = self.sequences.batch(chunks)
        hidden = self.reference.model.forward(batch, self.sequences.cache)
        next_ids = torch.cat([chunk[2].roll(-1) for chunk in chunks])
        own = slice(batch.segments[place].start, batch.segments[place].end)
        next_ids[own] = self.reference.token_ids[self.position + 1 : end + 1]
        draft = self.reference.model.draft(batch, hidden, next_ids, self.sequences.cache)
        assert torch.equal(hidden[own], self.reference.hidden[rows]), rows
        assert torch.equal(self.reference.model.logits(hidden)[own], self.reference.logits[rows]), rows
        assert torch.equal(draft.hidden[own], self.reference.draft[rows]), rows
        self.position = end

    @property
    def is_done(self) -> bool:
        return self.position == len(self.reference.hidden)

    def check_kv(self) -> None:
        for ours, expected in zip(kv_of(self.sequences, 0, self.position), self.reference.kv, strict=True):
            assert torch.equal(ours, expected[: self.position])

    def _neighbour_chunk(self, sequence: int, num_tokens: int) -> tuple[int, int, Tensor]:
        first = self.neighbour_lens[sequence - 1]
        self.neighbour_lens[sequence - 1] += num_tokens
        return sequence, first, random_ids(num_tokens, first)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 8, 9, 16, 50, 128])
def test_chunking_keeps_bits(reference: Reference, chunk: int) -> None:
    replay = Replay(reference, seed=chunk)
    if chunk <= 4:
        replay.step(len(reference.hidden) - 40)
    while not replay.is_done:
        replay.step(chunk)
    replay.check_kv()


@pytest.mark.parametrize("seed", range(4))
def test_company_keeps_bits(reference: Reference, seed: int) -> None:
    """Neighbours on both sides of index_topk, that decode, verify and prefill, in changing numbers and places."""
    replay = Replay(reference, neighbour_lens=(5, 31, 40, 150), seed=seed)
    while not replay.is_done:
        neighbours = [(sequence, replay.random.choice([1, 1, 4, 8, 20])) for sequence in range(1, 5)]
        replay.step(replay.random.choice([1, 4, 7, 33]), replay.random.sample(neighbours, replay.random.randint(0, 4)))
    replay.check_kv()


@pytest.mark.parametrize("num_before", [28, 29, 30, 31, 32, 33])
def test_selection_boundary_keeps_bits(tmp_path: Path, num_before: int) -> None:
    """Runs that begin before, at and after the first token that has to select."""
    replay = Replay(build(tmp_path, 60, **GLM_5_2_TYPES), neighbour_lens=(30, 33))
    replay.step(num_before)
    while not replay.is_done:
        replay.step(4, [(1, 1), (2, 4)])
    replay.check_kv()


def test_large_batch_keeps_bits(reference: Reference) -> None:
    """One token of each of many sequences, in changing order."""
    num_sequences = 24
    replay = Replay(reference, neighbour_lens=[20 + 3 * idx for idx in range(num_sequences)], seed=3)
    replay.step(len(reference.hidden) - 4)
    while not replay.is_done:
        others = list(range(1, num_sequences + 1))
        replay.random.shuffle(others)
        replay.step(1, [(sequence, 1) for sequence in others])
    replay.check_kv()


def test_long_context_keeps_bits(tmp_path: Path) -> None:
    """Thousands of tokens: many key tiles, several query tiles, long beside short."""
    replay = Replay(build(tmp_path, 3000, **SHAPES["bundled"]), neighbour_lens=(100, 1500), seed=11)
    replay.step(1030, [(1, 1)])
    replay.step(1048, [(2, 4)])
    replay.step(7)
    replay.step(890, [(1, 3), (2, 40)])
    while not replay.is_done:
        replay.step(4, [(1, 4), (2, 1)])
    replay.check_kv()


def test_two_threads_keep_bits(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        replay = Replay(build(tmp_path, 70, **SHAPES["shared"]), neighbour_lens=(40, 5), seed=2)
        replay.step(50)
        while not replay.is_done:
            replay.step(4, [(1, 1), (2, 4)])
        replay.check_kv()
    finally:
        torch.set_num_threads(1)
