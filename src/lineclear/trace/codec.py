"""Lines of a trace file and back.

A session's prompt begins as the one before it, so a line has how many blocks are kept and then the others: `keep` and
`blocks`. Encoder and decoder therefore remember the last prompt of each session, and nothing else.

A file that a crash cut ends in a line without its newline: whoever reads files leaves that line out (`lab.files`).
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from lineclear.base.errors import TraceError
from lineclear.trace.events import VERSION, Arrived, Cancelled, Ended, Event, FirstByte, Header, TokensSent


class _ArrivedLine(Arrived, frozen=True, kw_only=True, omit_defaults=True, tag="arrived", tag_field="event"):
    """`blocks` are those after the first `keep` of the session's prompt before."""

    keep: int = 0


_LINE = msgspec.json.Decoder(_ArrivedLine | FirstByte | TokensSent | Ended | Cancelled)
_HEADER = msgspec.json.Decoder(Header)


class TraceEncoder:
    """Events to lines, each with its newline."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, ...]] = {}
        self._encoder = msgspec.json.Encoder()

    def header(self, header: Header) -> bytes:
        """The first line."""
        return self._encoder.encode(header) + b"\n"

    def line(self, event: Event) -> bytes:
        """The line of one event; events must be encoded in the order in which they are written."""
        return self._encoder.encode(self._shortened(event) if isinstance(event, Arrived) else event) + b"\n"

    def _shortened(self, event: Arrived) -> Arrived:
        keep = common_prefix_len(self._last.get(event.session, ()), event.blocks) if event.session else 0
        if event.session:
            self._last[event.session] = event.blocks
        return _ArrivedLine(**_fields(event, event.blocks[keep:]), keep=keep)


class TraceDecoder:
    """Lines to events, with what is wrong named by line."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, ...]] = {}
        self._num_lines = 0
        self._block_len = 0

    def header(self, line: bytes) -> Header:
        """The first line.

        Raises:
            TraceError: It is none, or of a version that is not known here.
        """
        self._num_lines = 1
        try:
            header = _HEADER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(1, "header", _shown(line), f"the header of a trace ({error})") from None
        if header.version != VERSION:
            raise TraceError(1, "version", header.version, f"{VERSION}")
        if header.block_len < 1:
            raise TraceError(1, "block_len", header.block_len, "at least 1")
        self._block_len = header.block_len
        return header

    def event(self, line: bytes) -> Event:
        """The next line.

        Raises:
            TraceError: It is no event, or one that cannot be.
        """
        self._num_lines += 1
        try:
            event = _LINE.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(self._num_lines, "event", _shown(line), f"an event of a trace ({error})") from None
        if event.at_s is not None and event.at_s < 0:
            raise TraceError(self._num_lines, "at_s", event.at_s, "at least 0")
        return self._whole(event) if isinstance(event, _ArrivedLine) else self._counted(event)

    def _whole(self, line: _ArrivedLine) -> Arrived:
        last = self._last.get(line.session, ()) if line.session else ()
        if not 0 <= line.keep <= len(last):
            raise TraceError(self._num_lines, "keep", line.keep, f"0 to {len(last)}, the session's prompt before")
        blocks = last[: line.keep] + line.blocks
        problem = prompt_problem(line.prompt_len, len(blocks), self._block_len)
        if problem is not None:
            raise TraceError(self._num_lines, "prompt_len", line.prompt_len, problem)
        if line.session:
            self._last[line.session] = blocks
        return Arrived(**_fields(line, blocks))

    def _counted(self, event: FirstByte | TokensSent | Ended | Cancelled) -> Event:
        count = 0
        match event:
            case TokensSent():
                count = event.count
            case Ended() | Cancelled():
                count = event.output_len
            case FirstByte():
                pass
        if count < 0:
            raise TraceError(self._num_lines, "tokens", count, "at least 0")
        return event


def prompt_problem(prompt_len: int, num_blocks: int, block_len: int) -> str | None:
    """What a prompt's length must be, where it and its number of blocks do not fit together."""
    if prompt_len < 1:
        return "at least 1"
    if num_blocks * block_len >= prompt_len + block_len:
        return f"more than {(num_blocks - 1) * block_len}, as {num_blocks} blocks of {block_len} tokens begin within it"
    return None


def common_prefix_len(one: Sequence[int], other: Sequence[int]) -> int:
    """How many items both begin with. Cost: O(log n) comparisons of slices, O(n) items."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _fields(arrived: Arrived, blocks: tuple[int, ...]) -> dict[str, Any]:
    fields = {name: getattr(arrived, name) for name in Arrived.__struct_fields__}
    fields["blocks"] = blocks
    return fields


def _shown(line: bytes) -> str:
    return line[:200].decode("utf-8", "replace")
