from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest

from lineclear.base.errors import InvariantError
from lineclear.testing.explorer import Exploration, Move, MoveKind, Violation, explore
from lineclear.testing.rest import Rest


class Jugs(NamedTuple):
    """Litres in a large and a small jug, and whether a message is on its way."""

    large: int = 0
    small: int = 0


@dataclass(frozen=True)
class JugModel:
    """Fill, empty and pour; what is forbidden is a number of litres in the large jug."""

    forbidden: int | None = None
    sizes: tuple[int, int] = (5, 3)

    def start(self) -> Jugs:
        return Jugs()

    def normal(self, world: Jugs) -> Jugs:
        return world

    def check(self, world: Jugs) -> None:
        if world.large == self.forbidden:
            raise Violation(f"{self.forbidden} litres")

    def moves(self, world: Jugs) -> Iterator[Move[Jugs]]:
        poured = min(world.small, self.sizes[0] - world.large)
        back = min(world.large, self.sizes[1] - world.small)
        for label, after in (
            ("fill large", Jugs(self.sizes[0], world.small)),
            ("fill small", Jugs(world.large, self.sizes[1])),
            ("empty large", Jugs(0, world.small)),
            ("empty small", Jugs(world.large, 0)),
            ("pour into large", Jugs(world.large + poured, world.small - poured)),
            ("pour into small", Jugs(world.large - back, world.small + back)),
        ):
            yield Move((label,), MoveKind.CHOICE, partial(Jugs, *after))


def test_the_shortest_script_to_a_violation_is_found() -> None:
    found = explore(JugModel(forbidden=4))
    assert found.broken == "4 litres"
    assert [label for (label,) in found.script] == [
        "fill large",
        "pour into small",
        "empty small",
        "pour into small",
        "fill large",
        "pour into small",
    ]


def test_every_world_is_visited_once() -> None:
    found = explore(JugModel())
    assert (found.num_states, found.broken, found.script, found.is_complete) == (16, None, (), True)


def test_a_search_that_is_cut_short_says_so() -> None:
    found = explore(JugModel(), max_states=5)
    assert not found.is_complete
    assert found.broken is None


def test_progress_is_told() -> None:
    told: list[int] = []
    explore(JugModel(), on_progress=told.append)
    assert told == [1]


def test_a_move_that_breaks_a_promise_ends_the_script() -> None:
    class Exploding(JugModel):
        def moves(self, world: Jugs) -> Iterator[Move[Jugs]]:
            yield from super().moves(world)
            if world.small == 3:
                yield Move(("drop",), MoveKind.FAULT, partial(_break, "a jug is broken"))

    assert explore(Exploding()).script == (("fill small",), ("drop",))


def _break(what: str) -> Jugs:
    raise Violation(what)


class Post(NamedTuple):
    """A question is asked until it is answered; at the end nothing may be awaited."""

    waits: bool = True
    on_its_way: bool = True
    fenced: bool = False


@dataclass(frozen=True)
class PostModel:
    asks_again: bool = True
    is_answered: bool = True
    needs_fence: bool = False
    runs_in_circles: bool = False

    def start(self) -> Post:
        return Post()

    def normal(self, world: Post) -> Post:
        return world

    def check(self, world: Post) -> None:
        pass

    def moves(self, world: Post) -> Iterator[Move[Post]]:
        if world.on_its_way and self.is_answered:
            waits = self.needs_fence and not world.fenced
            yield Move(("answer",), MoveKind.FAIR, partial(Post, waits, False, world.fenced))
        if self.runs_in_circles:
            yield Move(("turn",), MoveKind.FAIR, partial(Post, world.waits, not world.on_its_way))
        if self.needs_fence and not world.fenced:
            yield Move(("fence",), MoveKind.PROOF, partial(Post, world.waits, world.on_its_way, True))

    def lose_messages(self, world: Post) -> Post:
        return world._replace(on_its_way=False)

    def ask_again(self, world: Post) -> Post:
        return world._replace(on_its_way=True) if world.waits and self.asks_again else world

    def leftovers(self, world: Post, *, everything: bool) -> str | None:
        excused = self.needs_fence and not everything
        return "somebody waits" if world.waits and not excused else None


def explore_post(model: PostModel) -> Exploration:
    return explore(model, liveness=Rest(model, model.start()))


def test_who_asks_again_gets_to_a_good_end_though_all_is_lost() -> None:
    assert explore_post(PostModel()).broken is None


@pytest.mark.parametrize("model", [PostModel(asks_again=False), PostModel(is_answered=False)])
def test_what_never_ends_is_found(model: PostModel) -> None:
    found = explore_post(model)
    assert found.broken == "in the end, somebody waits"
    assert found.script == ()


def test_what_waits_for_a_proof_is_judged_once_it_has_come() -> None:
    assert explore_post(PostModel(needs_fence=True)).broken is None


def test_a_livelock_is_an_error_of_the_model() -> None:
    class Growing(PostModel):
        def moves(self, world: Post) -> Iterator[Move[Post]]:
            yield Move(("grow",), MoveKind.FAIR, partial(Post, world.waits, world.on_its_way, int(world.fenced) + 1))

    model = Growing()
    with pytest.raises(InvariantError, match="livelock"):
        Rest(model, model.start()).judge(model.start())
