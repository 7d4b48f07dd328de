"""Stop strings, found wherever the tokens' borders fall, and never sent.

Law: the first stop string that is complete ends the text; of several that are complete at the same character, the one
that began first. How the text is cut into pieces makes no difference.
"""

from lineclear.gateway.fragments import held_len


class StopStrings:
    """Watches one text for its stop strings.

    `found` is the stop string that ended the text, or `None`.
    """

    def __init__(self, stop_strings: tuple[str, ...]) -> None:
        self._stop_strings = stop_strings
        self._held = ""
        self.found: str | None = None

    @property
    def num_held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def push(self, text: str) -> str:
        """The text that may be sent now: what cannot be part of a stop string any more. After a stop, nothing."""
        if self.found is not None:
            return ""
        if not self._stop_strings:
            return text
        text = self._held + text
        matches = [(start + len(stop), start, stop) for stop in self._stop_strings if (start := text.find(stop)) >= 0]
        if matches:
            _, start, self.found = min(matches)
            self._held = ""
            return text[:start]
        num_held = held_len(text, self._stop_strings)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def flush(self) -> str:
        """What was held back, now that no more text can follow it."""
        held, self._held = self._held, ""
        return held
