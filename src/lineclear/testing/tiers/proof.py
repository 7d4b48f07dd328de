"""The proof: runs of one workload without tiers, with them, and with each guard taken out."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lineclear.bundled import checkpoint_path
from lineclear.config.components import CacheConfig, EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.build_tiers import PRODUCT, TierMaking
from lineclear.engine.engine import Engine, EngineStatistics
from lineclear.testing.tiers.lab import (
    Jitter,
    WithoutDraftWait,
    WithoutIndexWait,
    WithoutLatentWait,
    WithoutOffloadHold,
)
from lineclear.testing.tiers.trial import Answer, Trial
from lineclear.testing.tiers.workload import Workload, make_workload

POOL_TOKENS = 3200
START_LEN, MAX_LEN = 320, 800
"""Beyond the 256 tokens that the bundled model attends to at once: the index decides."""
NUM_SESSIONS = 24
HOST_GIB = 0.02
"""4,100 tokens: more than the device has, and less than all sessions."""
LONGEST_DELAY_SECONDS = 0.004
LONGEST_CONTROL_DELAY_SECONDS = 0.05
"""Without a guard a copy has to be slower than what it races with: for a wait, a pass over a few tokens."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the workload."""

    name: str
    num_requests: int
    cache: CacheConfig
    making: TierMaking
    has_disk: bool = False
    is_control: bool = False
    judges_drafts: bool = False
    """Whether drafts are to be as without tiers, too: without company they are, and a damaged draft cache shows in
    nothing else, as tokens are right by the rule of acceptance."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an arm."""

    arm: Arm
    num_requests: int
    num_wrong: int
    """Requests whose tokens are not those of the run without tiers."""
    num_strange: int
    """Requests whose drafts, where those are judged, are accepted otherwise than in the run without tiers."""
    statistics: EngineStatistics

    @property
    def is_as_expected(self) -> bool:
        """None wrong with all guards; some wrong without one."""
        return (self.num_wrong + self.num_strange > 0) == self.arm.is_control


@dataclass(frozen=True, slots=True)
class Proof:
    """Runs arms against one reference."""

    workload: Workload
    arms: tuple[Arm, ...]

    @property
    def working_set_ratio(self) -> float:
        """Of the working set to the device pool."""
        return self.workload.working_set_tokens / POOL_TOKENS

    def run(self) -> Iterator[Outcome]:
        """Run the reference, then each arm."""
        num_needed = max(arm.num_requests for arm in self.arms)
        reference = _run(_engine(pool_tokens=200_000), self.workload.prompts[:num_needed], guests=False)
        for arm in self.arms:
            with tempfile.TemporaryDirectory(prefix="lineclear-proof-") as folder:
                yield _compare(arm, self.workload, reference, Path(folder))


def bounded_proof() -> Proof:
    """A minute or two."""
    return _proof(num_requests=60, num_others=40, num_controls=60)


def full_proof() -> Proof:
    """As many requests as the promise names."""
    return _proof(num_requests=2000, num_others=400, num_controls=300)


def _proof(*, num_requests: int, num_others: int, num_controls: int) -> Proof:
    jitter = TierMaking(before_step=Jitter(1, LONGEST_DELAY_SECONDS), before_file=Jitter(2, LONGEST_DELAY_SECONDS))
    faults = TierMaking(before_step=Jitter(3, LONGEST_DELAY_SECONDS, fail_share=0.02))
    arms = [
        Arm("write_through_with_disk", num_requests, _cache("write_through"), jitter, has_disk=True),
        Arm("write_through_selective_with_disk", num_others, _cache("write_through_selective"), jitter, has_disk=True),
        Arm("write_back_with_disk", num_others, _cache("write_back"), jitter, has_disk=True),
        Arm("drafts_alike", num_others, _cache("write_through"), jitter, judges_drafts=True),
        Arm("copies_that_fail", num_others, _cache("write_through"), faults),
        *_controls(num_controls),
    ]
    workload = make_workload(
        0, num_requests=num_requests, num_sessions=NUM_SESSIONS, start_len=START_LEN, max_len=MAX_LEN
    )
    return Proof(workload, tuple(arms))


def _controls(num_requests: int) -> list[Arm]:
    slow = Jitter(4, LONGEST_CONTROL_DELAY_SECONDS)
    cache = CacheConfig(host_cache_gib=0.2)
    waits = {
        "index_wait": WithoutIndexWait, "latent_wait": WithoutLatentWait, "draft_wait": WithoutDraftWait
    }  # fmt: skip
    controls = [
        Arm(
            f"without_{name}",
            num_requests,
            cache,
            TierMaking(before_step=slow, make_readiness=make_readiness),
            is_control=True,
            judges_drafts=True,
        )
        for name, make_readiness in waits.items()
    ]
    late = TierMaking(before_step=Jitter(5, LONGEST_CONTROL_DELAY_SECONDS), make_plans=WithoutOffloadHold)
    # What is offloaded before it is given up is free at once if nobody holds it.
    at_the_end = CacheConfig(host_cache_gib=0.2, offload_policy="write_back")
    return [*controls, Arm("without_offload_hold", num_requests, at_the_end, late, is_control=True)]


def _cache(policy: str) -> CacheConfig:
    return CacheConfig(host_cache_gib=HOST_GIB, offload_policy=policy, prefetch_policy="wait")  # pyright: ignore[reportArgumentType]


def _compare(arm: Arm, workload: Workload, reference: list[Answer], folder: Path) -> Outcome:
    cache = arm.cache
    if arm.has_disk:
        cache = CacheConfig(
            host_cache_gib=cache.host_cache_gib,
            offload_policy=cache.offload_policy,
            prefetch_policy=cache.prefetch_policy,
            disk_cache_dir=str(folder),
        )
    engine = _engine(POOL_TOKENS, cache, arm.making)
    prompts = workload.prompts[: arm.num_requests]
    answers = _run(engine, prompts, guests=not arm.judges_drafts)
    pairs = list(zip(answers, reference, strict=False))
    num_wrong = sum(answer.token_ids != expected.token_ids for answer, expected in pairs)
    num_strange = sum(arm.judges_drafts and answer.drafts != expected.drafts for answer, expected in pairs)
    return Outcome(arm, len(prompts), num_wrong, num_strange, engine.statistics())


def _engine(pool_tokens: int, cache: CacheConfig | None = None, making: TierMaking = PRODUCT) -> Engine:
    config = EngineConfig(max_total_tokens=pool_tokens, draft_tokens=3, max_batch_tokens=512)
    return build_engine(config, checkpoint_path(), cache=cache, tier_making=making)


def _run(engine: Engine, prompts: tuple[tuple[int, ...], ...], *, guests: bool) -> list[Answer]:
    try:
        return Trial(engine, prompts, seed=7, guests=guests).run()
    finally:
        engine.close()
