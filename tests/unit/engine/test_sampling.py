"""Verifying and proposing on logits: the outputs are the target's own, whatever the drafter says."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

from lineclear.base.ids import SequenceId
from lineclear.engine.distribution import distribution
from lineclear.engine.sampling import Ask, Draft, choose, propose
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence

VOCAB = 4
START = 3
LENGTH = 3
# Next-token logits by the last token, of a target and of a drafter that disagrees with it.
TARGET = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1)) * 1.5
DRAFTER = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2)) * 1.5


def run(sampling: SamplingParams, seed: int, num_drafts: int) -> tuple[list[int], int]:
    """Generate LENGTH tokens with drafts; also the number of accepted drafts."""
    sequence = Sequence(SequenceId(0), [START], sampling)
    draft, accepted = Draft(), 0
    while len(sequence.output_token_ids) < LENGTH:
        ask = Ask(sequence, seed, stop_token_ids=())
        last = [sequence.tokens[-1], *draft.token_ids]
        (choice,) = choose(TARGET[last], [ask], [draft])
        accepted += choice.num_accepted
        sequence.append(choice.token_ids)
        ask, draft = Ask(sequence, seed, stop_token_ids=()), Draft()
        for _ in range(num_drafts):
            last_id = draft.token_ids[-1] if draft.token_ids else sequence.tokens[-1]
            (draft,) = propose(DRAFTER[[last_id]], [ask], [draft])
    return sequence.output_token_ids[:LENGTH], accepted


def exact_distribution(sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    rows = distribution(TARGET, [sampling] * VOCAB).numpy()
    exact = {}
    for tokens in product(range(VOCAB), repeat=LENGTH):
        before = (START, *tokens[:-1])
        exact[tokens] = float(np.prod([rows[last, token] for last, token in zip(before, tokens, strict=True)]))
    return exact


@pytest.mark.parametrize("num_drafts", [0, 1, 3])
@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(max_tokens=LENGTH, temperature=0.8), SamplingParams(max_tokens=LENGTH, top_k=3, top_p=0.9)],
)
def test_sampled_outputs_follow_the_targets_distribution(sampling: SamplingParams, num_drafts: int) -> None:
    num_runs = 1500
    outputs = [run(sampling, seed, num_drafts) for seed in range(num_runs)]
    counts = Counter(tuple(tokens) for tokens, _ in outputs)
    exact = exact_distribution(sampling)
    impossible = [tokens for tokens, prob in exact.items() if prob == 0.0]
    assert not any(counts[tokens] for tokens in impossible)
    expected = {tokens: prob * num_runs for tokens, prob in exact.items() if prob > 0.0}
    chi_square = sum((counts[tokens] - mean) ** 2 / mean for tokens, mean in expected.items())
    # Mean len - 1, variance 2 (len - 1): five standard deviations; the seeds are fixed, so this never flickers.
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5
    assert (sum(accepted for _, accepted in outputs) > 0) == (num_drafts > 0)


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
def test_greedy_outputs_are_the_same_with_any_number_of_drafts(num_drafts: int) -> None:
    sampling = SamplingParams(max_tokens=LENGTH, temperature=0.0)
    assert run(sampling, 0, num_drafts)[0] == run(sampling, 0, 0)[0]


def test_penalties_see_the_drafts_before_a_row() -> None:
    sampling = SamplingParams(max_tokens=9, temperature=0.0, presence_penalty=2.0)
    sequence = Sequence(SequenceId(0), [START], sampling)
    logits = torch.tensor([[3.0, 2.0, 0.0, 0.0]] * 2)
    # The draft 0 is right; in the row after it 0 is penalised, so 1 follows.
    (choice,) = choose(logits, [Ask(sequence, 0, ())], [Draft((0,))])
    assert choice.token_ids == (0, 1)
    (draft,) = propose(logits[:1], [Ask(sequence, 0, (), chosen=(0,))], [Draft()])
    assert draft.token_ids == (1,)


def test_a_stop_token_is_not_chosen_before_min_tokens_within_one_verify() -> None:
    sampling = SamplingParams(max_tokens=9, temperature=0.0, min_tokens=1)
    sequence = Sequence(SequenceId(0), [START], sampling)
    logits = torch.tensor([[9.0, 2.0, 0.0, 0.0]] * 2)
    (choice,) = choose(logits, [Ask(sequence, 0, (0,))], [Draft((1,))])
    assert choice.token_ids == (1, 0)


def test_logprobs_are_the_models_own_and_cover_every_token() -> None:
    sampling = SamplingParams(max_tokens=9, temperature=0.0, logprobs=2, logit_bias={2: 50.0})
    sequence = Sequence(SequenceId(0), [START], sampling)
    logits = torch.tensor([[1.0, 2.0, 0.0, -1.0]] * 2)
    (choice,) = choose(logits, [Ask(sequence, 0, ())], [Draft((2,))])
    assert choice.token_ids == (2, 2)
    expected = logits[0].log_softmax(-1).tolist()
    assert choice.logprobs is not None
    for each in choice.logprobs:
        assert each.logprob == pytest.approx(expected[2])
        assert each.top == [(1, pytest.approx(expected[1])), (0, pytest.approx(expected[0]))]


def test_a_sequence_is_not_influenced_by_its_company() -> None:
    plain = SamplingParams(max_tokens=9, temperature=0.0)
    warm = SamplingParams(max_tokens=9, temperature=1.0, top_p=0.7, frequency_penalty=0.5)
    asks = [Ask(Sequence(SequenceId(n), [START], params), 7 + n, ()) for n, params in enumerate((plain, warm, warm))]
    logits = TARGET[[0, 1, 2]]
    together = choose(logits, asks, [Draft()] * 3)
    alone = [choose(logits[[n]], [ask], [Draft()])[0] for n, ask in enumerate(asks)]
    assert together == alone


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_scores_that_are_no_numbers_are_seen_and_harm_nobody_else(bad: float, temperature: float) -> None:
    sampling = SamplingParams(max_tokens=9, temperature=temperature, seed=1, logprobs=1)
    asks = [Ask(Sequence(SequenceId(n), [START], sampling), n, ()) for n in range(2)]
    logits = TARGET[[0, 1]].clone()
    logits[0, 2] = bad
    damaged, healthy = choose(logits, asks, [Draft(), Draft()])
    assert (damaged.is_finite, healthy.is_finite) == (False, True)
    (draft, _) = propose(logits, asks, [Draft(), Draft()])
    assert len(draft.token_ids) == 1
