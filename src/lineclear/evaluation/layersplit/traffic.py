"""The sessions' prompts: code of the bundled corpus, each session its own from the first block on.

session s   │ salt of s │ corpus from s's place on, round and round …
asked              [0, 0.9 L) ─▶ measured [0, L) ─▶ … the next length: the same prompt, grown
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from lineclear.bundled.corpus import load_corpus
from lineclear.gateway.tokenization import load_tokenization

PLACE_STRIDE = 7_919
"""Tokens between the places at which two sessions begin in the corpus; a prime, so that none begins where one has."""


class Traffic:
    """Prompts of any session and length.

    Args:
        corpus: tokens that prompts are made of; repeated where a prompt is longer.
        salts: of each session, tokens that no other begins with.
    """

    def __init__(self, corpus: Sequence[int], salts: Sequence[Sequence[int]]) -> None:
        assert len({tuple(salt) for salt in salts}) == len(salts), "two sessions have one salt"
        self._corpus = corpus
        self._salts = salts

    def prompt(self, session: int, length: int) -> list[int]:
        """The first tokens of a session: a longer prompt begins with a shorter one."""
        place = session * PLACE_STRIDE % len(self._corpus)
        endless = itertools.chain(self._corpus[place:], itertools.cycle(self._corpus))
        return list(itertools.islice(itertools.chain(self._salts[session], endless), length))


def load_traffic(model_dir: Path, num_sessions: int, longest: int) -> Traffic:
    """Tokens of the bundled corpus, no more than a prompt needs."""
    tokenization = load_tokenization(model_dir)
    salts = [tokenization.encode_text(f"# session {session:04}\n") for session in range(num_sessions)]
    corpus = load_corpus()
    encoded = (tokenization.encode_text(text) for text in (*corpus.held_out, *corpus.train))
    wanted = longest + num_sessions * PLACE_STRIDE
    return Traffic(list(_first(encoded, wanted)), salts)


def _first(texts: Iterator[list[int]], wanted: int) -> Iterator[int]:
    return itertools.islice(itertools.chain.from_iterable(texts), wanted)
