"""Which worker pair a session had last; the sessions that were heard of longest ago are forgotten."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_SESSIONS: Final = 65_536
"""More agents than one gateway serves at a time; about 16 MB."""


@dataclass(frozen=True, slots=True)
class Home:
    """The worker that owns a session's requests, and the prefill instance that computes its prompts; empty: none."""

    worker_id: str
    prefill_id: str = ""


class Sessions:
    """The homes of sessions by key, at most `max_sessions`."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._homes: OrderedDict[str, Home] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, key: str) -> Home | None:
        """The home of a session; the empty key is no session."""
        return self._homes.get(key) if key else None

    def settle(self, key: str, home: Home) -> None:
        """A session is served there now."""
        if not key:
            return
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > self._max_sessions:
            self._homes.popitem(last=False)
