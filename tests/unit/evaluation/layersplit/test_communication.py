from pathlib import Path

import pytest

from lineclear.base.errors import InvariantError
from lineclear.evaluation.layersplit import spans as spans_module
from lineclear.evaluation.layersplit.communication import batch_bytes, measure, pool_bytes
from lineclear.evaluation.layersplit.messages import Step
from lineclear.evaluation.layersplit.spans import SpanFile, SpanReader, is_complete
from lineclear.kv.layout import PartShape
from lineclear.parallel.communicator import Lane
from lineclear.parallel.meter import Happening, Span

MS = 1_000_000
SHAPE = [PartShape(0, "latent", 10), PartShape(0, "index", 4), PartShape(1, "latent", 10)]


def span(happening: Happening, part: str, start: int, length: float, num_bytes: int = 0, layer: int = 0) -> Span:
    track = "computing" if happening is Happening.WAIT else part
    return Span(happening, track, layer, part, start * MS, int((start + length) * MS), num_bytes)


OWNER = [
    span(Happening.BROADCAST, "index", 0, 1, 64),
    span(Happening.BROADCAST, "latent", 2, 3, 160),
    span(Happening.WAIT, "index", 1, 0.01),
    span(Happening.WAIT, "latent", 6, 0.01),
]
PEER = [
    span(Happening.RECEIVE, "index", 0, 1, 64),
    span(Happening.RECEIVE, "latent", 2, 3, 160),
    span(Happening.WAIT, "index", 1, 2),
    span(Happening.WAIT, "latent", 6, 0.01),
]


def test_what_passes_waited_for_counts_at_the_peers() -> None:
    measured = measure({0: OWNER, 1: PEER}, [Step(0, 100, 0, 10 * MS)])
    assert measured.sent_bytes == {"0 index": 64, "0 latent": 160}
    assert measured.received_bytes == {"index": 64, "latent": 160}
    assert measured.awaited_bytes == {"index": 64, "latent": 0}
    assert measured.awaited_share() == 64 / 224
    assert measured.awaited_share(Lane.LATENT) == 0
    assert measured.wait_seconds["index"] == pytest.approx((0.00001 + 0.002) / 2)
    assert measured.wait_share == pytest.approx((0.00001 + 0.002 + 0.00002) / 2 / 0.01)
    assert measured.broadcast_seconds == pytest.approx(0.004)


def test_every_arrival_has_its_wait() -> None:
    with pytest.raises(InvariantError, match="1 arrivals of layer 0's latent part, 0 waits"):
        measure({0: OWNER, 1: PEER[:3]}, [])


def test_owners_send_the_blocks_before_each_chunk() -> None:
    steps = [Step(0, 40, 0, 1), Step(40, 60, 1, 2), Step(60, 90, 2, 3)]
    latent = (48 + 64) * 10  # whole blocks; nothing is before the first chunk
    index = 64 * 4  # of the chunk that reaches beyond what is selected
    assert batch_bytes(steps, SHAPE, 16, index_topk=64) == {"0 index": index, "0 latent": latent, "1 latent": latent}
    assert pool_bytes(3, SHAPE, 1000) == 3 * 1000 * 24


def test_spans_come_back_when_all_ranks_have_written_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]
    reader = SpanReader(paths)
    files = [SpanFile(path) for path in paths]
    files[0](OWNER[0])
    reader.skip()
    for file, spans in zip(files, (OWNER, PEER), strict=True):
        for each in spans[:1]:
            file(each)
    monkeypatch.setattr(spans_module, "PATIENCE_SECONDS", 0.0)
    assert reader.read(0) == {0: OWNER[:1], 1: PEER[:1]}
    files[0](OWNER[2])
    with pytest.raises(InvariantError, match="different transfers"):
        reader.read(0)
    files[1](PEER[2])
    assert reader.read(MS) == {0: [OWNER[2]], 1: [PEER[2]]}
    for file in files:
        file.close()


def test_a_broadcast_is_complete_with_all_its_peers() -> None:
    assert is_complete({0: OWNER, 1: PEER})
    assert not is_complete({0: OWNER, 1: PEER[1:]})
    assert not is_complete({0: OWNER, 1: PEER[:3]})
