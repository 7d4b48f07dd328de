"""The `heuristic` detector: what can be said of a text alone, by its characters, its words and its repetition.

It is here for comparison. Collapse, by any of:

- characters: more than `MAX_STRANGE_SHARE` of the last `WINDOW_CHARS` are of no use in code or prose, or of scripts
  that the prompt does not have;
- words: more than `MAX_MIXED_SHARE` of the words mix letters of several scripts.

Loop, by any of:

- the text ends with `MIN_REPEATS` copies of one piece of at most `MAX_PERIOD_CHARS`;
- of the runs of `NGRAM_WORDS` words in the last `WINDOW_WORDS` fewer than `MIN_DISTINCT_SHARE` are distinct.

What it cannot see: text that is fluent and wrong. What it takes for broken although it is not: a table, a list of
constants or a file that repeats itself, copied as asked.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

WINDOW_CHARS: Final = 512
MIN_CHARS: Final = 128
"""Of a shorter text nothing is said."""
MAX_STRANGE_SHARE: Final = 0.1
MAX_MIXED_SHARE: Final = 0.2
MIN_REPEATS: Final = 8
MAX_PERIOD_CHARS: Final = 200
MIN_REPEATED_CHARS: Final = 64
"""A rule, an indentation or a row of zeros is no loop."""
WINDOW_WORDS: Final = 256
NGRAM_WORDS: Final = 4
MIN_DISTINCT_SHARE: Final = 0.3

_WORD: Final = re.compile(r"\w+|[^\w\s]+")
_STRANGE_CATEGORIES: Final = frozenset({"Cc", "Cn", "Co", "Cs"})
_PLAIN_CONTROLS: Final = frozenset("\t\n\r")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class TextFinding:
    """What the text shows."""

    kind: Literal["collapse", "loop"]
    evidence: dict[str, float]
    """The shares and lengths that went beyond their limits."""


def scripts_of(text: str) -> frozenset[str]:
    """Return the scripts of a text's letters, by the first words of their Unicode names, as LATIN and CYRILLIC."""
    return frozenset(script for char in set(text) if (script := _script(char)))


def find_in_text(text: str, known_scripts: frozenset[str]) -> TextFinding | None:
    """Judge the end of an output; `known_scripts` are those of its prompt, Latin is always among them.

    Cost: proportional to the windows, not to the text.
    """
    if len(text) < MIN_CHARS:
        return None
    window = text[-WINDOW_CHARS:]
    strange = _share(_is_strange(char, known_scripts | {"LATIN"}) for char in window)
    if strange > MAX_STRANGE_SHARE:
        return TextFinding("collapse", {"strange_share": strange})
    mixed = _share(len(scripts_of(word)) > 1 for word in _WORD.findall(window) if word[0].isalpha())
    if mixed > MAX_MIXED_SHARE:
        return TextFinding("collapse", {"mixed_share": mixed})
    period = _period_of_end(text[-MIN_REPEATS * MAX_PERIOD_CHARS :])
    if period:
        return TextFinding("loop", {"period_chars": float(period)})
    distinct = _distinct_share(_WORD.findall(text[-WINDOW_WORDS * 16 :])[-WINDOW_WORDS:])
    if distinct < MIN_DISTINCT_SHARE:
        return TextFinding("loop", {"distinct_share": distinct})
    return None


def _is_strange(char: str, known_scripts: frozenset[str]) -> bool:
    if char.isascii():
        return not char.isprintable() and char not in _PLAIN_CONTROLS
    if char == _REPLACEMENT or unicodedata.category(char) in _STRANGE_CATEGORIES:
        return True
    script = _script(char)
    return bool(script) and script not in known_scripts


def _script(char: str) -> str:
    """The script of a letter; empty for what is none."""
    return unicodedata.name(char, "").partition(" ")[0] if char.isalpha() else ""


def _period_of_end(end: str) -> int:
    """The shortest piece of which the text ends with so many copies as make a loop; 0 if there is none."""
    for period in range(1, MAX_PERIOD_CHARS + 1):
        length = max(MIN_REPEATS * period, MIN_REPEATED_CHARS + period)
        if length > len(end):
            return 0
        if end[-length + period :] == end[-length:-period]:
            piece = end[-period:]
            return 0 if piece.isspace() or period == 1 else period
    return 0


def _distinct_share(words: list[str]) -> float:
    """Of the runs of words, how many are distinct; 1 where there are too few to say."""
    if len(words) < WINDOW_WORDS:
        return 1.0
    runs = [tuple(words[start : start + NGRAM_WORDS]) for start in range(len(words) - NGRAM_WORDS + 1)]
    return len(set(runs)) / len(runs)


def _share(flags: Iterable[bool]) -> float:
    given = list(flags)
    return sum(given) / len(given) if given else 0.0
