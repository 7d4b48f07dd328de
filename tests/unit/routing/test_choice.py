"""Which pair is chosen."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.routing.candidates import Ask, Candidate, Instance, Why
from lineclear.routing.choice import ChoiceRules, Policy, Turns, choose, load_bound
from lineclear.routing.sessions import Home, Sessions

POLICIES: tuple[Policy, ...] = ("cache_aware", "least_load", "round_robin")
CACHE_AWARE = ChoiceRules()


def worker(name: str, num_sequences: int = 0, **fields: object) -> Candidate:
    known: dict[str, object] = {"num_running": 8, "num_free": 16 - num_sequences}
    return Candidate(worker_id=name, num_sequences=num_sequences, **(known | fields))


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    return [
        Candidate(
            worker_id=f"w{idx}",
            num_sequences=draw(st.integers(0, 20)),
            num_running=draw(st.integers(1, 16)),
            num_free=draw(st.integers(0, 4)),
            num_pending_tokens=draw(st.integers(0, 5000)),
            num_cached_tokens=draw(st.integers(0, 1000)),
            is_admitted=draw(st.booleans()),
            weight=draw(st.sampled_from([0.1, 0.5, 1.0])),
        )
        for idx in range(draw(st.integers(0, 6)))
    ]


@st.composite
def instances(draw: st.DrawFn) -> list[Instance]:
    return [
        Instance(
            prefill_id=f"p{idx}",
            num_pending_tokens=draw(st.integers(0, 5000)),
            num_cached_tokens=draw(st.integers(0, 1000)),
            is_admitted=draw(st.booleans()),
        )
        for idx in range(draw(st.integers(0, 4)))
    ]


asks = st.builds(
    Ask,
    num_sequences=st.integers(1, 3),
    num_prompt_tokens=st.integers(1, 2000),
    avoid_workers=st.frozensets(st.sampled_from(["w0", "w1", "w2"])),
    avoid_prefill=st.frozensets(st.sampled_from(["p0", "p1"])),
)
rules_of = st.builds(ChoiceRules, policy=st.sampled_from(POLICIES), max_imbalance=st.floats(1, 4))
homes = st.none() | st.builds(Home, st.sampled_from(["w0", "w1", "w9"]), st.sampled_from(["", "p0", "p9"]))


@given(asks, candidates(), instances(), rules_of, homes)
def test_whoever_has_room_is_chosen_and_the_trusted_before_the_others(
    ask: Ask, workers: list[Candidate], prefill: list[Instance], rules: ChoiceRules, home: Home | None
) -> None:
    choice = choose(ask, workers, prefill, rules, home=home)
    with_room = [each for each in workers if each.num_free >= ask.num_sequences]
    assert (choice is None) == (not with_room)
    if choice is None:
        return
    chosen = next(each for each in with_room if each.worker_id == choice.worker_id)
    trusted = [each for each in with_room if each.is_admitted and each.worker_id not in ask.avoid_workers]
    assert (chosen in trusted) == bool(trusted)
    assert (choice.why is Why.FORCED) == (not trusted)
    assert chosen.is_admitted or not any(each.is_admitted for each in with_room)


@given(asks, candidates(), instances(), rules_of, homes)
def test_the_same_arguments_make_the_same_choice(
    ask: Ask, workers: list[Candidate], prefill: list[Instance], rules: ChoiceRules, home: Home | None
) -> None:
    assert choose(ask, workers, prefill, rules, home=home) == choose(ask, [*workers], [*prefill], rules, home=home)


@given(asks, candidates(), instances(), rules_of, homes)
def test_an_instance_is_wished_for_that_is_not_to_be_avoided_where_there_is_one(
    ask: Ask, workers: list[Candidate], prefill: list[Instance], rules: ChoiceRules, home: Home | None
) -> None:
    choice = choose(ask, workers, prefill, rules, home=home)
    if choice is None:
        return
    assert (choice.prefill_id != "") == bool(prefill)
    good = {each.prefill_id for each in prefill if each.is_admitted and each.prefill_id not in ask.avoid_prefill}
    assert not good or choice.prefill_id in good
    assert set(choice.avoid_prefill) == {each.prefill_id for each in prefill} - good


@given(asks, candidates(), st.floats(1, 4))
def test_a_session_stays_while_its_worker_is_within_the_bound(
    ask: Ask, workers: list[Candidate], max_imbalance: float
) -> None:
    rules = ChoiceRules(max_imbalance=max_imbalance)
    eligible = [
        each
        for each in workers
        if each.num_free >= ask.num_sequences and each.is_admitted and each.worker_id not in ask.avoid_workers
    ]
    for at_home in eligible:
        choice = choose(ask, workers, [], rules, home=Home(at_home.worker_id))
        assert choice is not None
        bound = load_bound(ask, eligible, max_imbalance)
        is_kept = choice.worker_id == at_home.worker_id and choice.why is Why.SESSION
        assert is_kept == (at_home.load_with(ask.num_sequences) <= bound)
        chosen = next(each for each in eligible if each.worker_id == choice.worker_id)
        assert chosen.load_with(ask.num_sequences) <= bound * (1 + 1e-9)


def test_a_session_with_an_untrusted_home_goes_elsewhere_and_an_idle_home_is_kept() -> None:
    ask = Ask(session_key="s")
    two = [worker("a", is_admitted=False), worker("b")]
    assert choose(ask, two, [], CACHE_AWARE, home=Home("a")) == choose(ask, two, [], CACHE_AWARE)
    light = [worker("a", 1), worker("b")]
    choice = choose(ask, light, [], CACHE_AWARE, home=Home("a"))
    assert choice is not None
    assert (choice.worker_id, choice.why) == ("a", Why.SESSION)


def test_a_prompt_goes_where_its_prefix_is_until_that_worker_is_far_busier() -> None:
    ask = Ask(num_prompt_tokens=10_000)
    cached = {"num_cached_tokens": 9_000}
    choice = choose(ask, [worker("a"), worker("b", 2, **cached)], [], CACHE_AWARE)
    assert choice is not None
    assert (choice.worker_id, choice.why) == ("b", Why.PREFIX)
    busy = choose(ask, [worker("a"), worker("b", 12, **cached)], [], CACHE_AWARE)
    assert busy is not None
    assert (busy.worker_id, busy.why) == ("a", Why.LOAD)


def test_pairs_are_chosen_together() -> None:
    ask = Ask(num_prompt_tokens=10_000)
    workers = [worker("a", num_cached_tokens=4_000), worker("b")]
    prefill = [Instance(prefill_id="p", num_pending_tokens=9_000), Instance(prefill_id="q", num_cached_tokens=9_900)]
    choice = choose(ask, workers, prefill, CACHE_AWARE)
    assert choice is not None
    assert choice.prefill_id == "q"
    # What a worker has cached itself saves the instance nothing that the instance has, too; load decides.
    busy = choose(ask, [replace(workers[0], num_sequences=3), workers[1]], prefill, CACHE_AWARE)
    assert busy is not None
    assert (busy.worker_id, busy.prefill_id) == ("b", "q")


def test_a_prompt_that_a_worker_has_nearly_whole_needs_no_instance() -> None:
    ask = Ask(num_prompt_tokens=10_000)
    workers = [worker("a"), worker("b", num_cached_tokens=9_990)]
    jammed = [Instance(prefill_id="p", num_pending_tokens=10**6)]
    choice = choose(ask, workers, jammed, CACHE_AWARE)
    assert choice is not None
    assert choice.worker_id == "b"


def test_the_least_loaded_has_the_smallest_part_of_its_room_taken_and_is_the_oldest_of_equals() -> None:
    rules = ChoiceRules(policy="least_load")
    names = [
        choice.worker_id
        for workers in (
            [worker("a", 2), worker("b", 1)],
            [worker("b", 1), worker("a", 1)],
            [worker("a", 2), worker("b", 3, num_free=60)],
            [worker("a", 1, weight=0.1), worker("b", 5)],
        )
        if (choice := choose(Ask(), workers, [], rules)) is not None
    ]
    assert names == ["b", "b", "b", "b"]


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_turns_go_round(num_workers: int) -> None:
    rules = ChoiceRules(policy="round_robin")
    workers = [worker(f"w{idx}") for idx in range(num_workers)]
    prefill = [Instance(prefill_id=f"p{idx}") for idx in range(2)]
    turns, counts = Turns(), Counter[str]()
    for _ in range(10 * num_workers):
        choice = choose(Ask(), workers, prefill, rules, turns=turns)
        assert choice is not None
        assert choice.prefill_id != turns.prefill_id
        turns = Turns(choice.worker_id, choice.prefill_id)
        counts[choice.worker_id] += 1
    assert set(counts.values()) == {10}


def test_the_sessions_heard_of_longest_ago_are_forgotten() -> None:
    sessions = Sessions(2)
    sessions.settle("", Home("x"))
    assert (len(sessions), sessions.find("")) == (0, None)
    for key in ("a", "b", "a", "c"):
        sessions.settle(key, Home(key))
    assert (sessions.find("a"), sessions.find("b"), sessions.find("c")) == (Home("a"), None, Home("c"))
    assert len(sessions) == 2
