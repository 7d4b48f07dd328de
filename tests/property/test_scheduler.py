"""The scheduler under random adds, cancels, plans and commits, against a model without any scheduling."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.sequence import Sequence, SequenceState
from tests.property.toy_engine import EOS, VOCAB_SIZE, ToyEngine, reference

TOKENS = st.integers(1, VOCAB_SIZE - 1)
SHARED_PREFIXES = st.sampled_from([[], [1] * 5, [1] * 9, [1, 2, 3, 4] * 3])


@st.composite
def configs(draw: st.DrawFn) -> ScheduleConfig:
    return ScheduleConfig(
        max_batch_tokens=draw(st.integers(1, 16)),
        max_running=draw(st.integers(1, 4)),
        max_waiting=draw(st.integers(2, 8)),
        max_model_len=draw(st.integers(6, 30)),
        draft_tokens=draw(st.integers(0, 3)),
        double_cost_len=draw(st.sampled_from([1, 5, 100])),
        min_handoff_tokens=draw(st.integers(1, 6)),
        eos_token_ids=frozenset({EOS}),
        max_step_blocks=draw(st.one_of(st.none(), st.integers(1, 20))),
    )


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.integers(1, 20))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(st.sampled_from([(), (3,), (2, 4)])),
    )


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    return draw(SHARED_PREFIXES) + draw(st.lists(TOKENS, min_size=1, max_size=8))


class SchedulerMachine(RuleBasedStateMachine):
    """Adds and cancels come at any time, also between a plan and its commit."""

    @initialize(config=configs(), num_blocks=st.integers(2, 14), block_size=st.integers(1, 4))
    def start(self, config: ScheduleConfig, num_blocks: int, block_size: int) -> None:
        self.engine = ToyEngine(config, num_blocks, block_size)
        self.plan = None
        self.results = {}
        self.cancelled = set()

    @rule(prompt=prompts(), sampling=samplings(), num_choices=st.integers(1, 3))
    def add(self, prompt: list[int], sampling: SamplingParams, num_choices: int) -> None:
        for _ in range(num_choices):
            self.engine.add(prompt, sampling)

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = self.engine.sequences[data.draw(st.sampled_from(sorted(self.engine.sequences)))]
        is_alive = sequence.state is not SequenceState.FINISHED
        assert self.engine.scheduler.cancel(sequence.sequence_id) == is_alive
        if is_alive:
            self.cancelled.add(sequence.sequence_id)

    @precondition(lambda self: self.plan is None)
    @rule()
    def make_plan(self) -> None:
        self.plan = self.engine.plan()
        self.results = self.engine.run(self.plan)

    @precondition(lambda self: self.plan is not None)
    @rule()
    def commit(self) -> None:
        self.engine.commit(self.plan, self.results)
        self.plan = None

    @precondition(lambda self: self.plan is None)
    @rule(count=st.integers(1, 10))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @invariant()
    def all_is_accounted_for(self) -> None:
        self.engine.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        if self.plan is not None:
            engine.commit(self.plan, self.results)
        total = sum(sequence.token_limit for sequence in engine.sequences.values())
        engine.drain(max_steps=20 + 4 * total)
        for sequence in engine.sequences.values():
            self.check_ending(sequence)
        statistics = engine.pool.statistics()
        assert statistics.held == statistics.idle, "a block is held after the drain"
        engine.tree.evict(engine.pool.num_blocks)
        assert engine.pool.num_free == engine.pool.num_blocks
        num_outputs = sum(len(engine.output(sequence)) for sequence in engine.sequences.values())
        assert engine.scheduler.statistics().output_tokens == num_outputs

    def check_ending(self, sequence: Sequence) -> None:
        engine = self.engine
        updates = engine.updates[sequence.sequence_id]
        assert [u.finish_reason is None for u in updates] == [True] * (len(updates) - 1) + [False]
        last = updates[-1]
        output = engine.output(sequence)
        expected = reference(sequence.prompt_token_ids, sequence.sampling, engine.config.max_model_len)
        if last.finish_reason == "error":
            assert not output
            assert last.error
        elif last.finish_reason == "cancelled":
            assert sequence.sequence_id in self.cancelled
            assert output == expected.token_ids[: len(output)]
        else:
            assert (output, last.finish_reason) == (expected.token_ids, expected.finish_reason)
            assert last.stop_token_id == expected.stop_token_id


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestScheduler = SchedulerMachine.TestCase


@settings(max_examples=100)
@given(
    config=configs(),
    block_size=st.integers(1, 4),
    extra_blocks=st.integers(0, 4),
    wanted=st.lists(st.tuples(prompts(), samplings()), min_size=1, max_size=8),
)
def test_whatever_fits_alone_is_never_refused_and_always_ends(
    config: ScheduleConfig, block_size: int, extra_blocks: int, wanted: list[tuple[list[int], SamplingParams]]
) -> None:
    wanted = [(prompt[: config.max_model_len - 1], sampling) for prompt, sampling in wanted]
    longest = max(min(len(prompt) + sampling.max_tokens, config.max_model_len) for prompt, sampling in wanted)
    num_blocks = -(-(longest - 1) // block_size)
    engine = ToyEngine(config, num_blocks + extra_blocks, block_size)
    for prompt, sampling in wanted:
        while engine.scheduler.statistics().num_waiting >= config.max_waiting:
            engine.step()
        engine.add(prompt, sampling)
    engine.drain(max_steps=2000)
    for sequence, (prompt, sampling) in zip(engine.sequences.values(), wanted, strict=True):
        expected = reference(prompt, sampling, config.max_model_len)
        assert engine.updates[sequence.sequence_id][-1].finish_reason == expected.finish_reason
        assert engine.output(sequence) == expected.token_ids
