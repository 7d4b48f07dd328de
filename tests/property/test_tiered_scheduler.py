"""The scheduler with tiers: the same machine as without, plus copies that run, fail and end at any moment."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.tiers import TiersConfig
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.config import ScheduleConfig
from tests.property.test_scheduler import SchedulerMachine, configs
from tests.property.tiered_toy_engine import TieredToyEngine

SAMPLING = SamplingParams(max_tokens=6, ignore_eos=True)
TIERS = st.builds(
    TiersConfig,
    num_host_blocks=st.integers(1, 30),
    num_disk_blocks=st.sampled_from((0, 20, 60)),
    offload=st.sampled_from(OffloadPolicy),
    prefetch=st.sampled_from(PrefetchPolicy),
    num_ahead_blocks=st.integers(0, 2),
)


class TieredMachine(SchedulerMachine):
    """A small pool over a larger host: prompts come back by loads."""

    @initialize(
        config=configs(),
        num_blocks=st.integers(2, 14),
        block_size=st.integers(1, 4),
        tiers=TIERS,
        seed=st.integers(0, 2**32),
    )
    def start(self, config: ScheduleConfig, num_blocks: int, block_size: int, tiers: TiersConfig, seed: int) -> None:
        self.engine = TieredToyEngine(config, num_blocks, block_size, tiers, random.Random(seed))
        self.plan = None
        self.results = {}
        self.cancelled = set()

    @rule()
    def copy(self) -> None:
        self.engine.turn_copies()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "engine"):
            statistics = self.engine.tiers.statistics()
            assert all(each is None or each.held == each.idle for each in (statistics.host, statistics.disk))
            assert not statistics.num_prefetches


TieredMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestTieredScheduler = TieredMachine.TestCase


def test_walks_load_from_the_host_and_some_loads_fail() -> None:
    """What the machine is for happens, and often: a fixed walk counts it."""
    num_loads = num_failed = 0
    for seed in range(30):
        rng = random.Random(seed)
        config = ScheduleConfig(
            max_batch_tokens=8,
            max_running=3,
            max_waiting=8,
            max_model_len=30,
            draft_tokens=2,
            double_cost_len=100,
            min_handoff_tokens=1,
            eos_token_ids=frozenset({0}),
        )
        policy = rng.choice(list(OffloadPolicy))
        tiers = TiersConfig(30, rng.choice((0, 60)), policy, PrefetchPolicy.WAIT, 1)
        machine = TieredMachine()
        machine.engine = TieredToyEngine(config, 16, 2, tiers, rng)
        machine.plan, machine.results, machine.cancelled = None, {}, set()
        for _ in range(60):
            prompt = rng.choice(([1] * 9, [2, 3] * 5, [4] * 12)) + [rng.randint(1, 4) for _ in range(3)]
            if rng.random() < 0.3:
                machine.engine.add(prompt, SAMPLING)
            if rng.random() < 0.05 and machine.engine.sequences:
                sequence_id = rng.choice(sorted(machine.engine.sequences))
                if machine.engine.scheduler.cancel(sequence_id):
                    machine.cancelled.add(sequence_id)
            machine.engine.turn_copies()
            if machine.engine.scheduler.has_work:
                machine.engine.step()
        machine.teardown()
        num_loads += machine.engine.num_loads
        num_failed += machine.engine.num_failed_loads
    assert num_loads > 60
    assert num_failed > 5
