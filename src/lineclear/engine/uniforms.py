"""Random numbers that belong to a position, not to a moment.

Each position of a sequence owns three uniforms, derived from the sequence's seed and the position alone. Whatever else
runs in the batch, however the sequence is chunked or preempted, the same position draws the same numbers.

Source: Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), as NumPy implements it: one
counter value yields four words.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORDS_PER_COUNTER = 4
SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Uniforms:
    """The numbers of consecutive positions, each in [0, 1).

    Shapes: each [n], entry i for position `first + i`.
    """

    accept: NDArray[np.float64]  # is the draft at this position kept?
    choose: NDArray[np.float64]  # which token ends a verify that starts at this position?
    draft: NDArray[np.float64]  # which token does the drafter propose?


def uniforms(seed: int, first: int, count: int) -> Uniforms:
    """The uniforms of positions [first, first + count) of the sequence with this seed."""
    generator = np.random.Generator(np.random.Philox(key=seed & SEED_MASK, counter=[first, 0, 0, 0]))
    words = generator.random(count * WORDS_PER_COUNTER).reshape(count, WORDS_PER_COUNTER)
    return Uniforms(accept=words[:, 0], choose=words[:, 1], draft=words[:, 2])
