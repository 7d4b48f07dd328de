"""What one step computes, and what came of it.

    Scheduler.plan ─▶ Plan of Chunks ─▶ the engine's forward pass ─▶ ChunkResults ─▶ Scheduler.commit ─▶ SequenceUpdates

Positions of a chunk, all half-open:

    start            end - num_drafts        end                          end + num_next_drafts - 1
      │  real tokens         │    drafts       │   room for drafting ahead            │
      └──────────────────────┴─────────────────┴──────────────────────────────────────┘
      computed by the forward pass             may be written by the draft layer while it
                                               proposes num_next_drafts tokens, accepted drafts
                                               or not; nothing there counts as computed

The blocks of all these positions are in the sequence's block table, held by the sequence and by the step's writer.
"""

from collections.abc import Sequence as Tokens

import msgspec

from lineclear.base.ids import SequenceId
from lineclear.kv.copies import CopyId
from lineclear.protocol.verdicts import Verdict
from lineclear.protocol.wire import FinishReason, TokenLogprobs
from lineclear.schedule.sequence import Sequence


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """The tokens [start, end) of one sequence, computed in one step."""

    sequence_id: SequenceId
    start: int
    end: int
    num_drafts: int
    """The last so many of the tokens are the first of the sequence's drafts, to be verified."""
    samples: bool
    """Whether a token is wanted: the logits after the last real token and after each draft."""
    num_next_drafts: int
    """How many drafts may be proposed after this step; 0 if none are wanted or there is no room."""


class Plan(msgspec.Struct, frozen=True):
    """What one step computes; decodes first, then prefills."""

    chunks: tuple[Chunk, ...]
    num_tokens: int
    load_ids: tuple[CopyId, ...] = ()
    """Loads that bring what the chunks read: the pass waits where it reads, and all have ended before its commit."""


class ChunkResult(msgspec.Struct, frozen=True):
    """What came of a chunk that samples, or of one that failed."""

    token_ids: Tokens[int] = ()
    """The accepted drafts and the token after them: num_accepted + 1 tokens."""
    num_accepted: int = 0
    next_draft_token_ids: Tokens[int] = ()
    logprobs: Tokens[TokenLogprobs] | None = None
    """One entry for each of token_ids, if the sequence wants them."""
    error: str | None = None
    """Why nothing that this pass computed can be trusted; the sequence ends with it, and its prefix is forgotten."""


class SequenceUpdate(msgspec.Struct, frozen=True):
    """What a step added to a sequence, or how it ended; a finish_reason is in its last update and in no other."""

    sequence: Sequence
    token_ids: Tokens[int] = ()
    """Without the token that ended the sequence, and without any that came after it."""
    logprobs: Tokens[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    verdict: Verdict | None = None
    """What the guard found; a finish_reason "broken" comes with the verdict that ended the sequence."""
    num_computed_tokens: int = 0
    """Of a sequence whose KV is sent elsewhere: how many of its tokens are computed by now."""
