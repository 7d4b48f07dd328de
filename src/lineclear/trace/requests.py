"""Requests as a trace tells of them: its events folded, one value a request."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lineclear.base.errors import TraceError
from lineclear.trace.events import Arrived, Cancelled, Ended, Event, FirstByte, TokensSent


@dataclass(frozen=True)
class TracedRequest:
    """One request and what became of it.

    Units: seconds since the trace's start; tokens.
    """

    arrived: Arrived
    end: Ended | Cancelled | None
    """None where the trace ends before the request does."""
    first_byte_s: float | None = None
    num_tokens_seen: int = 0
    """Of `TokensSent`."""

    @property
    def output_len(self) -> int:
        """Tokens that it was answered with."""
        return self.num_tokens_seen if self.end is None else self.end.output_len

    @property
    def ended_s(self) -> float | None:
        """When it ended, where the trace tells."""
        return None if self.end is None else self.end.at_s


def fold_requests(events: Iterable[Event]) -> Iterator[TracedRequest]:
    """Requests in the order in which they end, then those that never do. Holds those that are open, and all ids.

    Raises:
        TraceError: Two requests have one id, or an event has no request that is open. Its line counts the header.
    """
    opened: dict[str, TracedRequest] = {}
    seen: set[str] = set()
    for line, event in enumerate(events, 2):
        if isinstance(event, Arrived):
            if event.request in seen:
                raise TraceError(line, "request", event.request, "an id that no request before it has")
            seen.add(event.request)
            opened[event.request] = TracedRequest(event, None)
            continue
        known = opened.get(event.request)
        if known is None:
            raise TraceError(line, "request", event.request, "a request that has arrived and has not ended")
        if isinstance(event, Ended | Cancelled):
            del opened[event.request]
            yield TracedRequest(known.arrived, event, known.first_byte_s, known.num_tokens_seen)
        else:
            opened[event.request] = _further(known, event)
    yield from opened.values()


def _further(known: TracedRequest, event: FirstByte | TokensSent) -> TracedRequest:
    if isinstance(event, FirstByte):
        return TracedRequest(known.arrived, None, event.at_s, known.num_tokens_seen)
    return TracedRequest(known.arrived, None, known.first_byte_s, known.num_tokens_seen + event.count)
