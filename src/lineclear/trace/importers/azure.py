"""Azure's LLM inference traces (Splitwise, ISCA 2024): CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`."""

from datetime import UTC, datetime

from lineclear.base.errors import TraceError
from lineclear.trace.events import Arrived, Ended, Event

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class AzureParser:
    """Rows to events, with times since 1970. Nothing is known of prefixes, so no tokens are shared."""

    block_len = 1
    source = "azure"

    def parse(self, number: int, line: str) -> list[Event]:
        """See `RowParser`."""
        fields = tuple(each.strip() for each in line.strip().split(","))
        if number == 1 and fields == _COLUMNS:
            return []
        if len(fields) != len(_COLUMNS):
            raise TraceError(number, "row", line[:120], f"three columns: {', '.join(_COLUMNS)}")
        request = str(number)
        return [
            Arrived(at_s=_seconds(number, fields[0]), request=request, prompt_len=_count(number, 1, fields[1], 1)),
            Ended(request=request, output_len=_count(number, 2, fields[2], 0)),
        ]


def _seconds(number: int, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise TraceError(number, _COLUMNS[0], text, "a date and time, as 2023-11-16 18:17:03.97") from None


def _count(number: int, column: int, text: str, minimum: int) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
    if value < minimum:
        raise TraceError(number, _COLUMNS[column], text, f"a whole number, at least {minimum}")
    return value
