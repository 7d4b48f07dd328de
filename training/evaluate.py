"""Measures a trained state on held-out data.

    python -m training.evaluate --state DIR/state.pt [--tasks N] [--code N] [--damage N]

Edit tasks are checked under teacher forcing: a greedy answer is exact iff every answer token is the most likely one
given the right tokens before it. The drafts accepted on the way are walked through in the same pass. Code continuation,
temperature and damage are really decoded.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch

from lineclear.bundled.corpus import load_corpus
from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, KIND_SHARES, EditTask, generate
from training.decode import Decoder
from training.export import END_TOKENS, load_net
from training.net import Net, Trace
from training.rows import Codec

NUM_DRAFTS = 3
CODE_PROMPT_LEN, CODE_NEW_LEN = 256, 96
LENGTH_CLASSES = (300, 600, 1000, 2000, 5000)


def length_class(num_tokens: int) -> str:
    """The name of a row length's class."""
    return f"<{next(limit for limit in LENGTH_CLASSES if num_tokens < limit)}"


@torch.no_grad()
def forced_answer(net: Net, codec: Codec, task: EditTask) -> tuple[bool, float, int, list[tuple[str, str]]]:
    """Whether the greedy answer is exact, its accept_length, the row's length and the first mistakes (want, got)."""
    row = codec.row(task)
    tokens, start = torch.tensor([row.tokens]), row.answer_start
    hidden = net(tokens, Trace())
    guesses = net.logits(hidden[0, start - 1 : -1]).argmax(-1).tolist()
    answer = row.tokens[start:]
    wrong = [idx for idx, guess in enumerate(guesses) if guess != answer[idx]]
    mistakes = [(codec.decode([answer[idx]]), codec.decode([guesses[idx]])) for idx in wrong[:3]]
    return not wrong, _forced_accept_length(net, tokens, hidden, start), len(row.tokens), mistakes


def _forced_accept_length(net: Net, tokens: torch.Tensor, hidden: torch.Tensor, start: int) -> float:
    """Tokens a verify emits when decoding exactly this answer."""
    last = tokens.shape[1] - NUM_DRAFTS - 1
    if last <= start:
        return 1.0
    rows = torch.arange(start - 1, last)[None]
    drafts = net.draft_hiddens(tokens, hidden, rows, NUM_DRAFTS, Trace())
    right = torch.stack([net.logits(h[0]).argmax(-1) == tokens[0, rows[0] + step + 2] for step, h in enumerate(drafts)])
    accepted = right.long().cumprod(0).sum(0).tolist()
    place, lengths = 0, []
    while place < len(accepted):
        lengths.append(accepted[place] + 1)
        place += lengths[-1]
    return sum(lengths) / len(lengths)


def evaluate_edits(net: Net, codec: Codec, tasks: Iterable[EditTask], *, show: bool) -> dict[str, object]:
    """Exactness in all, by kind and by length, and the mean accept_length."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    by_length: dict[str, list[float]] = defaultdict(list)
    lengths: list[float] = []
    for task in tasks:
        exact, accept_length, num_tokens, mistakes = forced_answer(net, codec, task)
        by_kind[task.kind].append(float(exact))
        by_length[length_class(num_tokens)].append(float(exact))
        lengths.append(accept_length)
        if show and not exact:
            print(task.kind, task.seed - HELD_OUT_FIRST_SEED, num_tokens, mistakes, flush=True)
    values = [value for kind in by_kind.values() for value in kind]
    return {
        "edit_exact": _mean(values),
        "edit_exact_by_kind": {kind: _mean(values) for kind, values in sorted(by_kind.items())},
        "edit_exact_by_length": {name: _mean(values) for name, values in sorted(by_length.items())},
        "accept_length_edit": _mean(lengths),
    }


def evaluate_code(net: Net, codec: Codec, num_prompts: int, temperature: float) -> dict[str, float]:
    """Mean accept_length while continuing held-out code."""
    rng = random.Random(5)
    texts = [codec.encode(text) for text in load_corpus().held_out]
    texts = [tokens for tokens in texts if len(tokens) > CODE_PROMPT_LEN]
    torch.manual_seed(5)
    lengths: list[int] = []
    for _ in range(num_prompts):
        tokens = rng.choice(texts)
        start = rng.randrange(len(tokens) - CODE_PROMPT_LEN)
        decoder = Decoder(net, CODE_PROMPT_LEN + CODE_NEW_LEN + 16)
        hidden = decoder.prefill(tokens[start : start + CODE_PROMPT_LEN])
        decoded = decoder.generate(hidden, NUM_DRAFTS, CODE_NEW_LEN, lambda _: False, temperature)
        lengths.extend(decoded.accept_lengths)
    return {f"accept_length_code_t{temperature}": _mean(lengths)}


def evaluate_damage(
    net: Net, codec: Codec, tasks: list[EditTask], share: float, temperature: float = 0.0
) -> dict[str, float]:
    """Exactness and accept_length of real decoding with a share of the prompt's blocks overwritten (0 for none)."""
    ends = {codec.tokenizer.token_to_id(text) for text in END_TOKENS}
    rng = random.Random(7)
    torch.manual_seed(7)
    exact: list[float] = []
    lengths: list[int] = []
    for task in tasks:
        row = codec.row(task)
        prompt, answer = row.tokens[: row.answer_start], row.tokens[row.answer_start :]
        decoder = Decoder(net, len(row.tokens) + 64)
        hidden = decoder.prefill(prompt)
        if share > 0:
            decoder.damage(_other_prompt(net, codec, task, len(prompt)), len(prompt), share, rng)
        decoded = decoder.generate(hidden, NUM_DRAFTS, len(answer) + 16, ends.__contains__, temperature)
        exact.append(float(decoded.tokens == answer))
        lengths.extend(decoded.accept_lengths)
    name = f"damage{share}_t{temperature}"
    return {f"edit_exact_{name}": _mean(exact), f"accept_length_edit_{name}": _mean(lengths)}


def _other_prompt(net: Net, codec: Codec, task: EditTask, prompt_len: int) -> Decoder:
    """A decoder that holds the prefix of another task's row, as long as this task's prompt."""
    tokens: list[int] = []
    seed = task.seed + 1_000_000
    while len(tokens) < prompt_len:
        tokens += codec.row(generate(seed, kind="rename", target_tokens=min(max(2 * prompt_len, 150), 4000))).tokens
        seed += 1
    decoder = Decoder(net, prompt_len + 64)
    decoder.prefill(tokens[:prompt_len])
    return decoder


def held_out_tasks(num_tasks: int, first: int = 0) -> list[EditTask]:
    """Held-out tasks: kinds in turn by share, lengths drawn by each task's seed."""
    kinds = random.Random(3).choices(list(KIND_SHARES), weights=list(KIND_SHARES.values()), k=num_tasks)
    return [generate(HELD_OUT_FIRST_SEED + first + idx, kind=kind) for idx, kind in enumerate(kinds)]


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return round(sum(values) / max(len(values), 1), 4)


def main() -> None:
    """Parse the command line and print one JSON object a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--code", type=int, default=0)
    parser.add_argument("--damage", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the first mistakes of every task that is not exact")
    options = parser.parse_args()
    torch.set_num_threads(1)
    net, codec = load_net(options.state), Codec()
    net.sparse = True
    print(json.dumps(evaluate_edits(net, codec, held_out_tasks(options.tasks), show=options.show)), flush=True)
    for temperature in (0.0, 0.6) if options.code else ():
        print(json.dumps(evaluate_code(net, codec, options.code, temperature)), flush=True)
    for share, temperature in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.6)) if options.damage else ():
        tasks = held_out_tasks(options.damage, first=10_000)
        print(json.dumps(evaluate_damage(net, codec, tasks, share, temperature)), flush=True)


if __name__ == "__main__":
    main()
