"""Breadth-first search through every world that a model can reach.

A *model* says which world is the first, which moves lead on from a world, and what is wrong with a world. Worlds
are tuples of hashable components. Each world is visited once, those with the shortest scripts first, so a failure
prints the shortest script that leads to it.

Safety is asked of every world and every move (`Violation`). Liveness is asked of every world too: see
`lineclear.testing.rest`.
"""

from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

World = TypeVar("World", bound=tuple[Any, ...])
World_contra = TypeVar("World_contra", bound=tuple[Any, ...], contravariant=True)
Label = tuple[Any, ...]

_PROGRESS_EVERY = 1000
"""Worlds between two reports of progress."""


class MoveKind(IntEnum):
    """What may be relied on to happen."""

    FAIR = 0
    """Happens sooner or later if nothing else does."""
    TIMEOUT = 1
    """A deadline: passes once nothing fair is left to happen and asking again changes nothing."""
    PROOF = 2
    """A fence or a late answer: may take for ever, but can always come."""
    CHOICE = 3
    """May happen or not."""
    FAULT = 4
    """Should not happen, and must be survived."""


class Move(NamedTuple, Generic[World]):
    """One thing that can happen in a world."""

    label: Label
    """What it is: a word, and what it is about."""
    kind: MoveKind
    after: Callable[[], World]
    """Returns the world after it, the very same if nothing changes.

    Raises: Violation if it breaks a promise.
    """


class Violation(Exception):  # noqa: N818 - a finding about the model, not a mistake in this program
    """A promise that does not hold."""

    def __init__(self, broken: str) -> None:
        self.broken = broken
        super().__init__(broken)


class Model(Protocol[World]):
    """What the explorer needs to know."""

    def start(self) -> World:
        """Return the first world."""
        ...

    def moves(self, world: World, /) -> Iterable[Move[World]]:
        """Yield everything that can happen."""
        ...

    def check(self, world: World, /) -> None:
        """Judge one world.

        Raises: Violation if it breaks a promise.
        """
        ...

    def normal(self, world: World, /) -> World:
        """Return the world that stands for all that need not be told apart from this one."""
        ...


class Judge(Protocol[World_contra]):
    """Tells whether a world can still come to a good end."""

    def judge(self, world: World_contra, /) -> str | None:
        """Return what is wrong; None if nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search saw."""

    num_states: int
    num_moves: int
    depth: int
    """Moves to the farthest world."""
    broken: str | None
    """The promise that does not hold; None if none was found broken."""
    script: tuple[Label, ...]
    """The moves that lead there, as few as possible."""
    is_complete: bool
    """Whether every reachable world was visited, or a violation was found."""


class Store(Generic[World]):
    """Worlds, numbered in the order of their discovery.

    Equal components are one object with a small number, so that a world takes a short tuple of numbers. Cost: about 250
    bytes a world.
    """

    def __init__(self, first: World) -> None:
        self._make: Callable[[Iterable[Any]], World] = getattr(type(first), "_make", type(first))
        self._components = [_Components() for _ in first]
        self._index: dict[tuple[int, ...], int] = {}
        self._keys: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, world: World) -> tuple[int, ...]:
        """Return numbers that are the same for equal worlds only."""
        return tuple([number_of(part) for number_of, part in zip(self._components, world, strict=True)])

    def add(self, world: World) -> int | None:
        """Return the number of a new world; None for one that is known."""
        key = self.key(world)
        number = len(self._keys)
        if self._index.setdefault(key, number) != number:
            return None
        self._keys.append(key)
        return number

    def world(self, number: int) -> World:
        """Return a world by its number."""
        key = self._keys[number]
        return self._make(part.values[i] for part, i in zip(self._components, key, strict=True))


class _Components:
    """The values of one component, numbered."""

    def __init__(self) -> None:
        self.values: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}
        self._by_address: dict[int, int] = {}

    def __call__(self, value: Hashable) -> int:
        known = self._by_address.get(id(value))
        if known is not None:
            return known
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)  # keeps it alive, so that its address stays its own
            self._by_address[id(value)] = number
        return number


def explore(
    model: Model[World],
    *,
    liveness: Judge[World] | None = None,
    max_states: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Exploration:
    """Visit every world of a model, or all up to the first that breaks a promise.

    Returns: with `is_complete` false if there are more than `max_states`.
    """
    return _Search(model, liveness, max_states, on_progress).run()


class _Broken(Exception):  # noqa: N818 - it only carries a finding out of a loop
    def __init__(self, violation: Violation, label: Label) -> None:
        self.violation = violation
        self.label = label
        super().__init__(violation.broken)


class _Search(Generic[World]):
    def __init__(
        self,
        model: Model[World],
        liveness: Judge[World] | None,
        max_states: int | None,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._model = model
        self._liveness = liveness
        self._max_states = max_states
        self._on_progress = on_progress
        first = model.normal(model.start())
        self._store = Store(first)
        self._store.add(first)
        self._parents = array("q", [-1])
        self._depths = array("H", [0])
        self._num_moves = 0

    def run(self) -> Exploration:
        at = 0
        while at < len(self._store):
            if self._max_states is not None and len(self._store) > self._max_states:
                return self._found(None, (), is_complete=False)
            if at % _PROGRESS_EVERY == 0 and self._on_progress is not None:
                self._on_progress(len(self._store))
            world = self._store.world(at)
            wrong = None if self._liveness is None else self._liveness.judge(world)
            if wrong is not None:
                return self._found(f"in the end, {wrong}", self._script(at))
            try:
                self._visit(at, world)
            except _Broken as found:
                return self._found(found.violation.broken, (*self._script(at), found.label))
            at += 1
        return self._found(None, ())

    def _visit(self, at: int, world: World) -> None:
        model, store = self._model, self._store
        depth = self._depths[at] + 1
        for label, _, happen in model.moves(world):
            try:
                after = happen()
                if after is world:
                    continue
                self._num_moves += 1
                normal = model.normal(after)
                if store.add(normal) is None:
                    continue
                self._parents.append(at)
                self._depths.append(depth)
                model.check(normal)
            except Violation as violation:
                raise _Broken(violation, label) from None

    def _found(self, broken: str | None, script: tuple[Label, ...], *, is_complete: bool = True) -> Exploration:
        return Exploration(len(self._store), self._num_moves, max(self._depths), broken, script, is_complete)

    def _script(self, at: int) -> tuple[Label, ...]:
        numbers = [at]
        while numbers[-1] != 0:
            numbers.append(self._parents[numbers[-1]])
        worlds = [self._store.world(number) for number in reversed(numbers)]
        return tuple(self._label(before, after) for before, after in pairwise(worlds))

    def _label(self, before: World, after: World) -> Label:
        model = self._model
        return next(move.label for move in model.moves(before) if model.normal(move.after()) == after)
