"""The plot: input throughput over the length of prompts, both layouts. Needs matplotlib: the extra `plots`."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lineclear.base.errors import ConfigError
from lineclear.evaluation.layersplit.records import Point
from lineclear.evaluation.layersplit.setting import LAYOUTS
from lineclear.parallel.build import KvLayout

PLOT_NAME = "throughput.svg"

_MARKERS: dict[KvLayout, str] = {"replicated": "s", "layersplit": "o"}


def require_matplotlib() -> Any:  # noqa: ANN401 - its types come with the extra alone
    """The module that draws, without any window system.

    Raises: ConfigError if it is not installed: before hours of measuring, not after.
    """
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        allowed = f"a run with matplotlib, which draws the plot: pip install 'lineclear[plots]' ({error})"
        raise ConfigError("report", "a report", allowed) from error


def draw_throughput(path: Path, points_by_ranks: dict[int, Sequence[Point]]) -> None:
    """Draw one panel for each number of ranks."""
    figure = require_matplotlib().Figure(figsize=(5.2 * max(1, len(points_by_ranks)), 3.8), layout="constrained")
    panels = figure.subplots(1, max(1, len(points_by_ranks)), squeeze=False)[0]
    for panel, (num_ranks, points) in zip(panels, sorted(points_by_ranks.items()), strict=False):
        lengths = [point.key.length / 1000 for point in points]
        for layout in LAYOUTS:
            rates = [point.turns[layout].tokens_per_s for point in points]
            panel.plot(lengths, rates, marker=_MARKERS[layout], label=layout)
        for point in points:
            rate = max(turn.tokens_per_s for turn in point.turns.values())
            panel.annotate(
                f"{point.ratio:.2f}x",
                (point.key.length / 1000, rate),
                textcoords="offset points",
                xytext=(0, 6),
                ha="center",
            )
        panel.set(title=f"{num_ranks} ranks", xlabel="prompt, thousand tokens", ylabel="input tokens/s")
        fastest = max((turn.tokens_per_s for point in points for turn in point.turns.values()), default=1.0)
        panel.set_ylim(0, 1.2 * fastest)
        panel.legend()
    figure.savefig(path, metadata={"Date": None})
