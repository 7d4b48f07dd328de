"""What a worker does with prompts."""

from enum import StrEnum


class Role(StrEnum):
    """What a worker does with prompts."""

    COLOCATED = "colocated"
    """Computes them and generates: no handoff."""
    PREFILL = "prefill"
    """Computes them for decode workers."""
    DECODE = "decode"
    """Has them computed elsewhere, as far as they are long, and generates."""
