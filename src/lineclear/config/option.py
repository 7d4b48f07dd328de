"""What is known of one option besides its name, type and default: its help, what it allows, how it is shown.

An option is a field of a component's frozen dataclass, annotated once::

    port: Annotated[int, Option("Port to listen on; 0 picks a free one.", allowed=Range(0, 65_535))] = 8000

Everything else (the flag, the TOML key, the environment variable, the checks) is derived from that line.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """A closed interval; `None` leaves a side open."""

    low: float | None = None
    high: float | None = None

    def contains(self, value: float) -> bool:
        """Whether the value lies in the interval."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low is None:
            return f"at most {self.high}"
        if self.high is None:
            return f"at least {self.low}"
        return f"{self.low} to {self.high}"


@dataclass(frozen=True)
class Pattern:
    """Text that matches a regular expression from end to end; `description` is what people are told."""

    regex: str
    description: str

    def contains(self, value: str) -> bool:
        """Whether the whole text matches."""
        return re.fullmatch(self.regex, value) is not None

    def __str__(self) -> str:
        return self.description


@dataclass(frozen=True)
class Option:
    """The help, the allowed values and the presentation of one option.

    `none_word` is the word that stands for `None` in flags, files and variables; options that cannot be `None` have
    none. A `secret` is never printed.
    """

    help: str
    allowed: Range | Pattern | None = None
    none_word: str | None = None
    secret: bool = False
