"""The KV store: its parts, its one way in and its one way out."""

import pytest
import torch

from lineclear.base.errors import InvariantError
from lineclear.bundled import checkpoint_path
from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.store import KvStore, kv_layout
from lineclear.model.batch import Part
from lineclear.model.config import GlmConfig, load_config


class NoteWaits:
    """A readiness that notes what was waited for, and what the tensor held then."""

    def __init__(self, store: KvStore) -> None:
        self.waits: list[tuple[int, Part]] = []
        self._store = store

    def wait(self, layer: int, part: Part) -> None:
        self.waits.append((layer, part))
        self._store.write(layer, part, torch.tensor([0]), torch.ones(1, self._width(layer, part)))

    def _width(self, layer: int, part: Part) -> int:
        return self._store.read(layer, part, AlwaysReady()).shape[1]


@pytest.fixture
def config() -> GlmConfig:
    return load_config(checkpoint_path())


@pytest.fixture
def store(config: GlmConfig) -> KvStore:
    return KvStore(config, num_blocks=3, block_size=4, device=torch.device("cpu"), dtype=torch.float32)


def test_every_part_that_the_configuration_has(config: GlmConfig, store: KvStore) -> None:
    size_bytes = 0
    for layer in range(config.num_cache_layers):
        for part in ("latent", "index"):
            width = config.part_width(layer, part)
            if width is None:
                with pytest.raises(InvariantError, match=part):
                    store.read(layer, part, AlwaysReady())
            else:
                assert store.read(layer, part, AlwaysReady()).shape == (12, width)
                size_bytes += 12 * width * 4
    assert store.size_bytes == size_bytes


def test_what_is_written_is_read_at_its_slots(config: GlmConfig, store: KvStore) -> None:
    values = torch.arange(2.0 * config.latent_width).view(2, -1)
    store.view(AlwaysReady()).write(1, "latent", torch.tensor([7, 2]), values)
    tensor = store.read(1, "latent", AlwaysReady())
    assert torch.equal(tensor[[7, 2]], values)
    assert tensor.count_nonzero() == values.count_nonzero()
    assert not store.read(0, "latent", AlwaysReady()).any()


def test_every_read_waits_first(store: KvStore) -> None:
    readiness = NoteWaits(store)
    view = store.view(readiness)
    assert view.block_size == 4
    assert view.read(0, "index")[0].all()
    assert view.read(3, "latent")[0].all()
    assert readiness.waits == [(0, "index"), (3, "latent")]


def test_no_tensor_is_public(store: KvStore) -> None:
    public = [getattr(store, name) for name in dir(store) if not name.startswith("_")]
    assert not any(isinstance(value, torch.Tensor | dict) for value in public)


def test_the_kv_can_live_in_memory_that_others_reach(config: GlmConfig) -> None:
    layout = kv_layout(config, 3, 4, torch.float32)
    memory = bytearray(layout.num_bytes)
    shared = KvStore(config, 3, 4, device=torch.device("cpu"), dtype=torch.float32, memory=memoryview(memory))
    layer, part = shared.parts[-1]
    width = shared.read(layer, part, AlwaysReady()).shape[1]
    shared.write(layer, part, torch.tensor([5]), torch.full((1, width), 2.5))
    start = layout.offsets[len(layout.shape) - 1] + 5 * width * 4
    assert memory[start : start + width * 4] == torch.full((width,), 2.5).numpy().tobytes()
    assert not any(memory[:start] + memory[start + width * 4 :])
    memory[start : start + 4] = bytes(4)
    assert shared.read(layer, part, AlwaysReady())[5, 0] == 0
