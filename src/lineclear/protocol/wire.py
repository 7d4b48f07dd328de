"""Messages between the gateway and a worker, and their bytes.

    gateway                                        worker
       │ ◀──────────────────────────── WorkerHello    │  once, first
       │ Refused ───────────────────────────────────▶ │  or this, and nothing more, if it does not fit the others
       │ SubmitSequence ────────────────────────────▶ │
       │ CancelSequence ────────────────────────────▶ │
       │ ◀──────────────────────────── StepOutputs    │  once a step in which any sequence has news
       │ QueryStatistics ───────────────────────────▶ │
       │ ◀─────────────────────── WorkerStatistics    │  also once a second while busy
       │ CheckInvariants ───────────────────────────▶ │
       │ ◀────────────────────── InvariantsChecked    │
       │ ReleaseQuarantine ─────────────────────────▶ │  an operator vouches for what cannot be proven
       │ ◀───────────────────── QuarantineReleased    │
       │ PrefillInstances ──────────────────────────▶ │  to decode workers, whenever they change
       │ ◀──────────────────────────────── Leaving    │  it wants to end: answer Drain
       │ Drain ─────────────────────────────────────▶ │  finish what is accepted, accept nothing more
       │ ◀──────────────────────────────── Drained    │

Invariants:
    1. Every SubmitSequence is answered by exactly one SequenceOutput whose finish_reason is set; none follows it.
    2. A cancel is answered by that output ("cancelled"), unless another ending came first.
    3. The token that ends a sequence is in stop_token_id and never among token_ids.
    4. A verdict whose action is retry or fail is in that output, whose finish_reason is then "broken"; others end
       nothing, and a sequence has at most one of each kind.
    5. Whatever does not decode to one of these structs is a PeerError; no field is ignored and none is guessed.

The coding is MessagePack with a "type" tag. Both ends run one version (WorkerHello.version); nothing is negotiated.
"""

from typing import Annotated, Final, Literal, TypeVar

import msgspec

from lineclear.base.errors import InvariantError, PeerError
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.numbers import Count, Positive, Seconds
from lineclear.protocol.roles import Role
from lineclear.protocol.sampling import SamplingParams
from lineclear.protocol.verdicts import Verdict, VerdictAction, VerdictKind

WIRE_VERSION: Final = 3

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""A prompt of a million tokens takes at most 5 MB; more than this is nonsense or an attack."""

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

FinishReason = Literal["stop", "length", "cancelled", "error", "broken"]


class _Message(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """What all messages share."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the pieces of messages share."""


class SubmitSequence(_Message, frozen=True, tag="submit_sequence"):
    """Generate a continuation of a prompt."""

    sequence_id: Count
    request_id: str
    prompt_token_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    sampling: SamplingParams
    want_draft_counts: bool = False
    use_cache: bool = True
    """False: it reads no KV that was computed before, on any tier or instance; what it computes is found as usual."""
    guard: bool = True
    """False: it is judged, but a verdict ends nothing: for the last attempt, whose answer is given as it is."""
    prefer_prefill: str = ""
    """The prefill instance that is to compute its prompt, if it is connected; empty: whichever is best."""
    avoid_prefill: list[str] = []
    """Prefill instances that are not to compute its prompt; where there are no others, decode computes it itself."""


class CancelSequence(_Message, frozen=True, tag="cancel_sequence"):
    """End a sequence now; unknown or ended ones are ignored."""

    sequence_id: Count


class Drain(_Message, frozen=True, tag="drain"):
    """Finish what is accepted, accept nothing more, answer Drained."""


class Refused(_Message, frozen=True, tag="refused"):
    """The worker gets nothing, or nothing more, and has to end."""

    reason: str
    """It would give other answers than the gateway's others, or another life has its name: a sentence."""


class QueryStatistics(_Message, frozen=True, tag="query_statistics"):
    """Answer WorkerStatistics."""


class PrefillInstances(_Message, frozen=True, tag="prefill_instances"):
    """Where a decode worker finds those that compute prompts: all of them, each time."""

    endpoints: list[str]


class CheckInvariants(_Message, frozen=True, tag="check_invariants"):
    """Check pool, tree and scheduler; answer InvariantsChecked."""


class ReleaseQuarantine(_Message, frozen=True, tag="release_quarantine"):
    """An operator vouches that a life of a prefill rank can write no more; answer QuarantineReleased.

    It stands for the proof that a fence could not bring. If it is not true, answers may be wrong.
    """

    worker_id: str
    """Of the prefill instance."""
    rank: Count
    life: Count


class ModelFacts(_Part, frozen=True):
    """What the gateway must know of the model behind a worker."""

    name: str
    vocab_size: Positive
    max_model_len: Positive
    eos_token_ids: list[TokenId]
    block_size: Positive
    num_blocks: Positive
    draft_tokens: Count
    max_running: Positive
    decisive: dict[str, str] = {}
    """What decides the bits of an answer: equal at all workers of a gateway. Texts for people."""


class WorkerHello(_Message, frozen=True, tag="worker_hello"):
    """A worker's first message on a connection."""

    version: Positive
    worker_id: str
    life: Count
    pid: Positive
    model: ModelFacts
    role: Role = Role.COLOCATED
    peer_endpoints: tuple[str, ...] = ()
    """Prefill: where decode workers reach it, each of its ranks."""


class TokenLogprobs(_Part, frozen=True):
    """The log-probability of a token and of the most likely ones in its place, likeliest first."""

    token_id: TokenId
    logprob: float
    top: list[tuple[TokenId, float]] = []


class SequenceOutput(_Part, frozen=True):
    """What one step added to one sequence."""

    sequence_id: Count
    token_ids: list[TokenId] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: TokenId | None = None
    error: str | None = None
    num_cached_tokens: Count = 0
    draft: DraftCounts | None = None
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError("logprobs: one entry for each token is needed")
        if self.stop_token_id is not None and self.finish_reason != "stop":
            raise ValueError('stop_token_id: only with finish_reason "stop"')
        if (self.error is not None) != (self.finish_reason == "error"):
            raise ValueError('error: exactly with finish_reason "error"')
        if (self.verdict is not None and self.verdict.ends_sequence) != (self.finish_reason == "broken"):
            raise ValueError('verdict: one whose action is retry or fail exactly with finish_reason "broken"')


class StepOutputs(_Message, frozen=True, tag="step_outputs"):
    """What one step added, sequence by sequence."""

    outputs: list[SequenceOutput]


class QuarantinedWriter(_Part, frozen=True):
    """A life of a prefill rank that is lost, and not proven to write no more."""

    worker_id: str
    rank: Count
    life: Count
    num_handoffs: Positive
    num_blocks: Count
    """Blocks that wait for the proof; a block with several such writers counts for each."""
    seconds: Seconds
    """Since it was lost."""


class HandoffStatistics(_Part, frozen=True):
    """Handoffs of one worker: what is open now, and totals since it started."""

    num_peers: Count
    """Workers at the other end that are connected."""
    num_open: Count
    num_done: Count
    num_failed: dict[str, Count] = {}
    """By reason."""
    num_tokens: Count = 0
    """Whose KV was written from one worker to another."""
    blocks_quarantined: Count = 0
    """Blocks that wait for the proof that a lost peer can write no more; they count as held."""
    blocks_vouched: Count = 0
    """Blocks that left quarantine by an operator's word since the worker started."""
    num_links_ended: dict[Literal["lost", "malformed", "refused"], Count] = {}
    """Links to other workers: all that served and ended, those cut for nonsense, and those between workers that do not
    fit."""
    quarantine: list[QuarantinedWriter] = []
    """Whom they wait for."""


class TierBlocks(_Part, frozen=True):
    """One tier of the KV cache: free + held + quarantined = total."""

    free: Count
    held: Count
    quarantined: Count
    total: Count
    block_bytes: Positive
    """What a block takes there."""


class TierStatistics(_Part, frozen=True):
    """The tiers of one worker: their blocks now, and totals since it started."""

    blocks: dict[str, TierBlocks]
    """By tier: device, host, disk."""
    hit_tokens: dict[str, Count]
    """By tier: prompt tokens found there."""
    moved_bytes: dict[str, Count]
    """By copy: load, offload, disk_read, disk_write."""
    moving_seconds: dict[str, Seconds]
    """By copy: in which one was running."""
    num_waits: Count
    """Times that a pass found a part not ready."""
    wait_seconds: Seconds
    num_prefetches: Count
    """Queued sequences that wait for the disk."""
    dropped_blocks: Count
    """Given up by a device that writes back, while the host had no room."""
    failures: dict[str, Count] = {}
    """Copies that failed, by kind."""


class RankStatistics(_Part, frozen=True):
    """What the first rank of an instance and the others had to say to each other; totals of the first."""

    num_ranks: Positive
    num_broadcasts: Count
    sent_bytes: dict[str, Count]
    """By part, of its broadcasts; each goes to every other rank."""
    gathered_bytes: Count
    """New rows and results; each goes to every other rank."""
    transfer_seconds: dict[str, Seconds]
    """By lane: in which one was running."""
    wait_seconds: dict[str, Seconds]
    """By lane: in which the pass stood still for it: communication that was not hidden."""
    load_wait_seconds: Seconds
    """How long its broadcasts waited for its tiers."""


class GuardStatistics(_Part, frozen=True):
    """What the guard of one worker has seen: totals since it started, and the state of what runs."""

    num_judged_sequences: Count
    num_judged_tokens: Count
    num_forgotten_blocks: Count
    """Blocks on the device that are found no more because of a verdict."""
    num_verdicts: dict[VerdictKind, dict[VerdictAction, Count]] = {}
    drift_by_position: list[float] = []
    """How far acceptance over all requests is from the baseline, by position, in thresholds: 1 is an alarm."""
    highest_cusum: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The largest of the running sequences, in thresholds: 1 is a verdict."""


class SanitizerStatistics(_Part, frozen=True):
    """What the KV sanitizer of a worker has done and found; totals since it started."""

    num_seals: Count
    num_checks: Count
    num_poisoned: Count
    num_faults: dict[str, Count]
    """By kind."""


class WorkerStatistics(_Message, frozen=True, tag="worker_statistics"):
    """A worker's state now, and totals since it started."""

    num_running: Count
    num_waiting: Count
    num_receiving: Count
    """Sequences whose prompt is computed elsewhere."""
    num_preemptions: Count
    num_damaged: Count
    blocks_free: Count
    blocks_held: Count
    blocks_quarantined: Count
    blocks_total: Count
    cached_prompt_tokens: Count
    prompt_tokens: Count
    output_tokens: Count
    draft: DraftCounts
    steps: Count
    step_seconds_total: Seconds
    handoffs: HandoffStatistics | None = None
    tiers: TierStatistics | None = None
    ranks: RankStatistics | None = None
    guard: GuardStatistics | None = None

    sanitizer: SanitizerStatistics | None = None


class Leaving(_Message, frozen=True, tag="leaving"):
    """The worker wants to end: it is to get nothing new, and to be told to drain."""


class Drained(_Message, frozen=True, tag="drained"):
    """Nothing is left and nothing more will be accepted."""


class InvariantsChecked(_Message, frozen=True, tag="invariants_checked"):
    """The outcome of CheckInvariants."""

    ok: bool
    detail: str


class QuarantineReleased(_Message, frozen=True, tag="quarantine_released"):
    """The outcome of ReleaseQuarantine."""

    num_blocks: Count
    """Blocks that are free again, or will be when their other holders let go; 0: none waited for that life."""


ToWorker = (
    SubmitSequence
    | CancelSequence
    | Drain
    | QueryStatistics
    | CheckInvariants
    | ReleaseQuarantine
    | PrefillInstances
    | Refused
)
ToGateway = WorkerHello | StepOutputs | WorkerStatistics | Leaving | Drained | InvariantsChecked | QuarantineReleased

_T = TypeVar("_T")

_ENCODER: Final = msgspec.msgpack.Encoder()
_TO_WORKER: Final = msgspec.msgpack.Decoder(ToWorker)
_TO_GATEWAY: Final = msgspec.msgpack.Decoder(ToGateway)


def encode(message: ToWorker | ToGateway) -> bytes:
    """Return a message's bytes.

    Raises: InvariantError if the receiver would refuse it for its size.
    """
    data = _ENCODER.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvariantError(f"{type(message).__name__} takes {len(data)} bytes, allowed: {MAX_MESSAGE_BYTES}")
    return data


def decode_to_worker(data: bytes) -> ToWorker:
    """Read a message that a gateway sent.

    Raises: PeerError if it is unknown, malformed or too large.
    """
    return _decode(_TO_WORKER, data)


def decode_to_gateway(data: bytes) -> ToGateway:
    """Read a message that a worker sent.

    Raises: PeerError if it is unknown, malformed or too large.
    """
    return _decode(_TO_GATEWAY, data)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    if len(data) > MAX_MESSAGE_BYTES:
        raise PeerError(f"message of {len(data)} bytes, allowed: {MAX_MESSAGE_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"message of {len(data)} bytes: {error}") from error
