"""Runs of one workload under the sanitizer: clean ones, and some with each fault planted."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lineclear.base.errors import InvariantError
from lineclear.bundled import checkpoint_path
from lineclear.config.components import CacheConfig, EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.build_tiers import TierMaking
from lineclear.engine.engine import Engine
from lineclear.engine.sanitizer import KvSanitizer
from lineclear.kv.kv_fault import KvFault, KvFaultKind
from lineclear.testing.sanitizer.planting import Planter
from lineclear.testing.tiers.lab import Jitter, WithoutIndexWait, WithoutLatentWait, WithoutOffloadHold
from lineclear.testing.tiers.trial import Answer, Trial
from lineclear.testing.tiers.workload import make_workload

POOL_TOKENS = 1600
TIERS = CacheConfig(host_cache_gib=0.01, prefetch_policy="wait")
WRITE_BACK = CacheConfig(host_cache_gib=0.2, offload_policy="write_back")
LONGEST_DELAY_SECONDS = 0.04


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the workload."""

    name: str
    num_requests: int
    cache: CacheConfig | None = None
    making: TierMaking = TierMaking()  # noqa: RUF009 - frozen
    plants: bool = False
    kinds: frozenset[KvFaultKind] = frozenset()
    """What is to be found, and nothing else."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an arm."""

    arm: Arm
    num_wrong: int
    """Answers that ended well with other tokens than without the sanitizer and without faults."""
    num_ended: int
    """Answers that ended with an error."""
    num_planted: int
    num_told: int
    """Of these, with block, part and former owner."""
    found: tuple[KvFault, ...]
    num_checks: int

    @property
    def num_other(self) -> int:
        """Faults of a kind that is not to be found."""
        return sum(fault.kind not in self.arm.kinds for fault in self.found)

    @property
    def is_as_expected(self) -> bool:
        """Clean arms are clean, faults are found, whatever is planted is told of, nobody gets a wrong answer."""
        is_found = bool(self.found) == bool(self.arm.kinds)
        return is_found and not self.num_wrong and not self.num_other and self.num_told == self.num_planted


def run_arms(
    num_clean: int, num_faulty: int, *, seed: int = 0, names: Collection[str] | None = None
) -> Iterator[Outcome]:
    """Run the workload without the sanitizer, then each arm, or those of these names."""
    arms = [arm for arm in _arms(num_clean, num_faulty) if names is None or arm.name in names]
    num_requests = max(arm.num_requests for arm in arms)
    workload = make_workload(seed, num_requests=num_requests, num_sessions=24, start_len=96, max_len=320)
    reference = Trial(_engine("off", None, TierMaking()), workload.prompts, seed=seed, guests=False).run()
    for arm in arms:
        yield _run(arm, workload.prompts[: arm.num_requests], reference, seed)


def _arms(num_clean: int, num_faulty: int) -> list[Arm]:
    late_loads = Jitter(4, LONGEST_DELAY_SECONDS)
    early = frozenset({KvFaultKind.READ_BEFORE_READY})
    host = CacheConfig(host_cache_gib=0.2, prefetch_policy="wait")
    writes = frozenset({KvFaultKind.WRITE_AFTER_SEAL, KvFaultKind.WRITE_AFTER_FREE})
    late_copies = TierMaking(before_step=Jitter(5, LONGEST_DELAY_SECONDS), make_plans=WithoutOffloadHold)
    return [
        Arm("clean", num_clean - num_clean // 4),
        Arm("clean_with_tiers", num_clean // 4, TIERS, TierMaking(before_step=Jitter(1, 0.002))),
        Arm("late_writes", num_faulty, plants=True, kinds=writes),
        Arm(
            "without_index_wait",
            num_faulty,
            host,
            TierMaking(before_step=late_loads, make_readiness=WithoutIndexWait),
            kinds=early,
        ),
        Arm(
            "without_latent_wait",
            num_faulty,
            host,
            TierMaking(before_step=late_loads, make_readiness=WithoutLatentWait),
            kinds=early,
        ),
        Arm(
            "without_offload_hold",
            num_faulty,
            WRITE_BACK,
            late_copies,
            kinds=frozenset({KvFaultKind.READ_AFTER_FREE, KvFaultKind.COPY_DIFFERS}),
        ),
    ]


def _run(arm: Arm, prompts: tuple[tuple[int, ...], ...], reference: list[Answer], seed: int) -> Outcome:
    engine = _engine("full", arm.cache, arm.making)
    sanitizer = _sanitizer_of(engine)
    planter = Planter(engine, sanitizer, seed)
    trial = Trial(engine, prompts, seed=seed, after_turn=planter if arm.plants else None)
    answers = trial.run()
    sanitizer.sweep_all()
    planter.take_found()
    engine.close()
    well = [(one, other) for one, other in zip(answers, reference, strict=False) if one.error is None]
    return Outcome(
        arm,
        num_wrong=sum(one.token_ids != other.token_ids for one, other in well),
        num_ended=len(answers) - len(well),
        num_planted=len(planter.plants),
        num_told=planter.num_told,
        found=tuple(planter.found),
        num_checks=sanitizer.statistics().num_checks,
    )


def _engine(mode: str, cache: CacheConfig | None, making: TierMaking) -> Engine:
    pool_tokens = 40_000 if mode == "off" else POOL_TOKENS
    config = EngineConfig(max_total_tokens=pool_tokens, max_batch_tokens=512, kv_sanitizer=mode)  # pyright: ignore[reportArgumentType]
    return build_engine(config, checkpoint_path(), cache=cache, tier_making=making)


def _sanitizer_of(engine: Engine) -> KvSanitizer:
    if engine.sanitizer is None:
        raise InvariantError("the engine has no sanitizer")
    return engine.sanitizer
