import pytest

from lineclear.base.errors import PeerError
from lineclear.transport.reports import (
    GatewayListening,
    GatewayServing,
    Loading,
    Report,
    WorkerReady,
    decode_report,
    encode_report,
)
from tests.unit.transport.model_facts import FACTS


@pytest.mark.parametrize(
    "report",
    [
        Loading("weights"),
        WorkerReady(FACTS, 1.5),
        GatewayListening("::1", 80),
        GatewayServing(["decode-0"], ["prefill-0"]),
    ],
)
def test_a_report_is_one_line(report: Report) -> None:
    line = encode_report(report)
    assert line.index(b"\n") == len(line) - 1
    assert decode_report(line) == report


@pytest.mark.parametrize("line", [b"", b"hello\n", b'{"type":"Loading"}\n', b'{"type":"Other"}\n'])
def test_nonsense_is_refused(line: bytes) -> None:
    with pytest.raises(PeerError):
        decode_report(line)
