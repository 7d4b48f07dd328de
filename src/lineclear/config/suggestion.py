"""The nearest known name for one that is not known."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """` (did you mean …?)` with the known word that looks most like this one; nothing where none does.

    A `prefix` that all words share is not compared: it would make all of them look alike.
    """
    names = {name.removeprefix(prefix): name for name in known}
    close = difflib.get_close_matches(word.removeprefix(prefix), names, n=1)
    return f" (did you mean {names[close[0]]}?)" if close else ""
