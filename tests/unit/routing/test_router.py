"""What the gateway knows of its workers, and the choices made of it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lineclear.routing.breaker import BreakerRules, BreakerState, Ending
from lineclear.routing.candidates import Ask, Choice, Why
from lineclear.routing.choice import ChoiceRules
from lineclear.routing.router import MAX_GONE, BreakerChange, Room, Router, RouterRules, Ticket
from lineclear.routing.sketch import PIECE_TOKENS, piece_names

RULES = RouterRules(breaker=BreakerRules(open_seconds=5.0, slow_start_seconds=10.0))

ANY = Ask()


@dataclass
class Fleet:
    """A router with workers that have room for everything, and a clock."""

    num_workers: int = 2
    num_prefill: int = 0
    rules: RouterRules = RULES
    now: float = 100.0
    loads: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.router = Router(self.rules)
        self.loads = {f"d{idx}": 0 for idx in range(self.num_workers)}
        self.prefill_ids = [f"p{idx}" for idx in range(self.num_prefill)]
        for worker_id in (*self.loads, *self.prefill_ids):
            self.router.connect(worker_id, 100_000, self.now)

    def choose(self, ask: Ask = ANY) -> Choice:
        rooms = [
            Room(worker_id=name, num_sequences=load, num_running=8, num_free=100) for name, load in self.loads.items()
        ]
        choice = self.router.choose(ask, rooms, self.prefill_ids, self.now)
        assert choice is not None
        return choice

    def begin(self, ask: Ask = ANY) -> tuple[Choice, list[Ticket]]:
        choice = self.choose(ask)
        self.loads[choice.worker_id] += ask.num_sequences
        return choice, self.router.begin(choice, ask, self.now)

    def end(self, ticket: Ticket, ending: Ending, **fields: object) -> None:
        self.loads[ticket.worker_id] -= 1
        self.router.end(ticket, ending, self.now, **fields)

    def serve(self, ending: Ending, ask: Ask = ANY, **fields: object) -> Choice:
        choice, tickets = self.begin(ask)
        for ticket in tickets:
            self.end(ticket, ending, **fields)
        return choice

    def states(self) -> dict[str, BreakerState]:
        return {each.worker_id: each.state for each in self.router.health(self.now)}


def prompt_ask(*pieces: int, **fields: object) -> Ask:
    token_ids = [piece for piece in pieces for _ in range(PIECE_TOKENS)]
    return Ask(num_prompt_tokens=len(token_ids), names=piece_names(token_ids), **fields)


def test_a_session_comes_back_to_its_worker() -> None:
    fleet = Fleet(4)
    homes = {key: fleet.serve(Ending.GOOD, Ask(session_key=key)).worker_id for key in "abcdefgh"}
    for _ in range(3):
        for key, worker_id in homes.items():
            choice = fleet.serve(Ending.GOOD, Ask(session_key=key))
            assert (choice.worker_id, choice.why) == (worker_id, Why.SESSION)


def test_a_prompt_follows_its_prefix_without_a_session() -> None:
    fleet = Fleet(3)
    fleet.loads |= {"d0": 1, "d1": 1}
    assert fleet.serve(Ending.GOOD, prompt_ask(*range(50))).worker_id == "d2"
    fleet.loads |= {"d0": 0, "d1": 0}
    choice = fleet.serve(Ending.GOOD, prompt_ask(*range(50), 99))
    assert (choice.worker_id, choice.why) == ("d2", Why.PREFIX)


def test_a_worker_that_breaks_everything_is_given_nothing_and_the_others_serve() -> None:
    fleet = Fleet(3)
    fleet.loads["d0"] = fleet.loads["d2"] = 5
    for _ in range(3):
        choice, [ticket] = fleet.begin()
        fleet.end(ticket, Ending.BAD if choice.worker_id == "d1" else Ending.GOOD, reason="collapse")
    assert fleet.states() == {"d0": BreakerState.CLOSED, "d1": BreakerState.OPEN, "d2": BreakerState.CLOSED}
    fleet.loads["d0"] = fleet.loads["d2"] = 50
    assert {fleet.serve(Ending.GOOD).worker_id for _ in range(20)} <= {"d0", "d2"}
    changes = fleet.router.take_changes()
    assert changes == [BreakerChange("d1", BreakerState.CLOSED, BreakerState.OPEN, "collapse")]
    assert fleet.router.take_changes() == []


def test_it_is_given_probes_when_its_time_is_up_and_everything_when_they_end_well() -> None:
    fleet = Fleet(2)
    fleet.loads["d1"] = 5
    for _ in range(3):
        assert fleet.serve(Ending.BAD).worker_id == "d0"
    assert fleet.serve(Ending.GOOD).worker_id == "d1"
    fleet.now += 5.0
    probes = [fleet.begin() for _ in range(2)]
    assert [choice.worker_id for choice, _ in probes] == ["d0", "d0"]
    assert fleet.choose().worker_id == "d1"
    for _, [ticket] in probes:
        fleet.end(ticket, Ending.GOOD)
    assert fleet.states()["d0"] is BreakerState.CLOSED
    [first, _] = fleet.router.health(fleet.now)
    assert first.weight == pytest.approx(0.1)


def test_a_fleet_that_nobody_trusts_still_serves() -> None:
    fleet = Fleet(2)
    for _ in range(20):
        fleet.serve(Ending.BAD)
    assert set(fleet.states().values()) == {BreakerState.OPEN}
    assert fleet.choose().why is Why.FORCED


@pytest.mark.parametrize("culprit", ["p0", "d0"])
def test_of_a_pair_the_one_is_found_that_breaks_answers(culprit: str) -> None:
    fleet = Fleet(2, 2, RouterRules(choice=ChoiceRules(policy="round_robin")))
    pairs = [(worker_id, prefill_id) for worker_id in ("d0", "d1") for prefill_id in ("p0", "p1")]
    ask = Ask(num_prompt_tokens=1000)
    for worker_id, prefill_id in pairs * 4:
        choice = Choice(worker_id, prefill_id, (), Why.TURN)
        [ticket] = fleet.router.begin(choice, ask, fleet.now)
        is_broken = culprit in (worker_id, prefill_id)
        fleet.router.end(
            ticket, Ending.BAD if is_broken else Ending.GOOD, fleet.now, prefill_id=prefill_id if is_broken else ""
        )
    assert [name for name, state in fleet.states().items() if state is BreakerState.OPEN] == [culprit]
    if culprit == "p0":
        assert fleet.choose(ask).avoid_prefill == ("p0",)
        assert fleet.choose(ask).prefill_id == "p1"


def test_a_lost_worker_that_comes_back_starts_slowly_and_without_a_cache() -> None:
    fleet = Fleet(2)
    fleet.loads["d1"] = 5
    fleet.serve(Ending.GOOD, prompt_ask(*range(20)))
    fleet.router.disconnect("d0", fleet.now, is_lost=True)
    fleet.router.connect("d0", 100_000, fleet.now)
    [first, _] = fleet.router.health(fleet.now)
    assert (first.weight, first.num_sketched, first.bad_share) == (pytest.approx(0.1), 0, 0.5)


def test_a_worker_that_was_asked_to_leave_is_not_held_back_when_it_returns() -> None:
    fleet = Fleet(1)
    fleet.router.disconnect("d0", fleet.now, is_lost=False)
    fleet.router.connect("d0", 100_000, fleet.now)
    [only] = fleet.router.health(fleet.now)
    assert (only.weight, only.bad_share) == (1.0, 0.0)


def test_workers_that_never_return_are_forgotten() -> None:
    router = Router(RULES)
    for idx in range(MAX_GONE + 50):
        router.connect(f"w{idx}", 1000, 0.0)
        router.disconnect(f"w{idx}", 0.0, is_lost=True)
    names = {each.worker_id for each in router.health(0.0)}
    assert len(names) == MAX_GONE
    assert f"w{MAX_GONE + 49}" in names


def test_a_worker_far_slower_than_the_others_is_given_nothing() -> None:
    fleet = Fleet(2, rules=RouterRules(choice=ChoiceRules(policy="round_robin")))
    for _ in range(40):
        choice, [ticket] = fleet.begin()
        fleet.router.first_token(ticket, fleet.now)
        fleet.now += 10.0 if choice.worker_id == "d1" else 0.1
        fleet.end(ticket, Ending.GOOD, num_tokens=11)
        if fleet.states()["d1"] is BreakerState.OPEN:
            break
    changes = fleet.router.take_changes()
    assert [(each.worker_id, each.reason) for each in changes] == [("d1", "slow")]


def test_what_a_broken_answer_read_is_thought_to_be_cached_no_more() -> None:
    fleet = Fleet(1, 1)
    for is_forgotten in (False, True):
        [ticket] = fleet.router.begin(Choice("d0", "p0", (), Why.LOAD), prompt_ask(*range(20)), fleet.now)
        fleet.router.end(ticket, Ending.BAD, fleet.now, prefill_id="p0", is_forgotten=is_forgotten)
        assert {each.num_sketched for each in fleet.router.health(fleet.now)} == ({0} if is_forgotten else {20})


def test_choices_of_one_prompt_count_its_tokens_once_and_until_its_first_token() -> None:
    fleet = Fleet(2)
    _, tickets = fleet.begin(Ask(num_sequences=3, num_prompt_tokens=5000))
    assert sum(ticket.num_worker_tokens for ticket in tickets) == 5000
    assert fleet.choose(Ask(num_prompt_tokens=5000)).worker_id == "d1"
    for ticket in tickets:
        fleet.router.first_token(ticket, fleet.now)
        fleet.end(ticket, Ending.GOOD)
    assert sum(ticket.num_worker_tokens for ticket in tickets) == 0
    with pytest.raises(AssertionError):
        fleet.router.end(tickets[0], Ending.GOOD, fleet.now)


class AnyTraffic(RuleBasedStateMachine):
    """Workers come, leave and fail, sequences begin and end, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(RULES)
        self.now = 0.0
        self.connected: list[str] = []
        self.open: list[Ticket] = []

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def connect(self, name: str) -> None:
        if name not in self.connected:
            self.router.connect(name, 1000, self.now)
            self.connected.append(name)

    @precondition(lambda self: self.connected)
    @rule(data=st.data(), is_lost=st.booleans())
    def disconnect(self, data: st.DataObject, is_lost: bool) -> None:
        name = data.draw(st.sampled_from(self.connected))
        for ticket in [each for each in self.open if each.worker_id == name]:
            self.open.remove(ticket)
            self.router.end(ticket, Ending.NEUTRAL, self.now)
        self.router.disconnect(name, self.now, is_lost=is_lost)
        self.connected.remove(name)

    @precondition(lambda self: self.connected)
    @rule(pieces=st.lists(st.integers(0, 2), max_size=6), num=st.integers(1, 3), key=st.sampled_from(["", "s", "t"]))
    def begin(self, pieces: list[int], num: int, key: str) -> None:
        rooms = [
            Room(
                worker_id=name,
                num_sequences=sum(each.worker_id == name for each in self.open),
                num_running=4,
                num_free=100,
            )
            for name in self.connected
            if name != "c"
        ]
        ask = prompt_ask(*pieces, num_sequences=num, session_key=key)
        choice = self.router.choose(ask, rooms, [name for name in self.connected if name == "c"], self.now)
        assert (choice is None) == (not rooms)
        if choice is not None:
            self.open += self.router.begin(choice, ask, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), ending=st.sampled_from([*Ending]), prefill_id=st.sampled_from(["", "c", "gone"]))
    def end(self, data: st.DataObject, ending: Ending, prefill_id: str) -> None:
        ticket = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.router.first_token(ticket, self.now)
        self.router.end(ticket, ending, self.now, num_tokens=5, prefill_id=prefill_id)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def adds_up(self) -> None:
        self.router.check()
        if not self.open:
            assert all(each.num_pending_tokens == 0 for each in self.router.health(self.now))


TestAnyTraffic = AnyTraffic.TestCase
