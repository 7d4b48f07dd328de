"""Seeded random walks through a model that is too large to visit whole."""

import random

from lineclear.testing.explorer import Judge, Label, Model, Move, MoveKind, Violation, World

_RARE_SHARES = (0.02, 0.1, 0.3)
"""How often what may happen or not gets a turn, next to what is fair; one share for each walk."""


def walk(
    model: Model[World], seed: int, *, max_moves: int, liveness: Judge[World] | None = None
) -> tuple[str | None, tuple[Label, ...]]:
    """Make random moves from the first world and return what is broken, if anything, with the moves.

    Order: the kind of move is drawn first, then the move, so that rare kinds are not drowned by many messages.
    """
    chance = random.Random(seed)  # noqa: S311 - a test, which must be repeatable
    share = chance.choice(_RARE_SHARES)
    world, script = model.start(), list[Label]()
    try:
        for _ in range(max_moves):
            move = _draw(list(model.moves(world)), chance, share)
            if move is None:
                break
            script.append(move.label)
            world = move.after()
            model.check(world)
    except Violation as violation:
        return violation.broken, tuple(script)
    wrong = None if liveness is None else liveness.judge(world)
    return (None if wrong is None else f"in the end, {wrong}"), tuple(script)


def _draw(moves: list[Move[World]], chance: random.Random, share: float) -> Move[World] | None:
    usual = [move for move in moves if move.kind is MoveKind.FAIR]
    pool = usual if usual and chance.random() > share else moves
    if not pool:
        return None
    word = chance.choice(sorted({move.label[0] for move in pool}))
    return chance.choice([move for move in pool if move.label[0] == word])
