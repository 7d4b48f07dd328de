"""The events of a trace, version 1.

```
 Arrived ── FirstByte ── TokensSent … ── Ended
    └───────── at any moment ──────────▶ Cancelled
```

A trace is a `Header` and then events, one a line. Events of one request are in this order; requests come in any order,
so that a recorder and an importer both can write without holding anything back. Times are seconds since the trace's
start.

A prompt is known by its length and by the ids of its blocks. Equal ids are equal tokens, within the trace. An id that
stands for a block shorter than `block_len`, which only a prompt's last can be, is the beginning of that block. Tokens
past the last id are the request's own: nobody shares them.
"""

from typing import Literal, TypeAlias

import msgspec

VERSION = 1

EndReason: TypeAlias = Literal["stop", "length", "tool_use", "error", "unknown"]


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="event"):
    """What all events of a trace have in common.

    Units: block_len in tokens.
    """

    version: int
    block_len: int
    source: str
    """The format that it was imported from, or who recorded it."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling parameters that a request named; None where it left them to the server."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


class Arrived(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="arrived", tag_field="event"):
    """A request came in.

    Units: at_s in seconds; prompt_len and max_output_len in tokens.
    """

    at_s: float
    request: str
    session: str = ""
    """One agent's chain of requests; empty where the source does not tell."""
    parent: str = ""
    """The session that started this one as its subagent."""
    prompt_len: int
    blocks: tuple[int, ...] = ()
    max_output_len: int | None = None
    sampling: Sampling = Sampling()


class FirstByte(msgspec.Struct, frozen=True, kw_only=True, tag="first_byte", tag_field="event"):
    """The first byte of the answer's body."""

    at_s: float
    request: str


class TokensSent(msgspec.Struct, frozen=True, kw_only=True, tag="tokens", tag_field="event"):
    """So many more tokens of the answer."""

    at_s: float
    request: str
    count: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ended", tag_field="event"):
    """The answer's end.

    `at_s` is None where the source does not tell. Drafts are counted where the server tells.
    """

    at_s: float | None = None
    request: str
    output_len: int
    reason: EndReason = "unknown"
    cached_len: int | None = None
    """Prompt tokens that the server found in its cache."""
    num_drafted: int | None = None
    num_accepted: int | None = None


class Cancelled(msgspec.Struct, frozen=True, kw_only=True, tag="cancelled", tag_field="event"):
    """The client left; `output_len` tokens had come by then."""

    at_s: float
    request: str
    output_len: int


Event: TypeAlias = Arrived | FirstByte | TokensSent | Ended | Cancelled
