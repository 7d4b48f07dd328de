"""Coding agents' sessions (kv-cache-tester): one JSON object a session, subagents nested within.

`requests` have `t` (seconds since the session's start), `in` and `out` (tokens), `hash_ids` (of the prompt's whole
blocks), and some of them `api_time` and `ttft` (seconds). An entry of type `subagent` has `requests` of its own, whose
`t` counts from the subagent's start. Ids mean the same within one session, its subagents included, and nothing
across sessions.
"""

from typing import Any

import msgspec

from lineclear.base.errors import TraceError
from lineclear.trace.codec import prompt_problem
from lineclear.trace.events import Arrived, Ended, EndReason, Event, FirstByte
from lineclear.trace.importers.rows import parse_object, take_ids, take_int, take_number

_REASONS: dict[object, EndReason] = {"tool_use": "tool_use", "end_turn": "stop", "max_tokens": "length"}


class SessionParser:
    """Sessions to events. A session with a bad request is left out as a whole: its prompts build on each other.

    Args:
        stagger_s: session k, from 0, starts so many seconds times k after the first; the format has no times across
            sessions, so how many run at once is the experimenter's choice.
    """

    block_len = 64
    source = "sessions"

    def __init__(self, stagger_s: float = 0.0) -> None:
        self._stagger_s = stagger_s
        self._num_sessions = 0

    def parse(self, number: int, line: str) -> list[Event]:
        """See `RowParser`."""
        row = parse_object(number, line)
        if row.get("block_size", self.block_len) != self.block_len:
            raise TraceError(number, "block_size", row["block_size"], f"{self.block_len}")
        start_s = self._num_sessions * self._stagger_s
        events = _Walk(number, self._num_sessions << 32).session(row, f"s{number}", "", start_s)
        self._num_sessions += 1
        return events


class _Walk:
    def __init__(self, number: int, first_id: int) -> None:
        self._number = number
        self._first_id = first_id
        self._num_requests = 0

    def session(self, row: dict[str, Any], name: str, parent: str, start_s: float) -> list[Event]:
        events: list[Event] = []
        entries = _objects(self._number, row)
        for idx, entry in enumerate(entries):
            at_s = start_s + take_number(self._number, entry, "t")
            if entry.get("type") != "subagent":
                events += self._request(entry, name, parent, at_s)
            elif parent:
                raise TraceError(self._number, "type", "subagent", "a request, within a subagent")
            else:
                events += self.session(entry, f"{name}.{idx}", name, at_s)
        return events

    def _request(self, entry: dict[str, Any], session: str, parent: str, at_s: float) -> list[Event]:
        number, prompt_len = self._number, take_int(self._number, entry, "in", 1)
        ids = take_ids(number, entry, "hash_ids")
        problem = prompt_problem(prompt_len, len(ids), SessionParser.block_len)
        if problem is not None:
            raise TraceError(number, "in", prompt_len, problem)
        request = f"s{number}-{self._num_requests}"
        self._num_requests += 1
        blocks = tuple(self._first_id + each for each in ids)
        events: list[Event] = [
            Arrived(at_s=at_s, request=request, session=session, parent=parent, prompt_len=prompt_len, blocks=blocks)
        ]
        if entry.get("ttft") is not None:
            events.append(FirstByte(at_s=at_s + take_number(number, entry, "ttft"), request=request))
        ended_s = None if entry.get("api_time") is None else at_s + take_number(number, entry, "api_time")
        stop = entry.get("stop")
        reason: EndReason = _REASONS.get(stop, "unknown") if isinstance(stop, str) else "unknown"
        output_len = take_int(number, entry, "out", 0)
        return [*events, Ended(at_s=ended_s, request=request, output_len=output_len, reason=reason)]


def _objects(number: int, row: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        return msgspec.convert(row.get("requests"), list[dict[str, Any]])
    except msgspec.ValidationError as error:
        raise TraceError(number, "requests", row.get("requests"), f"a list of objects ({error})") from None
