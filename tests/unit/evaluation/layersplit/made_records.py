"""Records that nobody has measured."""

from lineclear.evaluation.layersplit.communication import Communication
from lineclear.evaluation.layersplit.records import Kind, Point, PointKey, Records, Room, Turn
from lineclear.evaluation.layersplit.setting import Setting
from lineclear.kv.layout import PartShape
from lineclear.parallel.build import KvLayout

SHAPE = [PartShape(layer, part, size) for layer in range(5) for part, size in (("latent", 832), ("index", 256))]
SETTING = Setting(lengths=(1000, 2000), num_sessions=2)
SENT = {"0 latent": 3000, "0 index": 1000}


def make_turn(layout: KvLayout, seconds: float) -> Turn:
    is_split = layout == "layersplit"
    return Turn(
        num_prompt_tokens=2000,
        num_hit_tokens=1600,
        num_computed_tokens=398,
        num_steps=2,
        seconds=seconds,
        cpu_seconds=3 * seconds,
        communication=Communication(
            step_seconds=seconds,
            wait_seconds={"index": 0.01, "latent": 0.0, "rows": 0.02, "control": 0.0},
            broadcast_seconds=0.1,
            received_bytes={"index": 1000, "latent": 3000} if is_split else {"index": 0, "latent": 0},
            awaited_bytes={"index": 200, "latent": 0},
            sent_bytes=SENT if is_split else {},
        ),
        batch_bytes=SENT,
        pool_bytes=10**6,
    )


def make_point(length: int, kind: Kind = "rotation", *, seconds: float = 1.0) -> Point:
    turns: dict[KvLayout, Turn] = {
        "replicated": make_turn("replicated", 2 * seconds),
        "layersplit": make_turn("layersplit", seconds),
    }
    key = PointKey(2, kind, length)
    return Point(key=key, num_sessions=2, turns=turns, num_digests=10, num_different=0, load=1.5)


def make_records() -> Records:
    rooms: dict[KvLayout, Room] = {
        "replicated": Room(num_tokens=2000, kv_bytes=10_880_000, staging_bytes=0),
        "layersplit": Room(num_tokens=3312, kv_bytes=10_810_368, staging_bytes=4000),
    }
    points = [make_point(1000, "spare"), make_point(1000), make_point(2000)]
    return Records(setting=SETTING, rooms={2: rooms}, points=points)
