"""The starting weights: fan-in noise plus a seeded copying circuit.

A network of this size does not find copying by itself in the time there is (it lacks the previous-token head, the first
half of an induction circuit), so the circuit is written into the starting weights and gradient descent refines it.

Residual stream of the seeded network, by dimension:

    [0]           a constant, the same in every embedding
    [1, 64)       the token's identity code; what the lm_head reads is kept here too, rotated by `turn`
    [64 + 32 j)   slot j: 32 numbers of the code of the token j + 1 places back (j = 0..2), or their mean over about
                  4..9 places back (j = 3), written by layer 0

- A token's identity code has a part that slots see (`code` reads it) and one they do not. Words put most of their
  length into the first, punctuation and blanks into the second: a matching word counts for more than a matching comma.
- Layer 0: `k_pe` is constant (read from the constant), head j's `q_pe` is constant and turned so that its score peaks
  j + 1 places back (the last head's broadly); its value path writes that token's code into slot j.
- Layer 1 and the MTP layer: induction heads. A query holds the codes of tokens t .. t-2 and the mean before, a key
  those of s-1 .. s-3 and the mean before, so their product counts how much of the context matches; the value writes the
  attended token's identity, turned, where the lm_head looks for it. The indexer is seeded with the same match.
- Layer 3: a head for `old -> new`. Its query is the code of the token about to be said; it looks at the token that has
  this code two places back and an arrow one place back, and says that token instead. Without a match it looks at the
  second token of the text, which says nothing.
- The MTP layer's `eh_proj` puts the next token in the identity place and shifts the slots by one.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.net import Attention, MTPLayer, Net
from training.rows import Codec

CONSTANT = 0
IDENTITY = slice(1, 64)
IDENTITY_LEN = 63
CODE_LEN = 32
MATCH_LEN = 16
NUM_SLOTS = 4
CONSTANT_SIZE = 4.0
IDENTITY_NORM = 8.0
NOISE_GAIN = 0.4
WRITER_GAIN = 0.12
# The odd index heads stay random and loud enough that a key is seldom cut to exactly zero by all heads: equal scores at
# the border of the top-k would be resolved differently by different implementations.
INDEX_GAIN = 1.0
ROPE_KEY_SIZE = 4.0
PREVIOUS_NATS = (14.0,) * 8  # what each rotary pair adds to a previous-token head's score at its peak
MEAN_NATS = (0.0,) + (6.0,) * 7  # the same for the head that takes a mean; without the fastest pair the peak is broad
MEAN_CENTRE = 6.5
MEAN_GAIN = 2.0
MATCH_NATS = 12.0  # what one matching token of middling weight adds to an induction score
HEAD_WEIGHTS = ((1.0, 1.0, 1.0, 0.8), (0.4, 1.2, 1.2, 1.0))  # weights of t, t-1, t-2 and the mean by induction head
ARROW_NATS, SINK_NATS, RENAME_NATS = 11.0, 15.0, 12.0
LOGIT_GAIN = 1.4
WORD_SHARE, DIGIT_SHARE, OTHER_SHARE = 0.8, 0.4, 0.12  # of a code's squared length, what slots see


@dataclass(frozen=True)
class Alphabet:
    """What the seeds have to know about the tokens: the share of each code that slots see, and three of the tokens."""

    visible_share: Tensor
    arrow: int
    first: int
    second: int


def alphabet(codec: Codec) -> Alphabet:
    """Weigh every token of the vocabulary."""
    texts = [codec.decode([token]) for token in range(codec.tokenizer.get_vocab_size())]
    shares = [_visible_share(text) for text in texts]
    return Alphabet(torch.tensor(shares), texts.index(" -> "), texts.index("[gMASK]"), texts.index("<sop>"))


def _visible_share(text: str) -> float:
    if text.isdigit():
        return DIGIT_SHARE
    is_word = any(char.isalpha() for char in text) or text == " -> "
    return WORD_SHARE if is_word else OTHER_SHARE


def slot(place: int) -> slice:
    """Residual dimensions that hold the code of the token `place + 1` back."""
    start = 64 + CODE_LEN * place
    return slice(start, start + CODE_LEN)


@torch.no_grad()
def initialise(net: Net, tokens: Alphabet, seed: int) -> None:
    """Give every parameter of `net` its starting value."""
    generator = torch.Generator().manual_seed(seed)
    _noise(net, generator)
    basis = _orthonormal(IDENTITY_LEN, IDENTITY_LEN, generator)
    code = basis[:CODE_LEN]
    turn = _orthonormal(IDENTITY_LEN, IDENTITY_LEN, generator)
    codes = _identity_codes(basis, tokens, generator)
    embedding = net.model.embed_tokens.weight
    embedding[:, CONSTANT] = CONSTANT_SIZE
    embedding[:, IDENTITY] = codes * IDENTITY_NORM
    net.lm_head.weight[:, IDENTITY] += LOGIT_GAIN * codes @ turn.T
    _seed_previous_tokens(net, code)
    _seed_induction(net.model.layers[1].self_attn, code, turn, write_gain=0.75)
    _seed_induction(net.model.layers[-1].self_attn, code, turn, write_gain=0.9)
    _seed_rename(net.model.layers[3].self_attn, code, turn, codes, tokens)
    _seed_join(net.model.layers[-1], code)


def _identity_codes(basis: Tensor, tokens: Alphabet, generator: torch.Generator) -> Tensor:
    """Unit codes [vocab, 63] of which `visible_share` of the squared length lies in the first 32 basis rows.

    The arrow and the text's first token have a direction of their own among these: nothing else looks like them.
    """
    share = tokens.visible_share[:, None]
    parts = torch.randn(len(share), IDENTITY_LEN, generator=generator)
    seen, unseen = parts[:, :CODE_LEN], parts[:, CODE_LEN:]
    own = [tokens.arrow, tokens.first]
    seen[:, : len(own)] = 0.0
    seen[own] = torch.eye(CODE_LEN)[: len(own)]
    seen = seen / seen.norm(dim=1, keepdim=True) * share.sqrt()
    unseen = unseen / unseen.norm(dim=1, keepdim=True) * (1 - share).sqrt()
    return torch.cat((seen, unseen), 1) @ basis


def _noise(net: Net, generator: torch.Generator) -> None:
    for name, parameter in net.named_parameters():
        if parameter.dim() == 2:
            std = 0.05 if "embed_tokens" in name else _gain(name) * parameter.shape[1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


def _gain(name: str) -> float:
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return WRITER_GAIN
    return INDEX_GAIN if name.endswith("indexer.wq_b.weight") else NOISE_GAIN


def _orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """[rows, columns] with orthonormal rows, rows <= columns."""
    return torch.linalg.qr(torch.randn(columns, rows, generator=generator)).Q.T


def _seed_previous_tokens(net: Net, code: Tensor) -> None:
    """Layer 0: head j looks j + 1 back, the last one broadly, and writes the code it finds there into slot j."""
    config, layer = net.config, net.model.layers[0]
    attn = layer.self_attn
    x = layer.input_layernorm(net.model.embed_tokens.weight)
    constant = float(x[:, CONSTANT].mean())
    attn.q_a_proj.weight[0, CONSTANT] = 2.0
    q_constant = float(attn.q_a_layernorm(attn.q_a_proj(x))[:, 0].mean())
    kv_a = attn.kv_a_proj_with_mqa.weight
    kv_a[:IDENTITY_LEN, IDENTITY] += torch.eye(IDENTITY_LEN)
    kv_a[config.kv_lora_rank :].zero_()
    kv_a[config.kv_lora_rank :: 2, CONSTANT] = ROPE_KEY_SIZE / constant
    nat = math.sqrt(config.qk_head_dim) / ROPE_KEY_SIZE / q_constant
    q_b = attn.q_b_proj.weight.view(config.num_attention_heads, config.qk_head_dim, -1)
    kv_b = _heads(attn, attn.kv_b_proj)
    out = attn.o_proj.weight.view(config.hidden_size, config.num_attention_heads, -1)
    for head in range(NUM_SLOTS):
        is_mean = head == NUM_SLOTS - 1
        back = net.angles(torch.tensor(MEAN_CENTRE if is_mean else head + 1.0))
        nats = torch.tensor(MEAN_NATS if is_mean else PREVIOUS_NATS)[:, None] * nat
        q_b[head, config.qk_nope_head_dim :, 0] = (torch.stack((back.cos(), -back.sin()), -1) * nats).flatten()
        kv_b[head, config.qk_nope_head_dim :][:CODE_LEN, :IDENTITY_LEN] += code
        gain = IDENTITY_NORM / math.sqrt(config.kv_lora_rank) * (MEAN_GAIN if is_mean else 1.0)
        out[slot(head), head, :CODE_LEN] += torch.eye(CODE_LEN) * gain
    _seed_local_indexer(net, attn, constant, q_constant)


def _seed_local_indexer(net: Net, attn: Attention, constant: float, q_constant: float) -> None:
    """Layer 0's indexer prefers the last few tokens."""
    config, indexer = net.config, attn.indexer
    indexer.wk.weight[: config.qk_rope_head_dim].zero_()
    indexer.wk.weight[0 : config.qk_rope_head_dim : 2, CONSTANT] = 4.0 / constant
    wq = indexer.wq_b.weight.view(config.index_n_heads, config.index_head_dim, -1)
    for head in range(0, config.index_n_heads, 2):
        back = net.angles(torch.tensor(head % NUM_SLOTS + 1))
        wq[head, : config.qk_rope_head_dim, 0] = torch.stack((back.cos(), -back.sin()), -1).flatten() * 2 / q_constant
    indexer.weights_proj.weight[:, CONSTANT] = 1.0 / constant


def _seed_induction(attn: Attention, code: Tensor, turn: Tensor, *, write_gain: float) -> None:
    """Two heads, each with its half of the codes, that look where the context stood before and write what followed."""
    config = attn.config
    nope = config.qk_nope_head_dim
    for place in range(NUM_SLOTS):
        rows = slice(CODE_LEN * place, CODE_LEN * (place + 1))
        source = IDENTITY if place == 0 else slot(place - 1)
        attn.q_a_proj.weight[rows, source] += code if place == 0 else torch.eye(CODE_LEN)
    kv_a = attn.kv_a_proj_with_mqa.weight
    kv_a[:IDENTITY_LEN, IDENTITY] += torch.eye(IDENTITY_LEN)
    q_b = attn.q_b_proj.weight.view(config.num_attention_heads, config.qk_head_dim, -1)
    kv_b = _heads(attn, attn.kv_b_proj)
    out = attn.o_proj.weight.view(config.hidden_size, config.num_attention_heads, -1)
    strength = math.sqrt(MATCH_NATS * math.sqrt(config.qk_head_dim) / MATCH_LEN)
    for place in range(NUM_SLOTS):
        match = slice(MATCH_LEN * place, MATCH_LEN * (place + 1))
        start = IDENTITY_LEN + CODE_LEN * place
        kv_a[start : start + CODE_LEN, slot(place)] += torch.eye(CODE_LEN)
        for head, weights in enumerate(HEAD_WEIGHTS):
            half = MATCH_LEN * head
            q_b[head, match][:, CODE_LEN * place + half :][:, :MATCH_LEN] += (
                torch.eye(MATCH_LEN) * strength * weights[place]
            )
            kv_b[head, match][:, start + half :][:, :MATCH_LEN] += torch.eye(MATCH_LEN) * strength
    for head in range(len(HEAD_WEIGHTS)):
        kv_b[head, nope:][:IDENTITY_LEN, :IDENTITY_LEN] += torch.eye(IDENTITY_LEN)
        out[IDENTITY, head, :IDENTITY_LEN] += turn * write_gain
    _seed_matching_indexer(attn)


def _seed_matching_indexer(attn: Attention) -> None:
    """The indexer's even heads count matches of the last three tokens, each head with its own weights."""
    config, indexer = attn.config, attn.indexer
    wq = indexer.wq_b.weight.view(config.index_n_heads, config.index_head_dim, -1)
    for place in range(3):
        dims = slice(config.qk_rope_head_dim + MATCH_LEN * place, config.qk_rope_head_dim + MATCH_LEN * (place + 1))
        indexer.wk.weight[dims, slot(place)][:, :MATCH_LEN] += torch.eye(MATCH_LEN)
        for head in range(0, config.index_n_heads, 2):
            weight = 1.5 if head // 2 % 3 == place else 0.75
            wq[head, dims, CODE_LEN * place : CODE_LEN * place + MATCH_LEN] += torch.eye(MATCH_LEN) * weight
    indexer.weights_proj.weight[:, CONSTANT] = 0.2


def _seed_rename(attn: Attention, code: Tensor, turn: Tensor, codes: Tensor, tokens: Alphabet) -> None:
    """Head 0 says `new` where `old` was about to be said, if the text has `old -> new`."""
    config = attn.config
    nope, constant_row = config.qk_nope_head_dim, CODE_LEN
    attn.q_a_proj.weight[: constant_row + 1].zero_()
    attn.q_a_proj.weight[:CODE_LEN, IDENTITY] += code @ turn.T
    attn.q_a_proj.weight[constant_row, CONSTANT] += 1.0
    kv_a = attn.kv_a_proj_with_mqa.weight
    kv_a[: IDENTITY_LEN + 2 * CODE_LEN].zero_()
    kv_a[:IDENTITY_LEN, IDENTITY] += torch.eye(IDENTITY_LEN)
    for place, start in ((1, IDENTITY_LEN), (0, IDENTITY_LEN + CODE_LEN)):
        kv_a[start : start + CODE_LEN, slot(place)] += torch.eye(CODE_LEN)
    arrow, sink = (code @ codes[token] / (code @ codes[token]).norm() ** 2 for token in (tokens.arrow, tokens.first))
    wanted = (arrow * ARROW_NATS + sink * SINK_NATS) / 4
    nat = math.sqrt(config.qk_head_dim) / 4
    q_b = attn.q_b_proj.weight.view(config.num_attention_heads, config.qk_head_dim, -1)
    kv_b = _heads(attn, attn.kv_b_proj)
    q_b[0, :CODE_LEN, :CODE_LEN] += torch.eye(CODE_LEN) * RENAME_NATS / 6 * nat
    q_b[0, CODE_LEN : 2 * CODE_LEN, constant_row] += wanted * nat
    kv_b[0, : 2 * CODE_LEN, IDENTITY_LEN : IDENTITY_LEN + 2 * CODE_LEN] += torch.eye(2 * CODE_LEN)
    first = codes[[tokens.first, tokens.second]].T
    silent = torch.linalg.qr(torch.cat((first, turn @ first), 1)).Q
    kv_b[0, nope:].zero_()
    kv_b[0, nope:][:IDENTITY_LEN, :IDENTITY_LEN] = torch.eye(IDENTITY_LEN) - silent @ silent.T
    out = attn.o_proj.weight.view(config.hidden_size, config.num_attention_heads, -1)
    out[IDENTITY, 0, :IDENTITY_LEN] += turn * 2.0


def _seed_join(layer: MTPLayer, code: Tensor) -> None:
    """The draft layer's input: next token's identity, then the codes of t, t-1, t-2, t-3."""
    hidden = layer.eh_proj.weight.shape[0]
    embedded, state = layer.eh_proj.weight[:, :hidden], layer.eh_proj.weight[:, hidden:]
    embedded[CONSTANT, CONSTANT] = 0.65
    embedded[IDENTITY, IDENTITY] += torch.eye(IDENTITY_LEN) * 0.65
    state[slot(0), IDENTITY] += code
    for place in range(1, NUM_SLOTS):
        state[slot(place), slot(place - 1)] += torch.eye(CODE_LEN) * 1.3


def _heads(attn: Attention, projection: nn.Linear) -> Tensor:
    """kv_b_proj's weight by head: [H, nope + V, kv_lora]."""
    return projection.weight.view(attn.config.num_attention_heads, -1, attn.config.kv_lora_rank)
