"""What the guard of a worker says of a sequence, as it goes to the gateway. Numbers and names only, no text."""

from typing import Annotated, Literal, TypeAlias

import msgspec

VerdictKind: TypeAlias = Literal["collapse", "loop"]
VerdictAction: TypeAlias = Literal["observe", "retry", "fail"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The guard's judgement of a sequence.

    With action observe the sequence goes on; with retry or fail it has ended, and its worker has forgotten all KV that
    it read or wrote.
    """

    kind: VerdictKind
    detector: str
    action: VerdictAction
    num_tokens: Annotated[int, msgspec.Meta(ge=0)]
    """Generated when it was reached."""
    evidence: dict[str, float]
    num_quarantined_blocks: Annotated[int, msgspec.Meta(ge=0)]
    prefill_id: str = ""
    """The prefill instance that wrote the prompt's KV, if one did."""
