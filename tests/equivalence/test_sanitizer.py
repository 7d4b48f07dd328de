"""The KV sanitizer on a whole engine: clean runs are clean and keep their tokens, planted faults are found."""

import pytest
import torch

from lineclear.base.ids import SequenceId
from lineclear.bundled import checkpoint_path
from lineclear.config.components import CacheConfig, EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.build_tiers import TierMaking
from lineclear.engine.engine import Engine
from lineclear.engine.sanitizer import KvSanitizer
from lineclear.evaluation.generate import Generation, Prompt, generate
from lineclear.kv.kv_fault import KvFaultKind
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence
from lineclear.testing.tiers.lab import Jitter, WithoutIndexWait, WithoutOffloadHold
from lineclear.testing.tiers.trial import Answer, Trial
from lineclear.testing.tiers.workload import make_workload

PROMPTS = make_workload(3, num_requests=24, num_sessions=10, start_len=320, max_len=520).prompts
TIERS = CacheConfig(host_cache_gib=0.02, prefetch_policy="wait")


def engine_with(mode: str, cache: CacheConfig | None = None, making: TierMaking | None = None) -> Engine:
    config = EngineConfig(max_total_tokens=1600, max_batch_tokens=512, kv_sanitizer=mode)  # pyright: ignore[reportArgumentType]
    return build_engine(config, checkpoint_path(), cache=cache, tier_making=making or TierMaking())


def sanitizer_of(engine: Engine) -> KvSanitizer:
    assert engine.sanitizer is not None
    return engine.sanitizer


def answers(engine: Engine) -> list[Answer]:
    given = Trial(engine, PROMPTS, seed=1).run()
    if engine.sanitizer is not None:
        engine.sanitizer.sweep_all()
    engine.close()
    return given


@pytest.fixture(scope="module")
def reference() -> list[Answer]:
    return answers(engine_with("off"))


@pytest.mark.parametrize(("mode", "cache"), [("sample", None), ("full", None), ("full", TIERS)])
def test_a_clean_run_is_clean_and_has_the_same_tokens(
    mode: str, cache: CacheConfig | None, reference: list[Answer]
) -> None:
    engine = engine_with(mode, cache)
    assert [each.token_ids for each in answers(engine)] == [each.token_ids for each in reference]
    sanitizer = sanitizer_of(engine)
    assert list(sanitizer.faults) == []
    assert sanitizer.statistics().num_checks > 10


def test_a_read_before_its_load_is_named_and_its_sequence_computes_for_itself(reference: list[Answer]) -> None:
    making = TierMaking(before_step=Jitter(4, 0.02), make_readiness=WithoutIndexWait)
    engine = engine_with("full", CacheConfig(host_cache_gib=0.2), making)
    assert [each.token_ids for each in answers(engine)] == [each.token_ids for each in reference]
    faults = list(sanitizer_of(engine).faults)
    assert faults
    assert {fault.kind for fault in faults} == {KvFaultKind.READ_BEFORE_READY}
    assert {part for fault in faults for _, part in fault.parts} == {"index"}
    assert all(any(owner.startswith("sequence") for owner in fault.owners) for fault in faults)


def test_an_offload_without_its_hold_is_named_and_never_loaded(reference: list[Answer]) -> None:
    making = TierMaking(before_step=Jitter(5, 0.02), make_plans=WithoutOffloadHold)
    engine = engine_with("full", CacheConfig(host_cache_gib=0.2, offload_policy="write_back"), making)
    assert [each.token_ids for each in answers(engine)] == [each.token_ids for each in reference]
    kinds = {fault.kind for fault in sanitizer_of(engine).faults}
    assert kinds
    assert kinds <= {KvFaultKind.READ_AFTER_FREE, KvFaultKind.COPY_DIFFERS}


class LateWrite:
    """A step hook: somebody who had a block before writes into it once more, when it belongs to the sequence."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.block_id: int | None = None

    def __call__(self, engine: Engine, generations: list[Generation]) -> None:
        sequence = generations[0].sequence
        if self.block_id is None and len(sequence.output_token_ids) > 2:
            self.block_id = sequence.block_table[1]
            slot = torch.tensor([self.block_id * engine.store.block_size + 5])
            width = engine.store.read(self.layer, "latent", _Ready()).shape[1]
            engine.store.write(self.layer, "latent", slot, torch.full((1, width), 0.5))


class _Ready:
    def wait(self, layer: int, part: str) -> None:
        pass


def test_a_write_after_reuse_ends_its_reader_names_both_owners_and_is_not_found_again() -> None:
    engine = engine_with("full")
    sampling = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    former = Sequence(SequenceId(900), PROMPTS[0], sampling)
    engine.submit(former)
    former_blocks: set[int] = set()
    while engine.has_work:
        engine.step()
        former_blocks |= set(former.block_table)
    # As many others as the pool takes to reuse the blocks of the first.
    for number in range(1, 8):
        engine.submit(Sequence(SequenceId(900 + number), PROMPTS[number], sampling))
        while engine.has_work:
            engine.step()
    late = LateWrite(layer=2)
    prompt = Prompt(tuple(range(100, 420)), sampling)
    (broken,) = generate(engine, [prompt], after_step=late)
    assert (broken.finish_reason, len(broken.token_ids) < 40) == ("error", True)
    (fault,) = sanitizer_of(engine).faults
    assert (fault.kind, fault.block_id, fault.parts) == (KvFaultKind.WRITE_AFTER_SEAL, late.block_id, ((2, "latent"),))
    assert "sequence 0" in fault.owners
    assert any(owner.startswith("sequence 9") for owner in fault.previous_owners)
    assert fault.history
    (again,) = generate(engine, [prompt])
    assert (again.finish_reason, again.sequence.num_cached_tokens) == ("length", 0)
    assert engine.statistics().scheduler.num_damaged == 1
