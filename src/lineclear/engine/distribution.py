"""From logits to the distribution that a request asked for.

Every function works on rows and treats each row alone, so a row's result does not depend on its company in the batch.

Order of the transforms, as in Hugging Face `transformers`: penalties and biases, temperature, top_k, top_p, min_p.
Truncations keep at least the most likely token. Ties at a truncation border go to the lower token id.

Legend: R rows (one for each position to decide), V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lineclear.protocol.sampling import SamplingParams

NEVER = float("-inf")


def has_adjustments(sampling: SamplingParams, num_output_tokens: int) -> bool:
    """Whether a request's logits must be changed before the choice, greedy or not."""
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
        or sampling.logit_bias
        or num_output_tokens < sampling.min_tokens
    )


def adjust_logits(
    logits: Tensor,
    sampling: SamplingParams,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
    stop_token_ids: Sequence[int],
) -> Tensor:
    """One row's logits after penalties, biases and the ban on stopping before `min_tokens`.

    Shapes: logits [V]; returns a new tensor [V].
    Source: presence and frequency penalties as OpenAI defines them (on output tokens); repetition penalty as CTRL
    (Keskar et al., 2019) defines it (on prompt and output tokens).
    """
    row = logits.clone()
    if sampling.repetition_penalty != 1.0:
        seen = torch.unique(_as_ids((*prompt_token_ids, *output_token_ids), row))
        values = row[seen]
        row[seen] = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    if output_token_ids and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = torch.bincount(_as_ids(output_token_ids, row), minlength=row.numel()).to(row.dtype)
        row -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
    for token_id, bias in sampling.logit_bias.items():
        row[token_id] += bias
    if len(output_token_ids) < sampling.min_tokens:
        row[_as_ids(stop_token_ids, row)] = NEVER
    return row


def distribution(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The probabilities that each row's request samples from.

    Shapes: logits [R, V], one entry of `params` a row, all with temperature > 0; returns [R, V] float64.
    """
    scores = logits.double() / _column(logits, [each.temperature for each in params])
    if any(each.top_k is not None or each.top_p < 1.0 for each in params):
        scores = _truncate_sorted(scores, params)
    if any(each.min_p > 0.0 for each in params):
        probs = scores.softmax(-1)
        floor = _column(logits, [each.min_p for each in params]) * probs.amax(-1, keepdim=True)
        scores = scores.masked_fill(probs < floor, NEVER)
    return scores.softmax(-1)


def _truncate_sorted(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    vocab_size = scores.shape[-1]
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    top_k = _column(scores, [float(each.top_k or vocab_size) for each in params])
    ranks = torch.arange(vocab_size, device=scores.device, dtype=scores.dtype)
    ordered = ordered.masked_fill(ranks >= top_k, NEVER)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    # A row without top_p keeps all, and the most likely token stays, whatever rounding says.
    top_p = _column(scores, [each.top_p if each.top_p < 1.0 else 2.0 for each in params])
    keep = (before < top_p) | (ranks == 0)
    return torch.full_like(scores, NEVER).scatter(-1, order, ordered.masked_fill(~keep, NEVER))


def _as_ids(token_ids: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(token_ids, dtype=torch.int64, device=like.device)


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
