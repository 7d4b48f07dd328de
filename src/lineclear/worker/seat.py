"""A worker's place among the others, as whoever starts it decides."""

from dataclasses import dataclass

from lineclear.protocol.roles import Role


@dataclass(frozen=True)
class Seat:
    """A worker's place among the others."""

    worker_id: str
    life: int
    role: Role = Role.COLOCATED
    peer_endpoint: str = ""
    """Where a prefill instance listens for decode workers; with port 0 a free one is taken."""
    memory_share: float = 1.0
    """Of the memory that a worker alone would take for KV: others on the host take the rest."""
