"""Choosing tokens: verifying drafts against the target's logits, and proposing drafts from the drafter's.

Driven by the runner once a step for all sequences that want tokens. A sequence's choice depends on its own rows, its
own parameters and its own uniforms only.

Legend: S sequences, R = sum of (drafts + 1) rows, V vocabulary, k drafts of one sequence. Row j of a sequence decides
its output token `num_output_tokens + j`, given that the drafts before it were kept.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lineclear.engine.distribution import adjust_logits, distribution, has_adjustments
from lineclear.engine.uniforms import Uniforms, uniforms
from lineclear.protocol.sampling import SamplingParams
from lineclear.protocol.wire import TokenLogprobs
from lineclear.schedule.sequence import Sequence
from lineclear.speculate.acceptance import draw, verify_greedy, verify_sampled

Probs = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ask:
    """What the sampler must know about one sequence: its tokens so far are the sequence's own, then `chosen`."""

    sequence: Sequence
    seed: int
    stop_token_ids: tuple[int, ...]
    chosen: tuple[int, ...] = ()

    @property
    def sampling(self) -> SamplingParams:
        """The request's parameters."""
        return self.sequence.sampling

    @property
    def position(self) -> int:
        """Position of the first token to decide."""
        return self.sequence.num_tokens + len(self.chosen)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.sequence.output_token_ids) + len(self.chosen)

    def output_token_ids(self, drafted: Items[int]) -> list[int]:
        """Output tokens so far and drafts after them. Cost: proportional to their number."""
        return [*self.sequence.output_token_ids, *self.chosen, *drafted]

    def after(self, token_ids: tuple[int, ...]) -> "Ask":
        """The same sequence with more output."""
        return replace(self, chosen=self.chosen + token_ids)


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens that wait for their verify.

    Shapes: token_ids: k; probs: [k, V], the distributions that they were sampled from, None for greedy sequences.
    """

    token_ids: tuple[int, ...] = ()
    probs: Probs | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of one verify: the drafts kept, and the token after them."""

    num_accepted: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    is_finite: bool = True
    """Without it the tokens mean nothing: some of the logits are no numbers."""


def choose(logits: Tensor, asks: Items[Ask], drafts: Items[Draft]) -> list[Choice]:
    """Decide the next tokens of every sequence.

    Shapes: logits [R, V] float32, for each sequence its k + 1 rows, in the order of `asks`.
    Source: Leviathan et al., "Fast inference from transformers via speculative decoding", 2023 (rejection sampling).
    """
    starts = _row_starts(drafts)
    is_finite = logits.isfinite().all(-1).tolist()
    if not all(is_finite):
        logits = logits.nan_to_num()
    adjusted = _adjusted(logits, asks, drafts, starts)
    argmax = adjusted.argmax(-1).tolist()
    choices: list[Choice] = []
    for ask, draft, start in zip(asks, drafts, starts, strict=True):
        end = start + len(draft.token_ids) + 1
        if ask.sampling.is_greedy:
            num_accepted, token_id = verify_greedy(argmax[start:end], draft.token_ids)
        else:
            num_accepted, token_id = _verify_sampled(adjusted[start:end], ask, draft)
        token_ids = (*draft.token_ids[:num_accepted], token_id)
        logprobs = _logprobs(logits[start:end], ask.sampling, token_ids)
        choices.append(Choice(num_accepted, token_ids, logprobs, all(is_finite[start:end])))
    return choices


def propose(logits: Tensor, asks: Items[Ask], drafts: Items[Draft]) -> list[Draft]:
    """Each sequence's draft, one token longer.

    Shapes: logits [S, V] float32 of the drafter, one row a sequence. `drafts` holds what was drafted so far; `asks`
    stand before it. Logits that are no numbers give some draft, which the verify judges as any other.
    """
    logits = adjusted = logits.nan_to_num()
    if any(has_adjustments(ask.sampling, ask.num_output_tokens) for ask in asks):
        rows = [_adjusted_row(row, ask, draft.token_ids) for row, ask, draft in zip(logits, asks, drafts, strict=True)]
        adjusted = torch.stack(rows)
    argmax = adjusted.argmax(-1).tolist()
    longer: list[Draft] = []
    for row_idx, (ask, draft) in enumerate(zip(asks, drafts, strict=True)):
        if ask.sampling.is_greedy:
            longer.append(Draft((*draft.token_ids, argmax[row_idx])))
            continue
        probs = distribution(adjusted[row_idx : row_idx + 1], [ask.sampling]).cpu().numpy()
        uniform = _uniforms(ask, len(draft.token_ids) + 1).draft[-1]
        token_id = draw(probs[0], float(uniform))
        stacked = probs if draft.probs is None else np.concatenate((draft.probs, probs))
        longer.append(Draft((*draft.token_ids, token_id), stacked))
    return longer


def _row_starts(drafts: Items[Draft]) -> list[int]:
    starts = [0]
    for draft in drafts:
        starts.append(starts[-1] + len(draft.token_ids) + 1)
    return starts[:-1]


def _adjusted(logits: Tensor, asks: Items[Ask], drafts: Items[Draft], starts: Items[int]) -> Tensor:
    adjusted = logits
    for ask, draft, start in zip(asks, drafts, starts, strict=True):
        if not has_adjustments(ask.sampling, ask.num_output_tokens):
            continue
        if adjusted is logits:
            adjusted = logits.clone()
        for offset in range(len(draft.token_ids) + 1):
            row = adjusted[start + offset]
            adjusted[start + offset] = _adjusted_row(row, ask, draft.token_ids[:offset])
    return adjusted


def _adjusted_row(row: Tensor, ask: Ask, drafted: Items[int]) -> Tensor:
    if not has_adjustments(ask.sampling, ask.num_output_tokens + len(drafted)):
        return row
    prompt, outputs = ask.sequence.prompt_token_ids, ask.output_token_ids(drafted)
    return adjust_logits(row, ask.sampling, prompt, outputs, ask.stop_token_ids)


def _verify_sampled(rows: Tensor, ask: Ask, draft: Draft) -> tuple[int, int]:
    num_rows = rows.shape[0]
    target_probs = distribution(rows, [ask.sampling] * num_rows).cpu().numpy()
    draws = _uniforms(ask, num_rows)
    draft_probs = np.empty((0, rows.shape[1])) if draft.probs is None else draft.probs
    return verify_sampled(
        target_probs, draft_probs, draft.token_ids, draws.accept[:-1].tolist(), float(draws.choose[0])
    )


def _uniforms(ask: Ask, count: int) -> Uniforms:
    return uniforms(ask.seed, ask.position, count)


def _logprobs(rows: Tensor, sampling: SamplingParams, token_ids: Items[int]) -> tuple[TokenLogprobs, ...] | None:
    """Log-probabilities under the model itself, before any adjustment or temperature."""
    if sampling.logprobs is None:
        return None
    logprobs = rows[: len(token_ids)].log_softmax(-1)
    values, ids = logprobs.topk(max(sampling.logprobs, 1), dim=-1)
    chosen = logprobs[torch.arange(len(token_ids)), torch.tensor(token_ids)].tolist()
    tops = [
        list(zip(*pair, strict=True))[: sampling.logprobs] for pair in zip(ids.tolist(), values.tolist(), strict=True)
    ]
    return tuple(
        TokenLogprobs(token_id=token_id, logprob=logprob, top=top)
        for token_id, logprob, top in zip(token_ids, chosen, tops, strict=True)
    )
