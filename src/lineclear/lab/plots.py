"""Plots of traces. They need matplotlib: the extra `plots`."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lineclear.base.errors import ConfigError
from lineclear.lab.summary import Summary


def require_matplotlib(field: str) -> Any:  # noqa: ANN401 - its types come with the extra alone
    """The module that draws, without any window system.

    Raises:
        ConfigError: It is not installed; names the flag that needs it.
    """
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        allowed = f"an installation with matplotlib: pip install 'lineclear[plots]' ({error})"
        raise ConfigError(field, "a plot", allowed) from error


def draw_summary(path: Path, summary: Summary) -> None:
    """Draw lengths, new tokens, hits by capacity, and concurrency; the suffix of `path` is the format."""
    figure = require_matplotlib("plot").Figure(figsize=(11, 7.5), layout="constrained")
    lengths, fresh, hits, load = figure.subplots(2, 2).flat
    _shares(lengths, [each.arrived.prompt_len for each in summary.requests], "prompt")
    _shares(lengths, [each.output_len for each in summary.requests], "output")
    lengths.set(title="Lengths", xlabel="tokens", ylabel="share of requests at most so long", xscale="log")
    _shares(fresh, summary.new_tokens, "new")
    fresh.set(title="New tokens per turn", xlabel="tokens", ylabel="share of turns with at most so many", xscale="log")
    bounded = [each for each in summary.hit_rates if each.capacity_tokens is not None]
    hits.plot([each.capacity_tokens for each in bounded], [each.rate for each in bounded], marker="o", label="LRU")
    hits.axhline(summary.hit_rates[-1].rate, color="gray", linestyle="--", label="without bound")
    hits.set(
        title="Prefix hits", xlabel="capacity, tokens", ylabel="share of prompt tokens", xscale="log", ylim=(0, 1.02)
    )
    load.step(
        [at_s for at_s, _ in summary.num_open], [count for _, count in summary.num_open], where="post", label="open"
    )
    load.set(title="Concurrency", xlabel="seconds", ylabel="open requests")
    for panel in (lengths, fresh, hits, load):
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _shares(panel: Any, values: Sequence[int], label: str) -> None:  # noqa: ANN401 - see `require_matplotlib`
    ordered = sorted(max(1, each) for each in values)
    if ordered:
        panel.step(ordered, [(idx + 1) / len(ordered) for idx in range(len(ordered))], where="post", label=label)
