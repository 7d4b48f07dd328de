from itertools import pairwise

import pytest
import torch

from training.circuits import alphabet, initialise
from training.decode import Decoder
from training.net import Net, NetConfig, Trace
from training.rows import Codec, hard_tokens


@pytest.fixture(scope="module")
def net() -> Net:
    net = Net(NetConfig())
    initialise(net, alphabet(Codec()), 0)
    net.sparse = True
    return net.eval()


@torch.no_grad()
def test_the_seeded_network_copies_far_above_chance_before_any_training(net: Net) -> None:
    tokens = alphabet(Codec())
    words = (tokens.visible_share > 0.7).nonzero().flatten()
    half = words[torch.randint(20, len(words), (2, 200), generator=torch.Generator().manual_seed(1))]
    row = torch.cat((torch.tensor([[tokens.first, tokens.second]] * 2), half, half), 1)
    guesses = net.logits(net(row, Trace()))[:, 202:-1].argmax(-1)
    assert (guesses == row[:, 203:]).float().mean() > 0.4


@torch.no_grad()
def test_index_scores_are_not_tied(net: Net) -> None:
    tokens = torch.randint(20, 2048, (1, 400), generator=torch.Generator().manual_seed(2))
    layer = net.model.layers[0]
    x, angles = layer.input_layernorm(net.model.embed_tokens(tokens)), net.angles(torch.arange(400))[None]
    indexer = layer.self_attn.indexer
    _, q_r = layer.self_attn.queries(x, angles)
    scores = indexer.scores_by_head(*indexer.queries(x, q_r, angles), indexer.keys(x, angles))[0, -1]
    assert (scores == 0).float().mean() < 0.01


@torch.no_grad()
def test_cached_decoding_gives_the_states_of_one_pass(net: Net) -> None:
    tokens = torch.randint(20, 2048, (1, 340), generator=torch.Generator().manual_seed(3))
    hidden = net(tokens, Trace())
    decoder = Decoder(net, 400)
    parts = [decoder.extend(tokens[0, start:end].tolist(), start) for start, end in pairwise((0, 300, 301, 340))]
    assert torch.allclose(torch.cat(parts), hidden[0], atol=1e-2)
    rows = torch.tensor([[310]])
    chain = net.draft_hiddens(tokens, hidden, rows, 3, Trace())
    decoder.extend_draft(tokens[0, 1:311].tolist(), hidden[0, :310], 0)
    h = hidden[0, 310:311]
    for step, expected in enumerate(chain):
        h = decoder.extend_draft([int(tokens[0, 311 + step])], h, 310 + step)
        assert torch.allclose(h, expected[0], atol=1e-2)


def test_tokens_that_plain_copying_gets_wrong_are_marked() -> None:
    assert hard_tokens([1, 2, 3, 1, 2, 3, 1, 9], 3) == [False] * 3 + [True, False, False, False, True]
