from collections import deque
from collections.abc import Collection, Iterable

import pytest

from lineclear.base.errors import InvariantError, PeerError
from lineclear.base.ids import WorkerId
from lineclear.protocol import wire
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.handoff.names import Peer
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.sequence import Sequence
from lineclear.worker.loop import WorkerLoop, WorkerRefusedError
from tests.unit.worker.stand_in import CountingEngine


class ScriptedLink:
    """Each poll takes the script's next entry: messages, or an error that is raised; at its end the gateway is lost."""

    def __init__(self, *script: Iterable[wire.ToWorker] | Exception) -> None:
        self.script = deque(script)
        self.sent: list[wire.ToGateway] = []
        self.waits: list[float] = []

    def poll(self, timeout_seconds: float, wake_filenos: Collection[int] = ()) -> list[wire.ToWorker]:  # noqa: ARG002
        self.waits.append(timeout_seconds)
        entry = self.script.popleft() if self.script else ConnectionResetError("lost")
        if isinstance(entry, Exception):
            raise entry
        return list(entry)

    def send(self, message: wire.ToGateway) -> None:
        self.sent.append(message)

    @property
    def outputs(self) -> list[wire.SequenceOutput]:
        return [output for message in self.sent if isinstance(message, wire.StepOutputs) for output in message.outputs]


class VouchingDesk:
    """A desk of which nothing is wanted but to take an operator's word."""

    def __init__(self) -> None:
        self.vouched: list[Peer] = []

    is_settled = True

    def filenos(self) -> Collection[int]:
        return ()

    def seconds_until_due(self) -> float:
        return 60.0

    def submit(self, sequence: Sequence) -> None: ...

    def on_instances(self, endpoints: Collection[str]) -> None: ...

    def turn(self) -> None: ...

    def on_updates(self, updates: Iterable[SequenceUpdate]) -> None: ...

    def vouch(self, peer: Peer) -> int:
        self.vouched.append(peer)
        return 5

    def statistics(self) -> wire.HandoffStatistics:
        return wire.HandoffStatistics(num_peers=0, num_open=0, num_done=0)


def submit(sequence_id: int, *prompt: int, max_tokens: int = 2, want_draft_counts: bool = False) -> wire.SubmitSequence:
    return wire.SubmitSequence(
        sequence_id=sequence_id,
        request_id=f"r{sequence_id}",
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(max_tokens=max_tokens),
        want_draft_counts=want_draft_counts,
    )


STATISTICS = wire.WorkerStatistics(
    num_running=0,
    num_waiting=0,
    num_receiving=0,
    num_preemptions=0,
    num_damaged=0,
    blocks_free=1,
    blocks_held=0,
    blocks_quarantined=0,
    blocks_total=1,
    cached_prompt_tokens=0,
    prompt_tokens=0,
    output_tokens=0,
    draft=DraftCounts(),
    steps=0,
    step_seconds_total=0.0,
)


def serve(link: ScriptedLink, engine: CountingEngine) -> None:
    """Serve the script to its end, with a clock that stands still."""
    with pytest.raises(ConnectionResetError):
        WorkerLoop(engine, lambda: STATISTICS, lambda: 0.0).serve(link)


def test_a_sequence_is_answered_step_by_step_and_ends_once() -> None:
    link = ScriptedLink([submit(7, 10, 20)], [])
    serve(link, CountingEngine())
    assert link.outputs == [
        wire.SequenceOutput(sequence_id=7, token_ids=[21]),
        wire.SequenceOutput(sequence_id=7, token_ids=[22], finish_reason="length"),
    ]


def test_the_poll_waits_only_without_work() -> None:
    link = ScriptedLink([submit(7, 10)], [], [])
    serve(link, CountingEngine())
    waits = [wait > 0 for wait in link.waits]
    assert waits == [True, False, True, True]


def test_a_cancel_between_two_steps_ends_the_sequence_in_the_next() -> None:
    link = ScriptedLink([submit(7, 10, max_tokens=100)], [wire.CancelSequence(sequence_id=7)])
    serve(link, CountingEngine())
    assert [output.finish_reason for output in link.outputs] == [None, "cancelled"]


def test_cancelling_the_unknown_is_ignored() -> None:
    link = ScriptedLink([wire.CancelSequence(sequence_id=9)])
    engine = CountingEngine()
    serve(link, engine)
    assert link.sent == []


def test_a_worker_that_the_gateway_takes_nothing_of_ends_with_the_reason() -> None:
    loop = WorkerLoop(CountingEngine(), lambda: STATISTICS, lambda: 0.0)
    with pytest.raises(WorkerRefusedError, match="dtype: fp32 here, bf16 there"):
        loop.serve(ScriptedLink([wire.Refused(reason="dtype: fp32 here, bf16 there")]))


def test_a_refused_sequence_gets_its_ending() -> None:
    link = ScriptedLink([submit(7, *range(101))])
    serve(link, CountingEngine())
    assert link.outputs == [wire.SequenceOutput(sequence_id=7, finish_reason="error", error="too long")]


def test_draft_counts_come_with_the_ending_where_wanted() -> None:
    link = ScriptedLink([submit(7, 10, want_draft_counts=True), submit(8, 10)], [])
    serve(link, CountingEngine())
    drafts = {(output.sequence_id, output.finish_reason): output.draft for output in link.outputs}
    assert drafts == {
        (7, None): None,
        (7, "length"): DraftCounts(num_verifies=2, proposed_by_position=[2], accepted_by_position=[2]),
        (8, None): None,
        (8, "length"): None,
    }


def test_a_sequence_submitted_twice_is_the_gateways_mistake() -> None:
    link = ScriptedLink([submit(7, 10, max_tokens=100)], [submit(7, 10)])
    engine = CountingEngine()
    with pytest.raises(PeerError, match="submitted twice"):
        WorkerLoop(engine, lambda: STATISTICS, lambda: 0.0).serve(link)
    assert not engine.has_work


def test_drain_finishes_what_is_accepted_refuses_more_and_answers_once() -> None:
    link = ScriptedLink([submit(7, 10)], [wire.Drain(), submit(8, 10)], [submit(9, 10)])
    engine = CountingEngine()
    serve(link, engine)
    endings = [(output.sequence_id, output.finish_reason) for output in link.outputs if output.finish_reason]
    assert sorted(endings) == [(7, "length"), (8, "error"), (9, "error")]
    drained = link.sent.index(wire.Drained())
    assert link.sent.count(wire.Drained()) == 1
    assert all(output.sequence_id == 9 for message in link.sent[drained + 1 :] for output in message.outputs)
    assert engine.num_checks == 1


def test_an_idle_worker_drains_at_once_and_can_be_asked_again() -> None:
    link = ScriptedLink([wire.Drain()], [wire.Drain()])
    serve(link, CountingEngine())
    assert link.sent == [wire.Drained(), wire.Drained()]


def test_a_drained_engine_that_is_not_clean_ends_the_process() -> None:
    engine = CountingEngine()
    engine.is_broken = True
    with pytest.raises(InvariantError):
        WorkerLoop(engine, lambda: STATISTICS, lambda: 0.0).serve(ScriptedLink([wire.Drain()]))


def test_the_next_gateway_is_served_after_a_drain() -> None:
    loop = WorkerLoop(CountingEngine(), lambda: STATISTICS, lambda: 0.0)
    with pytest.raises(ConnectionResetError):
        loop.serve(ScriptedLink([wire.Drain()]))
    link = ScriptedLink([submit(7, 10, max_tokens=1)])
    with pytest.raises(ConnectionResetError):
        loop.serve(link)
    assert [output.finish_reason for output in link.outputs] == ["length"]


def test_invariants_are_checked_on_request() -> None:
    engine = CountingEngine()
    link = ScriptedLink([wire.CheckInvariants()])
    serve(link, engine)
    assert link.sent == [wire.InvariantsChecked(ok=True, detail="")]
    engine.is_broken = True
    link = ScriptedLink([wire.CheckInvariants()])
    serve(link, engine)
    assert link.sent == [wire.InvariantsChecked(ok=False, detail="a block is lost")]


def test_an_operators_word_reaches_the_desk() -> None:
    release = wire.ReleaseQuarantine(worker_id="prefill-0", rank=1, life=7)
    desk = VouchingDesk()
    link = ScriptedLink([release])
    with pytest.raises(ConnectionResetError):
        WorkerLoop(CountingEngine(), lambda: STATISTICS, lambda: 0.0, desk=desk).serve(link)
    assert desk.vouched == [Peer(WorkerId("prefill-0"), 1, 7)]
    assert link.sent == [wire.QuarantineReleased(num_blocks=5)]
    link = ScriptedLink([release])
    serve(link, CountingEngine())  # one that has no handoffs
    assert link.sent == [wire.QuarantineReleased(num_blocks=0)]


def test_statistics_are_answered_also_when_idle() -> None:
    link = ScriptedLink([wire.QueryStatistics()])
    serve(link, CountingEngine())
    assert link.sent == [STATISTICS]


def test_statistics_are_sent_once_a_second_while_busy() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.1
        return now

    link = ScriptedLink([submit(7, 10, max_tokens=100)], *([[]] * 49), [wire.CancelSequence(sequence_id=7)])
    with pytest.raises(ConnectionResetError):
        WorkerLoop(CountingEngine(), lambda: STATISTICS, clock).serve(link)
    assert 5 <= link.sent.count(STATISTICS) <= 7


def test_a_lost_gateway_leaves_an_idle_engine_and_no_word_to_the_next() -> None:
    engine = CountingEngine()
    loop = WorkerLoop(engine, lambda: STATISTICS, lambda: 0.0)
    first = ScriptedLink([submit(7, 10, max_tokens=100), submit(8, 10, max_tokens=100)])
    with pytest.raises(ConnectionResetError):
        loop.serve(first)
    assert not engine.has_work
    assert sorted(engine.cancelled) == [7, 8]
    second = ScriptedLink([submit(7, 30, max_tokens=1)])
    engine.cancelled.clear()
    with pytest.raises(ConnectionResetError):
        loop.serve(second)
    assert second.outputs == [wire.SequenceOutput(sequence_id=7, token_ids=[31], finish_reason="length")]


def test_an_engine_that_breaks_is_not_stepped_again() -> None:
    class BreakingEngine(CountingEngine):
        def step(self) -> list[object]:
            self.num_steps += 1
            raise InvariantError("broken")

    engine = BreakingEngine()
    with pytest.raises(InvariantError):
        WorkerLoop(engine, lambda: STATISTICS, lambda: 0.0).serve(ScriptedLink([submit(7, 10)]))
    assert engine.num_steps == 1
