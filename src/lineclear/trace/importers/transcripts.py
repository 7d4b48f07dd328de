"""Raw transcripts (lmcache-agent-trace): `timestamp` (µs), `session_id`, `input`, `output`; one JSON object a line."""

from typing import Any

from lineclear.base.errors import TraceError
from lineclear.trace.events import Arrived, Ended, Event
from lineclear.trace.importers.rows import parse_object
from lineclear.trace.importers.text_blocks import BLOCK_LEN, text_blocks, text_len


class TranscriptParser:
    """Rows to events, with times since 1970. Lengths are those of `text_blocks`; the text itself is not kept."""

    block_len = BLOCK_LEN
    source = "transcripts"

    def parse(self, number: int, line: str) -> list[Event]:
        """See `RowParser`."""
        row = parse_object(number, line)
        text, output = _text(number, row, "input"), _text(number, row, "output")
        request, session = str(number), _text(number, row, "session_id")
        return [
            Arrived(
                at_s=_seconds(number, row.get("timestamp")),
                request=request,
                session=session,
                prompt_len=text_len(text),
                blocks=text_blocks(text),
            ),
            Ended(request=request, output_len=text_len(output) if output else 0),
        ]


def _seconds(number: int, value: object) -> float:
    micros = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else value
    if not isinstance(micros, int) or isinstance(micros, bool) or not 0 <= micros < 1e19:
        raise TraceError(number, "timestamp", value, "microseconds since 1970, a whole number or its digits")
    return micros / 1e6


def _text(number: int, row: dict[str, Any], name: str) -> str:
    value: object = row.get(name)
    if not isinstance(value, str):
        raise TraceError(number, name, value, "a text")
    return value
