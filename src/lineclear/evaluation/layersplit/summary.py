"""Figures of what was recorded, in the order of the report; the names begin with the ranks and the length."""

from collections.abc import Iterable, Iterator, Sequence

from lineclear.evaluation.figures import Figure
from lineclear.evaluation.layersplit.projection import SGLANG_CAPACITY_RATIO, Projection
from lineclear.evaluation.layersplit.records import Kind, Point, Records, Room
from lineclear.evaluation.layersplit.setting import LAYOUTS, wanted_capacity
from lineclear.kv.layout import PartShape
from lineclear.parallel.build import KvLayout
from lineclear.parallel.communicator import Lane

CHUNK_LEN = 8192
"""Tokens of a projected step: the default chunk of large engines on such GPUs."""


def figures(records: Records, shape: Sequence[PartShape]) -> Iterator[Figure]:
    """All that is there; `shape` is that of all layers."""
    num_layers = len({part.layer for part in shape})
    for num_ranks, rooms in sorted(records.rooms.items()):
        yield from _room_figures(num_ranks, rooms, num_layers)
        for point in points_of(records, num_ranks):
            yield from point_figures(point)
        yield from _joint_figures(num_ranks, points_of(records, num_ranks, "rotation"))
    yield from projected_figures(records.setting.lengths, records.setting.seen_share)
    yield Figure("problems", len(records.problems))


def points_of(records: Records, num_ranks: int, kind: Kind | None = None) -> list[Point]:
    """By length."""
    points = [point for point in records.points if point.key.num_ranks == num_ranks and kind in (None, point.key.kind)]
    return sorted(points, key=lambda point: (point.key.kind == "rotation", point.key.length))


def point_figures(point: Point) -> Iterator[Figure]:
    """Of one point."""
    name = point_name(point)
    yield Figure(f"{name}_sessions", point.num_sessions)
    for layout in LAYOUTS:
        turn = point.turns[layout]
        yield Figure(f"{name}_{layout}_input", turn.tokens_per_s, "tokens/s")
        yield Figure(f"{name}_{layout}_hit_share", turn.hit_share)
        yield Figure(f"{name}_{layout}_cores", turn.cpu_seconds, "s")
    yield Figure(f"{name}_input_ratio", point.ratio)
    yield Figure(f"{name}_input_ratio_of_core_time", point.work_ratio)
    for layout in LAYOUTS:
        turn = point.turns[layout].communication
        for lane, seconds in turn.wait_seconds.items():
            if layout == "layersplit" or lane not in {Lane.INDEX.value, Lane.LATENT.value}:
                yield Figure(f"{name}_{layout}_wait_{lane}_share", seconds / turn.step_seconds)
    split = point.turns["layersplit"]
    spoken = split.communication
    yield Figure(f"{name}_layersplit_step", spoken.step_seconds / max(1, split.num_steps), "s")
    yield Figure(f"{name}_broadcast_wait_share", spoken.wait_share)
    yield Figure(f"{name}_awaited_bytes_share", spoken.awaited_share())
    yield Figure(f"{name}_awaited_latent_share", spoken.awaited_share(Lane.LATENT))
    yield Figure(f"{name}_awaited_index_share", spoken.awaited_share(Lane.INDEX))
    yield Figure(f"{name}_sent", sum(spoken.sent_bytes.values()) / 1e6, "MB")
    yield Figure(f"{name}_running_batch", sum(split.batch_bytes.values()) / 1e6, "MB")
    yield Figure(f"{name}_whole_pool", split.pool_bytes / 1e6, "MB")
    yield Figure(f"{name}_parts_compared", point.num_digests)
    yield Figure(f"{name}_parts_different", point.num_different)
    yield Figure(f"{name}_machine_load", point.load)


def point_name(point: Point) -> str:
    """What the names of its figures begin with."""
    spare = "_spare" if point.key.kind == "spare" else ""
    return f"n{point.key.num_ranks}_{point.key.length}{spare}"


def projected_figures(lengths: Iterable[int], seen_share: float) -> Iterator[Figure]:
    """What the same ownership should give GLM-5.1 on eight H200; see `projection.py`."""
    projection = Projection()
    longest = max(lengths)
    capacity = projection.capacity(longest, CHUNK_LEN)
    yield Figure("glm5_78_layers_8_ranks_capacity_ratio", projection.layers_ratio())
    yield Figure("glm5_78_layers_8_ranks_capacity_ratio_sglang", SGLANG_CAPACITY_RATIO)
    yield Figure("h200_replicated_fit", capacity.replicated_tokens, "tokens")
    yield Figure("h200_layersplit_fit", capacity.layersplit_tokens, "tokens")
    yield Figure("h200_capacity_ratio_after_staging", capacity.ratio)
    for length in sorted({min(lengths), longest}):
        step = projection.layer_step(int(length * seen_share), CHUNK_LEN)
        yield Figure(f"h200_{length}_layer_latent", step.latent_bytes / 1e6, "MB")
        yield Figure(f"h200_{length}_layer_index", step.index_bytes / 1e6, "MB")
        yield Figure(f"h200_{length}_layer_latent_broadcast", step.latent_broadcast_seconds * 1e6, "us")
        yield Figure(f"h200_{length}_layer_index_broadcast", step.index_broadcast_seconds * 1e6, "us")
        yield Figure(f"h200_{length}_layer_scores", step.score_seconds * 1e6, "us")
        yield Figure(f"h200_{length}_layer_compute", step.compute_seconds * 1e6, "us")
        yield Figure(f"h200_{length}_broadcast_share_of_compute", step.broadcast_share)
        yield Figure(f"h200_{length}_input_ratio_bound", projection.throughput_bound(length, seen_share))


def _room_figures(num_ranks: int, rooms: dict[KvLayout, Room], num_layers: int) -> Iterator[Figure]:
    for layout in LAYOUTS:
        room = rooms[layout]
        yield Figure(f"n{num_ranks}_{layout}_fit", room.num_tokens, "tokens")
        yield Figure(f"n{num_ranks}_{layout}_kv", room.kv_bytes / 1e6, "MB a rank")
    yield Figure(f"n{num_ranks}_layersplit_staging", rooms["layersplit"].staging_bytes / 1e6, "MB a rank")
    yield Figure(f"n{num_ranks}_fit_ratio", rooms["layersplit"].num_tokens / rooms["replicated"].num_tokens)
    yield Figure(f"n{num_ranks}_fit_ratio_wanted", wanted_capacity(num_layers, num_ranks))


def _joint_figures(num_ranks: int, points: Sequence[Point]) -> Iterator[Figure]:
    """Of all lengths together."""
    if not points:
        return
    spoken = [point.turns["layersplit"].communication for point in points]
    lanes = (Lane.INDEX.value, Lane.LATENT.value)
    received = sum(each.received_bytes[lane] for each in spoken for lane in lanes)
    awaited = sum(each.awaited_bytes[lane] for each in spoken for lane in lanes)
    waited = sum(each.wait_seconds[lane] for each in spoken for lane in lanes)
    yield Figure(f"n{num_ranks}_awaited_bytes_share", awaited / received if received else 0.0)
    yield Figure(f"n{num_ranks}_broadcast_wait_share", waited / sum(each.step_seconds for each in spoken))
