"""A worker's place among the others, as whoever starts it decides."""

from dataclasses import dataclass
from typing import Final

from lineclear.protocol.roles import Role

LAST_COPIES_SECONDS: Final = 5.0
"""How long a worker that leaves goes on writing what is on its way to disk; whoever started it waits for longer.

At the 10 ms that a slow disk takes to sync a file: 500 blocks, 8,000 tokens. What is not written is a miss later.
"""


@dataclass(frozen=True)
class Seat:
    """A worker's place among the others."""

    worker_id: str
    life: int
    role: Role = Role.COLOCATED
    peer_endpoint: str = ""
    """Where a prefill instance listens for decode workers; with port 0 a free one is taken."""
    rank: int = 0
    """In a prefill instance of several ranks: which one."""
    num_ranks: int = 1
    rank_endpoint: str = ""
    """Where rank 0 listens for the others."""
    memory_share: float = 1.0
    """Of the memory that a worker alone would take for KV: others on the host take the rest."""
