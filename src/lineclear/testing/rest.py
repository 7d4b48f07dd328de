"""Liveness: from every world, once faults stop, the good end is still reached.

From a world, what was on the way is lost first: the worst that a network may do. Then everything fair happens, each
message arriving once; whoever waits asks again; deadlines pass only when asking changes nothing. The world at rest
must be good, but for what waits for a fence of a dead peer or for a late answer. Then these come too, and nothing
at all may remain.

That is a path to a good end from every world, found once for all worlds that share its tail. One path is enough
where moves never lead back to an earlier world: then every schedule comes to rest, and the world where it rests is
itself one of those judged.
"""

from collections.abc import Iterable
from typing import Generic, Protocol

from lineclear.base.errors import InvariantError
from lineclear.testing.explorer import Move, MoveKind, Store, Violation, World

_LONGEST_PATH = 10_000
"""Fair moves in a row; more are a livelock."""


class RestModel(Protocol[World]):
    """What must be known to bring a world to rest."""

    def moves(self, world: World, /) -> Iterable[Move[World]]:
        """Yield what can happen, each message arriving once."""
        ...

    def normal(self, world: World, /) -> World:
        """Return the world that stands for all that need not be told apart from this one."""
        ...

    def lose_messages(self, world: World, /) -> World:
        """Return the world in which nothing is on its way."""
        ...

    def ask_again(self, world: World, /) -> World:
        """Return the world after everyone who waits has asked again."""
        ...

    def leftovers(self, world: World, /, *, everything: bool) -> str | None:
        """Return what is wrong with a world at rest; `everything`: also what waits for a proof that may not come."""
        ...


class Rest(Generic[World]):
    """Brings worlds to rest and remembers what came of it."""

    def __init__(self, model: RestModel[World], first: World) -> None:
        self._model = model
        self._store = Store(first)
        self._calm_after: dict[tuple[int, ...], World] = {}
        self._verdicts: dict[tuple[int, ...], str | None] = {}

    def judge(self, world: World) -> str | None:
        """Return what is wrong; None if nothing is, or if a promise breaks on the way, which the search will find."""
        try:
            return self._judge(self._calm(self._model.lose_messages(world)))
        except Violation:
            return None

    def _judge(self, world: World) -> str | None:
        path: list[tuple[int, ...]] = []
        while (key := self._store.key(world)) not in self._verdicts:
            path.append(key)
            after = self._ask_or_expire(world)
            if after is None:
                self._verdicts[key] = self._judge_at_rest(world)
                break
            world = after
        verdict = self._verdicts[key]
        self._verdicts.update(dict.fromkeys(path, verdict))
        return verdict

    def _calm(self, world: World) -> World:
        """Let everything fair happen."""
        path: list[tuple[int, ...]] = []
        while True:
            world = self._model.normal(world)
            key = self._store.key(world)
            if key in self._calm_after:
                world = self._calm_after[key]
                break
            path.append(key)
            if len(path) > _LONGEST_PATH:
                raise InvariantError("a livelock: fair moves without end")
            after = self._first(world, MoveKind.FAIR)
            if after is None:
                break
            world = after
        self._calm_after.update(dict.fromkeys(path, world))
        return world

    def _ask_or_expire(self, world: World) -> World | None:
        after = self._calm(self._model.ask_again(world))
        if after != world:
            return after
        expired = self._first(world, MoveKind.TIMEOUT)
        return None if expired is None else self._calm(expired)

    def _judge_at_rest(self, world: World) -> str | None:
        wrong = self._model.leftovers(world, everything=False)
        if wrong is not None:
            return wrong
        while (after := self._first(world, MoveKind.PROOF)) is not None:
            world = self._calm(after)
            while (after := self._ask_or_expire(world)) is not None:
                world = after
        return self._model.leftovers(world, everything=True)

    def _first(self, world: World, kind: MoveKind) -> World | None:
        return next((move.after() for move in self._model.moves(world) if move.kind == kind), None)
