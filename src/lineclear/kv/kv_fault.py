"""What the KV sanitizer has found, as plain data and in words."""

from dataclasses import dataclass
from enum import StrEnum

from lineclear.base.ids import BlockId


class KvFaultKind(StrEnum):
    """What happened to a block."""

    WRITE_AFTER_FREE = "write_after_free"
    """Somebody wrote into a block that nobody held."""
    WRITE_AFTER_SEAL = "write_after_seal"
    """Rows changed after their last writer was done."""
    READ_BEFORE_READY = "read_before_ready"
    """A pass read a part that a load had yet to bring."""
    READ_AFTER_FREE = "read_after_free"
    """A copy to the host read a block that nobody held any more."""
    COPY_DIFFERS = "copy_differs"
    """A copy between tiers, or from another worker, did not bring what was sealed at its source."""


@dataclass(frozen=True, slots=True)
class KvFault:
    """One fault of one block."""

    kind: KvFaultKind
    tier: str
    """device or host."""
    block_id: BlockId
    allocation: int
    """The block's allocation number when the fault was found; 0 on the host."""
    parts: tuple[tuple[int, str], ...]
    """Layer and part of everything that differs."""
    found_by: str
    """allocation, pass, sweep, load or offload."""
    owners: tuple[str, ...]
    """Those of the block now."""
    previous_owners: tuple[str, ...]
    """Those before them, whose late write it may be."""
    history: tuple[str, ...]
    """The last holds, the oldest first."""

    def text(self) -> str:
        """One paragraph for the log."""
        parts = ", ".join(f"layer {layer} {part}" for layer, part in self.parts)
        return (
            f"{self.kind.value}: {self.tier} block {self.block_id} (allocation {self.allocation}), {parts}; "
            f"found by {self.found_by}; now of {_listed(self.owners)}; before of {_listed(self.previous_owners)}; "
            f"history: {'; '.join(self.history) or 'none'}"
        )


def _listed(owners: tuple[str, ...]) -> str:
    return ", ".join(owners) or "nobody"
