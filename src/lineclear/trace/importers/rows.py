"""What parsers of rows share: the fields of an object, with checks."""

from typing import Any, Protocol

import msgspec

from lineclear.base.errors import TraceError
from lineclear.trace.events import Event


class RowParser(Protocol):
    """One format: a line to the events of its requests."""

    block_len: int
    source: str

    def parse(self, number: int, line: str) -> list[Event]:
        """Events of row `number`: from 1, and another one for every row of an import.

        There are none for a line that holds no request, as a CSV's first.

        Raises:
            TraceError: The row cannot be used.
        """
        ...


def parse_object(number: int, line: str) -> dict[str, Any]:
    """A row that is a JSON object.

    Raises:
        TraceError: It is none.
    """
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise TraceError(number, "row", line[:120], f"a JSON object ({error})") from None


def take_int(number: int, row: dict[str, Any], name: str, minimum: int) -> int:
    """A whole number.

    Raises:
        TraceError: It is missing, or none, or less than `minimum`.
    """
    value: object = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise TraceError(number, name, value, f"a whole number, at least {minimum}")
    return value


def take_number(number: int, row: dict[str, Any], name: str) -> float:
    """A finite number, at least 0.

    Raises:
        TraceError: It is missing or none.
    """
    value: object = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e18:
        raise TraceError(number, name, value, "a number, at least 0")
    return float(value)


def take_ids(number: int, row: dict[str, Any], name: str) -> tuple[int, ...]:
    """A list of block ids.

    Raises:
        TraceError: It is missing, or holds anything but whole numbers from 0 on.
    """
    value: object = row.get(name)
    try:
        ids = msgspec.convert(value, tuple[int, ...])
    except msgspec.ValidationError:
        raise TraceError(number, name, value, "a list of whole numbers") from None
    if ids and (min(ids) < 0 or max(ids) >= 2**32):
        raise TraceError(number, name, value, "whole numbers from 0 to 2^32 - 1")
    return ids
