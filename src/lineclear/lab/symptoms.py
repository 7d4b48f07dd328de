"""What is wrong with a text by its looks: garbling, loops, and text that belongs to another request.

Each looks at an answer beside what it may legitimately hold, the request's own prompt and its reference answer, so an
answer in the prompt's own script is not garbled and a table of zeros is no loop.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MIN_ALIEN_CHARACTERS = 3
"""Letters of a script that neither prompt nor reference has: one or two may be a name or a sign."""
MIN_LOOP_CHARACTERS = 64
MIN_LOOP_REPEATS = 4
SHINGLE_WORDS = 4
"""Words in a row that name a donor: two requests that share none of their text hardly share four words."""
MIN_FOREIGN_SHINGLES = 2

_WORDS = re.compile(r"\w+")


def find_garbling(text: str, legitimate: str) -> str | None:
    """Return the characters that do not belong, if there are enough of them."""
    broken = [each for each in text if _is_broken(each) and each not in legitimate]
    scripts = {_script(each) for each in legitimate}
    alien = [each for each in text if each.isalpha() and not each.isascii() and _script(each) not in scripts]
    if broken or len(alien) >= MIN_ALIEN_CHARACTERS:
        return "".join(broken + alien)[:40]
    return None


def find_loop(text: str, legitimate: str) -> str | None:
    """Return what the text's end repeats, if it does so for long and the legitimate text does not hold it as often."""
    text = text.rstrip()
    for period in range(1, len(text) // MIN_LOOP_REPEATS + 1):
        unit = text[-period:]
        num_repeats = 1
        while text.endswith(unit * (num_repeats + 1)):
            num_repeats += 1
        if num_repeats >= MIN_LOOP_REPEATS and num_repeats * period >= MIN_LOOP_CHARACTERS:
            return None if unit * num_repeats in legitimate else unit[:40]
    return None


@dataclass(frozen=True, slots=True)
class Foreign:
    """Text of another request."""

    donor_id: str
    num_shingles: int
    excerpt: str


class Donors:
    """Whose words are whose: all conversations of a run, by the words in a row that only one of them has.

    Args:
        texts: prompt and reference answer of each request.
        families: the conversation of each request that is not alone in its own (`lab/families.py`).
    """

    def __init__(self, texts: Mapping[str, str], families: Mapping[str, str] | None = None) -> None:
        self._families = families or {}
        self._owners: dict[str, dict[str, str]] = {}
        """By shingle and family, the first request that has it."""
        for request_id, text in texts.items():
            for shingle in shingles(text):
                self._owners.setdefault(shingle, {}).setdefault(self._family(request_id), request_id)

    def find(self, request_id: str, text: str, legitimate: str) -> Foreign | None:
        """Return whose words a text has that are not of its own conversation; of several donors the one with most."""
        own = set(shingles(legitimate))
        by_donor: dict[str, list[str]] = {}
        for shingle in dict.fromkeys(shingles(text)):
            if shingle in own:
                continue
            owners = self._owners.get(shingle, {})
            if len(owners) == 1 and self._family(request_id) not in owners:
                by_donor.setdefault(next(iter(owners)), []).append(shingle)
        if not by_donor:
            return None
        family, found = max(by_donor.items(), key=lambda each: (len(each[1]), each[0]))
        if len(found) < MIN_FOREIGN_SHINGLES:
            return None
        return Foreign(self._owners[found[0]][family], len(found), found[0])

    def _family(self, request_id: str) -> str:
        return self._families.get(request_id, request_id)


def shingles(text: str) -> Iterable[str]:
    """Yield every run of `SHINGLE_WORDS` words."""
    words = _WORDS.findall(text)
    for idx in range(len(words) - SHINGLE_WORDS + 1):
        yield " ".join(words[idx : idx + SHINGLE_WORDS])


def _is_broken(character: str) -> bool:
    is_control = unicodedata.category(character) in {"Cc", "Cn", "Co", "Cs"}
    return character == "\ufffd" or (is_control and character not in "\n\r\t")


def _script(character: str) -> str:
    return unicodedata.name(character, "?").partition(" ")[0]
