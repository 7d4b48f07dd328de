"""Executes a plan: one forward pass, the verify of every draft, the next drafts.

One step, in order:
1. forward over the batch; every layer's KV is written;
2. logits of the sampled rows; drafts are verified, each sampling sequence gets 1 to k + 1 tokens;
3. the draft layer over the same rows, now that each row's next token is known: its KV is written, and the row of the
   last kept token proposes the first draft;
4. k - 1 further draft steps of one token a sequence.

A sequence whose rows are not all finite numbers gets an error instead of tokens, and harms nobody beside it. If a rank
cannot go on, all sequences of the step get its error, on all ranks.

Who computes the rows is the pass's business (`engine/passes.py`): one rank all of them, or several ranks some each. The
runner sees the sampled rows alone, and every rank's runner sees the same and so chooses the same.

Rows of rejected drafts, and the draft steps, write KV at positions that later passes write again before anybody reads
them.

Legend: T tokens of the batch, R sampled rows, D hidden_size, S sequences that draft.
"""

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from lineclear.base.errors import RankError, RankLostError
from lineclear.base.ids import SequenceId
from lineclear.engine.batch import PreparedChunk
from lineclear.engine.passes import Pass, Passes
from lineclear.engine.readiness import Readiness
from lineclear.engine.sampling import Ask, Choice, Draft, choose, propose
from lineclear.model.batch import Selection
from lineclear.model.glm import GlmModel
from lineclear.schedule.plan import ChunkResult, Plan
from lineclear.schedule.sequence import Sequence

logger = logging.getLogger(__name__)

NOT_FINITE = "the model's output is not finite: damaged weights or KV"

UNKNOWN_TOKEN_ID = 0
"""Stands for the next token of a row whose draft was rejected; what the row computes is never read."""


@dataclass(frozen=True, slots=True)
class _Drafting:
    """One sequence that drafts: its question, the sampled row that proposes first, and how far it may go."""

    ask: Ask
    row_idx: int
    """In the order of the sampled rows."""
    num_drafts: int

    @property
    def sequence(self) -> Sequence:
        """The sequence."""
        return self.ask.sequence

    @property
    def last_position(self) -> int:
        """Position of the row: the last whose next token is known."""
        return self.ask.position - 2


class Runner:
    """Runs plans on one model.

    Args:
        model: the loaded checkpoint.
        passes: who computes the rows of a plan, and on which KV.
        draft_tokens: drafts for each verify, 0 for none.
        seed: of sequences that bring none of their own.
        stop_token_ids: tokens that end a sequence unless it ignores them.
    """

    def __init__(
        self,
        model: GlmModel,
        passes: Passes,
        *,
        draft_tokens: int,
        seed: int,
        stop_token_ids: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self._model = model
        self._passes = passes
        self._draft_tokens = draft_tokens
        self._seed = seed
        self._stop_token_ids = stop_token_ids
        self._device = device
        self._drafts: dict[SequenceId, Draft] = {}

    @torch.inference_mode()
    def run(
        self, plan: Plan, sequences: Mapping[SequenceId, Sequence], readiness: Readiness
    ) -> dict[SequenceId, ChunkResult]:
        """Execute a plan, waiting for what it reads where it reads it.

        Order: the plan's blocks carry writer holds from before this call until after it.
        Returns: a result for every chunk that samples, and an error for any whose rows are not finite; an error for
            every chunk, the same on all ranks, if a rank could not go on.
        Raises: RankLostError if one is gone.
        """
        try:
            return self._run(plan, sequences, readiness)
        except RankLostError:
            raise
        except RankError as error:
            logger.exception("no rank goes on with this step")
            return {chunk.sequence_id: ChunkResult(error=str(error)) for chunk in plan.chunks}

    def forget(self, sequence_id: SequenceId) -> None:
        """Drop what is kept for a sequence between its steps."""
        self._drafts.pop(sequence_id, None)

    def _run(
        self, plan: Plan, sequences: Mapping[SequenceId, Sequence], readiness: Readiness
    ) -> dict[SequenceId, ChunkResult]:
        with self._passes.open(plan, sequences, readiness) as current:
            output = current.forward()
            sampling = [each for each in current.chunks if each.chunk.samples]
            asks = [self._ask(each.sequence) for each in sampling]
            choices = self._choose(sampling, output.hidden, asks)
            drafts = self._draft(current, sampling, asks, choices) if self._draft_tokens else {}
        results = {
            each.sequence.sequence_id: ChunkResult(
                token_ids=choice.token_ids,
                num_accepted=choice.num_accepted,
                next_draft_token_ids=drafts.get(each.sequence.sequence_id, Draft()).token_ids,
                logprobs=choice.logprobs,
                error=None if choice.is_finite else NOT_FINITE,
            )
            for each, choice in zip(sampling, choices, strict=True)
        }
        return results | {sequence_id: ChunkResult(error=NOT_FINITE) for sequence_id in output.damaged}

    def _ask(self, sequence: Sequence) -> Ask:
        sampling = sequence.sampling
        seed = self._seed + sequence.sequence_id if sampling.seed is None else sampling.seed
        stops = sampling.stop_token_ids if sampling.ignore_eos else (*self._stop_token_ids, *sampling.stop_token_ids)
        return Ask(sequence, seed, stops)

    def _choose(self, sampling: Items[PreparedChunk], hidden: Tensor, asks: Items[Ask]) -> list[Choice]:
        """Shapes: hidden: [R, D]."""
        if not asks:
            return []
        logits = self._model.logits(hidden)
        return choose(logits, asks, [self._verified_draft(each) for each in sampling])

    def _verified_draft(self, prepared: PreparedChunk) -> Draft:
        """The drafts in this batch: those of the last step, perhaps fewer."""
        num_drafts = prepared.chunk.num_drafts
        draft = self._drafts.pop(prepared.sequence.sequence_id, Draft())
        return Draft(draft.token_ids[:num_drafts], None if draft.probs is None else draft.probs[:num_drafts])

    def _draft(
        self, current: Pass, sampling: Items[PreparedChunk], asks: Items[Ask], choices: Items[Choice]
    ) -> dict[SequenceId, Draft]:
        chosen = {each.sequence.sequence_id: choice for each, choice in zip(sampling, choices, strict=True)}
        output = current.draft([token_id for each in current.chunks for token_id in _next_token_ids(each, chosen)])
        drafting = self._drafting(sampling, asks, choices)
        if drafting:
            rows = self._tensor([each.row_idx for each in drafting])
            shared = None if output.selection is None else output.selection.rows(rows)
            drafts = self._chain(current, drafting, output.hidden[rows], shared)
            self._drafts |= drafts
            return drafts
        return {}

    def _drafting(self, sampling: Items[PreparedChunk], asks: Items[Ask], choices: Items[Choice]) -> list[_Drafting]:
        """The sequences that go on after this step and have room for drafts."""
        drafting: list[_Drafting] = []
        first_idx = 0
        for prepared, ask, choice in zip(sampling, asks, choices, strict=True):
            longer = ask.after(choice.token_ids)
            num_left = ask.sampling.max_tokens - longer.num_output_tokens
            num_drafts = min(prepared.chunk.num_next_drafts, num_left - 1)
            if choice.is_finite and num_drafts > 0 and not set(choice.token_ids) & set(ask.stop_token_ids):
                drafting.append(_Drafting(longer, first_idx + choice.num_accepted, num_drafts))
            first_idx += prepared.chunk.num_drafts + 1
        return drafting

    def _chain(
        self, current: Pass, drafting: list[_Drafting], hidden: Tensor, shared: Selection | None
    ) -> dict[SequenceId, Draft]:
        """Draft one token after the other; the hidden states and the drafts grow in step.

        Shapes: hidden: [S, D], shared: S rows, of the rows that propose first.
        """
        drafts = [Draft()] * len(drafting)
        done: dict[SequenceId, Draft] = {}
        for step in range(self._draft_tokens):
            drafts = propose(self._model.logits(hidden), [each.ask for each in drafting], drafts)
            done |= {each.sequence.sequence_id: draft for each, draft in zip(drafting, drafts, strict=True)}
            keep = [idx for idx, each in enumerate(drafting) if each.num_drafts > step + 1]
            if not keep:
                break
            if len(keep) < len(drafting):
                rows = self._tensor(keep)
                drafting, drafts, hidden = [drafting[idx] for idx in keep], [drafts[idx] for idx in keep], hidden[rows]
                shared = shared.rows(rows) if shared is not None else None
            positions = {each.sequence.sequence_id: each.last_position + step + 1 for each in drafting}
            next_token_ids = self._tensor([draft.token_ids[-1] for draft in drafts])
            hidden = current.draft_step(positions, hidden, next_token_ids, shared)
        return done

    def _tensor(self, values: Items[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _next_token_ids(prepared: PreparedChunk, chosen: Mapping[SequenceId, Choice]) -> list[int]:
    """For each row of a chunk the token that follows it."""
    chunk, sequence = prepared.chunk, prepared.sequence
    known = list(sequence.token_ids(chunk.start + 1, min(chunk.end + 1, sequence.num_tokens)))
    choice = chosen.get(sequence.sequence_id)
    if choice is not None:
        known += choice.token_ids
    return known + [UNKNOWN_TOKEN_ID] * (chunk.end - chunk.start - len(known))
