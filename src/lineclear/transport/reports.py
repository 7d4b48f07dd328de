"""What a gateway or worker process tells the supervisor that started it: one JSON object a line on its stdout."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from lineclear.base.errors import PeerError
from lineclear.protocol.wire import ModelFacts


class Loading(msgspec.Struct, frozen=True, tag=True):
    """What a worker that is starting is doing."""

    stage: str


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """A worker has loaded its model and said hello to the gateway."""

    model: ModelFacts
    load_seconds: float


class GatewayListening(msgspec.Struct, frozen=True, tag=True):
    """The gateway accepts HTTP connections; requests may still have to wait for a worker."""

    host: str
    port: int


class GatewayServing(msgspec.Struct, frozen=True, tag=True):
    """Which workers the gateway has now, by id; sent when that changes."""

    worker_ids: list[str]
    """Those that take requests."""
    prefill_ids: list[str] = []
    """Those that compute prompts for them."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The process ends for a reason that the next one of its kind would end for too; its last report."""

    message: str


Report: TypeAlias = Loading | WorkerReady | GatewayListening | GatewayServing | Failed
ReportSink: TypeAlias = Callable[[Report], None]

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """The report as one line."""
    return _encoder.encode(report) + b"\n"


def decode_report(line: bytes) -> Report:
    """Read a report's line.

    Raises:
        PeerError: The line is no report.
    """
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise PeerError(f"a process reported nonsense: {error}") from None
