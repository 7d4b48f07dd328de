"""What two workers say before anything else: who they are, and whether their KV fits together.

    decode worker ── PeerHello ──▶ prefill instance      each checks the other's facts
    decode worker ◀── PeerHello ── prefill instance      whoever finds a difference says so and closes

`facts` are compared name by name. They are texts for people, and the digest of what they stand for: the wire version,
the model's configuration and weights, the bytes of a token's KV, and what makes outputs the same bits.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from lineclear.protocol.handoff.names import Count, Positive
from lineclear.protocol.roles import Role
from lineclear.protocol.wire import WIRE_VERSION


class _Message(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """What both messages share."""


class PeerHello(_Message, frozen=True, kw_only=True, tag="peer_hello"):
    """A worker's first message on a link to another worker."""

    role: Role
    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    rank: Count = 0
    num_ranks: Positive = 1
    """Processes of a prefill instance, all of one life; each says hello on a link of its own."""
    life: Count
    facts: dict[str, str]
    """Must be equal at both ends."""
    num_blocks: Positive
    """Blocks of its KV memory: with the layout, the place of every token's bytes."""
    writer: bytes = b""
    """Prefill: the identity that decode needs to fence this life."""

    def __post_init__(self) -> None:
        if self.rank >= self.num_ranks:
            raise ValueError(f"rank: got {self.rank}, allowed: below num_ranks ({self.num_ranks})")


class PeerRefusal(_Message, frozen=True, kw_only=True, tag="peer_refusal"):
    """The last message on a link: why the other is not taken."""

    reason: str
    ends_life: bool = False
    """Nothing of this life is taken any more, only of a new one: the process has to end."""


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Name every fact that differs, with both values; empty if all are equal."""
    names = sorted(set(ours) | set(theirs))
    return "; ".join(
        f"{name}: {ours.get(name, 'absent')} here, {theirs.get(name, 'absent')} there"
        for name in names
        if ours.get(name) != theirs.get(name)
    )


def version_fact() -> dict[str, str]:
    """The fact that every hello has."""
    return {"wire version": str(WIRE_VERSION)}
