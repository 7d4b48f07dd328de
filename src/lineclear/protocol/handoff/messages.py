"""What decode and prefill say to each other about a handoff.

| message        | from → to     | kind                | sent                                                     |
|----------------|---------------|---------------------|----------------------------------------------------------|
| `PrefillOrder` | decode → rank | question            | again and again, until a proof or `WritesFailed`         |
| `Abort`        | decode → rank | question            | again and again, until a proof                           |
| `WritesDone`   | rank → decode | proof, success      | when it becomes true; again to a repeated order          |
| `LineClear`    | rank → decode | proof, no success   | when a closed record drains; to whatever has no record   |
| `WritesFailed` | rank → decode | news, never a proof | when a record closes by itself; again to a repeated order |

A *proof* says that no write of this epoch by this life of this rank can land any more. *News* says that the handoff
will not succeed, and nothing about its writes.

All are frozen and hashable, and what the machines decide on is in their first fields.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from lineclear.protocol.handoff.names import Count, Epoch, Peer, Positive
from lineclear.protocol.wire import TokenId


class FailureReason(StrEnum):
    """Why an attempt does not succeed."""

    CANCELLED = "cancelled"
    """The client left."""
    DEADLINE = "deadline"
    """The first token would come too late."""
    VERDICT = "verdict"
    """The guard objects."""
    PEER_SILENT = "peer_silent"
    """A rank has not been heard of for a while, and another can do it."""
    PEER_LOST = "peer_lost"
    """A rank's life is believed to be over."""
    PEER_FENCED = "peer_fenced"
    """A rank's life can write no more."""
    REFUSED = "refused"
    """A rank answered with a proof, but not of success."""
    PREFILL_FAILED = "prefill_failed"
    """A rank cannot compute it."""
    WRITE_FAILED = "write_failed"
    """A write ended without success."""
    WRITE_UNKNOWN = "write_unknown"
    """A write that nobody can tell the end of: line clear comes late, or only by a fence."""
    ABORTED = "aborted"
    """Decode asked for line clear."""
    DECODE_GONE = "decode_gone"
    """The decode life that ordered it is over."""


class _Message(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """What all messages share: the attempt and the life of a rank that it is about."""

    epoch: Epoch
    peer: Peer


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the pieces of messages share."""


class PrefillWork(_Part, frozen=True, kw_only=True):
    """What an order wants: the KV of tokens [start, end) of a prompt, written into blocks of the decode worker.

    The prompt's last token is not among them: decode computes it together with the first token of the answer, which it
    samples, verifies and drafts from as in any other step. It is sent along because the draft layer's KV at a position
    depends on the token after it.
    """

    prompt_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(min_length=2)]
    start: Count = 0
    """Decode has the KV of [0, start): whole blocks of its own prefix tree."""
    block_ids: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    """Destination blocks of [start, end), in order."""
    memory_key: bytes
    """What the transport needs to reach those blocks. No two decode lives share one (R10)."""
    sequence_id: Count
    use_cache: bool = True
    """False: the rank reads no KV of this prompt that it has computed before."""
    timeout_ms: Positive | None = None
    """When decode will have given up: a hint that spares work, no promise (R12)."""

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ValueError(f"start: got {self.start}, allowed: below {self.end}, the prompt's length less one")

    @property
    def end(self) -> int:
        """Where the tokens end whose KV is wanted: before the prompt's last."""
        return len(self.prompt_token_ids) - 1


class PrefillOrder(_Message, frozen=True, tag="prefill_order"):
    """decode → rank: compute this and write it. A repeated one asks how it stands."""

    work: PrefillWork


class Abort(_Message, frozen=True, tag="abort"):
    """decode → rank: stop, and say when no write can land any more."""


class WritesDone(_Message, frozen=True, tag="writes_done"):
    """rank → decode: every write is complete and visible, and none will follow."""


class LineClear(_Message, frozen=True, tag="line_clear"):
    """rank → decode: no write can still land, and none will follow."""


class WritesFailed(_Message, frozen=True, tag="writes_failed"):
    """rank → decode: this will not succeed; writes may still land."""

    reason: FailureReason


class ForgetPrompt(msgspec.Struct, frozen=True, tag_field="type", tag="forget_prompt", forbid_unknown_fields=True):
    """decode → first rank: give up, on every tier, what you have of prompts with this beginning: it is suspect.

    It is about no attempt, so the machines never see it. It may come again.
    """

    peer: Peer
    token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(min_length=1)]
    """At least the first block's tokens and the one after them: what names a family of prefixes."""


ToRank = PrefillOrder | Abort
ToDecode = WritesDone | LineClear | WritesFailed
HandoffMessage = ToRank | ToDecode
