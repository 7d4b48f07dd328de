"""A sequence: a token list with KV on this worker.

    WAITING ──admitted──▶ RUNNING ──ended──▶ FINISHED
       ▲  │                  ▲ │ │
       │  └handed off─▶ RECEIVING│ └ the scheduler forgets it
       └──failed───────────┘   │
       └──────preempted────────┘
       all ──ended─────────────────────────▶ FINISHED

Invariants:
    1. WAITING and FINISHED sequences hold no block.
    2. num_computed_tokens < num_tokens: the KV of the newest token is never there before it is needed.
    3. The block table covers [0, num_computed_tokens), and while the sequence is RUNNING or RECEIVING it starts with
       the blocks of `prefix`, which the sequence keeps alive by its holds.
    4. Drafts exist only when all tokens but the newest are computed.
    5. While `load_id` is there, blocks after the prefix's are being loaded: they count as computed, a pass over them
       waits for the load, and nothing of the sequence enters the tree.
    6. While RECEIVING, the blocks of all other tokens but the newest are held by writers elsewhere, and by nobody else.
"""

from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lineclear.base.ids import BlockId, SequenceId
from lineclear.guard.evidence import Detector
from lineclear.kv.block_table import BlockTable
from lineclear.kv.copies import CopyId
from lineclear.kv.pool import Holder, HolderKind
from lineclear.kv.prefix_key import PrefixKey
from lineclear.kv.radix import PrefixNode
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.sampling import SamplingParams


class SequenceState(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    RECEIVING = "receiving"
    """Its prompt's KV is computed elsewhere and written into blocks of this worker."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a sequence runs; what is here changes no token of a healthy one."""

    uses_cache: bool = True
    """Without it no KV is read that was computed before: not here, not on other tiers, not where it is prefilled."""
    is_guarded: bool = True
    """Whether a verdict may end it."""
    prefer_prefill: str = ""
    """The prefill instance that is to compute its prompt, by worker id; empty: whichever is best."""
    avoid_prefill: frozenset[str] = frozenset()
    """Those that are not to compute it."""


ANY_TERMS: Final = Terms()


class Sequence:
    """One token list and all that the scheduler knows about it. Mutated by the scheduler only."""

    __slots__ = (
        "arrival",
        "avoids_tiers",
        "block_table",
        "detector",
        "draft_counts",
        "draft_token_ids",
        "end_token_ids",
        "holder",
        "is_counted",
        "is_local",
        "is_suspect",
        "load_id",
        "loaded_keys",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "output_token_ids",
        "prefill_id",
        "prefix",
        "reader",
        "received_block_ids",
        "sampling",
        "sequence_id",
        "state",
        "terms",
        "token_limit",
        "tokens",
    )

    def __init__(
        self,
        sequence_id: SequenceId,
        prompt_token_ids: Iterable[int],
        sampling: SamplingParams,
        *,
        reader: Holder | None = None,
        terms: Terms = ANY_TERMS,
    ) -> None:
        self.sequence_id = sequence_id
        self.holder = Holder(HolderKind.SEQUENCE, sequence_id)
        self.sampling = sampling
        self.tokens = array("I", prompt_token_ids)
        """Prompt and outputs, packed: what the prefix tree is searched with."""
        self.num_prompt_tokens = len(self.tokens)
        self.num_tokens = self.num_prompt_tokens
        """Prompt and output tokens, drafts excluded."""
        self.token_limit = self.num_prompt_tokens + sampling.max_tokens
        """How many tokens it can have at most."""
        self.end_token_ids = frozenset(sampling.stop_token_ids)
        """What ends it when it is generated."""
        self.output_token_ids: list[int] = []
        self.draft_token_ids: list[int] = []
        self.block_table = BlockTable()
        self.received_block_ids: list[BlockId] = []
        """While RECEIVING: the blocks after the prefix's, which are written elsewhere."""
        self.reader = reader
        """Who sends this sequence's KV to another worker. With a reader, all tokens but the last are computed and no
        token is chosen; the reader holds every block from when the sequence gets it, until it gives them up itself."""
        self.is_local = False
        """Whether its prompt is computed here, whatever others could do."""
        self.load_id: CopyId | None = None
        """The load that brings a part of its KV from host memory."""
        self.loaded_keys: tuple[PrefixKey, ...] = ()
        """The names of the prefixes whose last blocks that load brings, until they are in the tree."""
        self.avoids_tiers = False
        """Whether it computes what is not on the device: a load of its KV has failed."""
        self.is_suspect = False
        """Whether it may have read KV that was given up as suspect: then nothing of it enters the tree any more."""
        self.detector: Detector | None = None
        """Who judges it, if it is judged."""
        self.terms = terms
        self.prefill_id = ""
        """The prefill instance that has computed some of its prompt."""
        self.prefix: PrefixNode | None = None
        """Its longest prefix in the tree. While WAITING only where the search left off: it may be gone."""
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens found in any tier when the sequence was first admitted."""
        self.is_counted = False
        """Whether its prompt is in the totals of the queues."""
        self.num_preemptions = 0
        self.draft_counts = DraftCounts()
        self.arrival = 0
        """Place in the order of all sequences; the lower one goes first and is never preempted for a higher one."""
        self.state = SequenceState.WAITING

    def narrow(self, max_model_len: int, eos_token_ids: frozenset[int]) -> None:
        """Apply the model's limits to what was asked for."""
        self.token_limit = min(self.token_limit, max_model_len)
        if not self.sampling.ignore_eos:
            self.end_token_ids |= eos_token_ids

    @property
    def num_wanted_tokens(self) -> int:
        """How many of the tokens have to be computed."""
        return self.num_tokens if self.reader is None else self.num_tokens - 1

    @property
    def is_sent(self) -> bool:
        """Whether everything that a reader waits for is computed."""
        return self.reader is not None and self.num_computed_tokens >= self.num_wanted_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        """A copy of the prompt. Cost: proportional to its length."""
        return self.tokens[: self.num_prompt_tokens].tolist()

    def token_ids(self, start: int, end: int) -> list[int]:
        """Return the tokens [start, end); those from num_tokens on are drafts."""
        token_ids = self.tokens[start:end].tolist()
        num_drafts = end - self.num_tokens
        if num_drafts > 0:
            token_ids += self.draft_token_ids[max(0, start - self.num_tokens) : num_drafts]
        return token_ids

    def append(self, token_ids: Collection[int]) -> None:
        """Add output tokens."""
        self.tokens.extend(token_ids)
        self.output_token_ids.extend(token_ids)
        self.num_tokens += len(token_ids)
