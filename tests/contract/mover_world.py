"""The hosts of one kind of mover, used again from check to check, and the book of what they have answered."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from lineclear.transport.movers.fake import FakeMover
from lineclear.transport.movers.mover import Completion, Outcome
from tests.contract.mover_host import PATIENCE_SECONDS, FakeHost, RemoteHost

LOOK_SECONDS = 0.002
PATIENCE_SHARE = 1.0
"""Of the time that is given for what must come; less where it is known that it will not."""

AnyHost = Any
"""A `FakeHost` or a `RemoteHost`: whose calls are those of `Host`, which no type says."""


class World:
    """Where the hosts of a check come from."""

    def __init__(self, kind: str, *, fences_the_living: bool = False, num_flood_posts: int = 300) -> None:
        self.kind = kind
        self.fences_the_living = fences_the_living
        """Whether a fence is true of a writer that still runs."""
        self.num_flood_posts = num_flood_posts
        """How many posts of a flood take far longer than a look at it, and not too long to wait for their end."""
        self._used: list[RemoteHost] = []
        self._spare: list[RemoteHost] = []

    @property
    def is_real(self) -> bool:
        """Whether there are processes and threads to look at."""
        return True

    def host(self) -> AnyHost:
        """Return a host with nothing open."""
        host = self._spare.pop() if self._spare else RemoteHost(self.kind)
        self._used.append(host)
        return host

    def release(self) -> None:
        """Close what the hosts have open, and keep them for the next check."""
        used, self._used = self._used, []
        for host in used:
            if host.is_alive:
                host.resume()
                host.reset()
                self._spare.append(host)

    def close(self) -> None:
        """End all processes."""
        for host in self._spare + self._used:
            if host.is_alive:
                host.kill()
        self._spare, self._used = [], []


class FakeWorld(World):
    """Hosts in this process. They are made anew for each check."""

    def __init__(self, *, fences_the_living: bool) -> None:
        super().__init__("fake", fences_the_living=fences_the_living, num_flood_posts=3)
        self._mover = FakeMover(fences_the_living=fences_the_living)
        self._fakes: list[FakeHost] = []

    @property
    def is_real(self) -> bool:
        return False

    def host(self) -> AnyHost:
        self._fakes.append(FakeHost(self._mover))
        return self._fakes[-1]

    def release(self) -> None:
        fakes, self._fakes = self._fakes, []
        for host in fakes:
            host.reset()


class Answers:
    """The book of completions: each ticket is answered once, and after UNKNOWN perhaps once more."""

    def __init__(self, tickets: Iterable[int]) -> None:
        self._owed = set(tickets)
        self._last: dict[int, Completion] = {}

    def record(self, completions: Iterable[Completion]) -> None:
        """Note what has come, and that it may."""
        for completion in completions:
            ticket = completion.ticket
            last = self._last.get(ticket)
            assert ticket in self._owed, f"{completion} answers no post"
            assert last is None or (last.outcome is Outcome.UNKNOWN and completion.outcome is not Outcome.UNKNOWN), (
                f"{completion} after {last}: a post is answered once"
            )
            self._last[ticket] = completion

    @property
    def unproven(self) -> set[int]:
        """Tickets without DONE or FAILED."""
        return {ticket for ticket in self._owed if self.outcome(ticket) in (None, Outcome.UNKNOWN)}

    @property
    def unanswered(self) -> set[int]:
        """Tickets without any answer."""
        return self._owed - set(self._last)

    def outcome(self, ticket: int) -> Outcome | None:
        last = self._last.get(ticket)
        return None if last is None else last.outcome

    def reason(self, ticket: int) -> str:
        return self._last[ticket].reason

    def tickets(self, outcome: Outcome) -> set[int]:
        return {ticket for ticket, last in self._last.items() if last.outcome is outcome}

    def wait(self, writer: AnyHost, *, until: Callable[[], bool] | None = None, seconds: float = 10.0) -> None:
        """Poll until all is proven, or something else is so."""

        def is_over() -> bool:
            self.record(writer.poll())
            return not self.unproven if until is None else until()

        wait_until(is_over, f"tickets {sorted(self.unproven)[:5]} are not proven", seconds)

    def finish(self, writer: AnyHost) -> None:
        """Close the writer; nothing may be owed any more, and nothing may come twice."""
        self.record(writer.close_writer())
        assert not self.unanswered, f"never answered: {sorted(self.unanswered)[:5]}"


def wait_until(is_so: Callable[[], bool], otherwise: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Look again and again until something is so.

    Raises:
        AssertionError: It never was.
    """
    end = time.monotonic() + seconds * PATIENCE_SHARE
    while not is_so():
        assert time.monotonic() < end, f"{otherwise} after {seconds} s"
        time.sleep(LOOK_SECONDS)
