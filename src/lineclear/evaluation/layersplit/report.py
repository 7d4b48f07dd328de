"""The report of a run: `table.md`, the plot, a timeline of one step of each layout, and the records themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lineclear.evaluation.layersplit.plot import PLOT_NAME, draw_throughput
from lineclear.evaluation.layersplit.projection import SGLANG_CAPACITY_RATIO, Projection
from lineclear.evaluation.layersplit.records import Point, Records
from lineclear.evaluation.layersplit.setting import LAYOUTS, wanted_capacity
from lineclear.evaluation.layersplit.spans import SpansByRank
from lineclear.evaluation.layersplit.summary import CHUNK_LEN, points_of
from lineclear.kv.layout import PartShape
from lineclear.parallel.build import KvLayout
from lineclear.parallel.communicator import Lane
from lineclear.parallel.timeline import write_timeline

RECORDS_NAME = "records.json"
TABLE_NAME = "table.md"


@dataclass(frozen=True, slots=True)
class Target:
    """What was wanted, and what is."""

    what: str
    wanted: str
    measured: float
    is_met: bool

    def row(self) -> str:
        """A line of the table."""
        return f"| {self.what} | {self.wanted} | {self.measured:.3g} | {'yes' if self.is_met else 'no'} |"


def write_report(folder: Path, records: Records, shape: Sequence[PartShape]) -> None:
    """Write table and plot of what there is by now."""
    (folder / TABLE_NAME).write_text("\n".join(_table(records, shape)) + "\n", encoding="utf-8")
    draw_throughput(folder / PLOT_NAME, {n: points_of(records, n, "rotation") for n in records.rooms})


def write_traces(path: Path, layout: KvLayout, spans: SpansByRank) -> None:
    """Write a step's timeline: LayerSplit's to the path itself, that of replicated ranks beside it."""
    write_timeline(trace_path(path, layout), spans)


def trace_path(path: Path, layout: KvLayout) -> Path:
    """Where a layout's timeline goes."""
    return path if layout == "layersplit" else path.with_name(f"{path.stem}-{layout}{path.suffix}")


def targets(records: Records, num_ranks: int, num_layers: int) -> Iterator[Target]:
    """What is wanted of one number of ranks, as far as it was measured."""
    rooms = records.rooms[num_ranks]
    fit_ratio = rooms["layersplit"].num_tokens / rooms["replicated"].num_tokens
    wanted = wanted_capacity(num_layers, num_ranks)
    yield Target("tokens that fit, LayerSplit / replicated", f">= {wanted:.3g}", fit_ratio, fit_ratio >= wanted)
    for point in points_of(records, num_ranks):
        if point.has_equal_hits:
            for what, ratio in (("input throughput", point.ratio), ("the same by core time", point.work_ratio)):
                yield Target(f"{what}, equal hits at {point.key.length:,}", ">= 0.97", ratio, ratio >= 0.97)
    rotation = points_of(records, num_ranks, "rotation")
    for length, least in ((40_000, 1.10), (120_000, 2.3)):
        for point in rotation:
            if point.key.length == length:
                yield Target(f"input throughput at {length:,}", f">= {least}", point.ratio, point.ratio >= least)
    for point in rotation:
        spoken, name = point.turns["layersplit"].communication, f"{point.key.length:,}"
        bytes_share, latent, share = spoken.awaited_share(), spoken.awaited_share(Lane.LATENT), spoken.wait_share
        yield Target(f"waited-for share of bytes at {name}", "<= 0.125", bytes_share, bytes_share <= 0.125)
        yield Target(f"waited-for share of the latent part at {name}", "0", latent, latent == 0)
        yield Target(f"waits for broadcasts / step time at {name}", "<= 0.05", share, share <= 0.05)


def _table(records: Records, shape: Sequence[PartShape]) -> Iterator[str]:
    num_layers = len({part.layer for part in shape})
    setting = records.setting
    yield (
        f"{setting.num_sessions} sessions in rotation, {setting.seen_share:.0%} of each prompt asked before, "
        f"steps of at most {setting.max_batch_tokens:,} tokens."
    )
    for num_ranks, rooms in sorted(records.rooms.items()):
        yield f"\n### {num_ranks} ranks\n"
        yield "| layout | tokens that fit | KV, MB a rank | staging, MB a rank |\n|---|---:|---:|---:|"
        for layout in LAYOUTS:
            room = rooms[layout]
            yield f"| {layout} | {room.num_tokens:,} | {room.kv_bytes / 1e6:.1f} | {room.staging_bytes / 1e6:.1f} |"
        yield from _throughput_table(points_of(records, num_ranks))
        yield from _communication_table(points_of(records, num_ranks))
        yield "\n| target | wanted | measured | met |\n|---|---|---:|---|"
        yield from (target.row() for target in targets(records, num_ranks, num_layers))
    yield from _projection_table(setting.lengths, setting.seen_share)
    yield f"\nChecks that failed: {len(records.problems)}."
    yield from (f"- {problem}" for problem in records.problems)


def _throughput_table(points: Sequence[Point]) -> Iterator[str]:
    yield (
        "\n| prompts | sessions | replicated, tokens/s | hits "
        "| LayerSplit, tokens/s | hits | ratio | ratio by core time "
        "| machine load |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for point in points:
        cells = [f"{point.turns[each].tokens_per_s:,.0f} | {point.turns[each].hit_share:.0%}" for each in LAYOUTS]
        ratios = f"{point.ratio:.2f} | {point.work_ratio:.2f}"
        yield f"| {_named(point)} | {point.num_sessions} | {' | '.join(cells)} | {ratios} | {point.load:.1f} |"


def _communication_table(points: Sequence[Point]) -> Iterator[str]:
    yield (
        "\n| LayerSplit, prompts | sent, MB | running batch, MB | whole pool, MB | waited-for share of bytes "
        "| of the latent part | waits for broadcasts / step time | waits for rows | replicated: waits for rows |"
        "\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for point in points:
        split, base = point.turns["layersplit"], point.turns["replicated"].communication
        spoken = split.communication
        sizes = (sum(spoken.sent_bytes.values()), sum(split.batch_bytes.values()), split.pool_bytes)
        rows = [each.wait_seconds[Lane.ROWS.value] / each.step_seconds for each in (spoken, base)]
        shares = (spoken.awaited_share(), spoken.awaited_share(Lane.LATENT), spoken.wait_share, *rows)
        cells = [f"{size / 1e6:,.1f}" for size in sizes] + [f"{share:.1%}" for share in shares]
        yield f"| {_named(point)} | {' | '.join(cells)} |"


def _projection_table(lengths: Sequence[int], seen_share: float) -> Iterator[str]:
    projection = Projection()
    capacity = projection.capacity(max(lengths), CHUNK_LEN)
    yield "\n### GLM-5.1 on eight H200: a projection from peaks, not a measurement\n"
    yield (
        f"78 layers on 8 ranks: {projection.layers_ratio():.2f} times the tokens (SGLang: {SGLANG_CAPACITY_RATIO}); "
        f"with draft layer and staging {capacity.ratio:.2f}: {capacity.layersplit_tokens:,} instead of "
        f"{capacity.replicated_tokens:,}."
    )
    yield (
        "\n| prompts | latent, MB a layer | index, MB a layer | latent broadcast, us | index broadcast, us "
        "| scores, us | a layer's compute, us | broadcasts / compute | throughput, all found / nothing found |"
        "\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for length in lengths:
        step = projection.layer_step(int(length * seen_share), CHUNK_LEN)
        sizes = (step.latent_bytes, step.index_bytes)
        times = (
            step.latent_broadcast_seconds,
            step.index_broadcast_seconds,
            step.score_seconds,
            step.compute_seconds,
        )
        cells = [f"{size / 1e6:.1f}" for size in sizes] + [f"{each * 1e6:.0f}" for each in times]
        cells += [f"{step.broadcast_share:.1%}", f"{projection.throughput_bound(length, seen_share):.1f}"]
        yield f"| {length:,} | {' | '.join(cells)} |"


def _named(point: Point) -> str:
    return f"{point.key.length:,}{', memory to spare' if point.key.kind == 'spare' else ''}"
