"""Server-sent events, as far as they are needed.

Source: WHATWG HTML, "Server-sent events": an event is `data:` lines and an empty line; a line that begins with a colon
is a comment.
"""

from collections.abc import Mapping

import msgspec

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, and neither they nor what lies between take the silence for an end."""

_encoder = msgspec.json.Encoder()

_LINE_SEPARATORS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
"""Characters that some clients take for the end of a line."""


def encode_json(value: object) -> bytes:
    """A value as JSON on one line, by anybody's idea of a line."""
    data = _encoder.encode(value)
    if not data.isascii():
        for separator, escaped in _LINE_SEPARATORS:
            data = data.replace(separator, escaped)
    return data


def event(data: bytes) -> bytes:
    """An event that carries the data."""
    return b"data: " + data + b"\n\n"


def typed_event(fields: Mapping[str, object]) -> bytes:
    """An event whose name is the `type` of the object that it carries."""
    return b"event: " + str(fields["type"]).encode() + b"\n" + event(encode_json(fields))


def comment(data: bytes) -> bytes:
    """A comment on one line."""
    return b": " + data + b"\n\n"
