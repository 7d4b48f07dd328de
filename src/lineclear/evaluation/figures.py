"""Figures that a command prints: one `name: value unit` line each, and the same as a JSON file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `unit` is empty for shares and plain numbers."""

    name: str
    value: float
    """A whole number is shown in full, any other with four digits."""
    unit: str = ""

    def line(self) -> str:
        """The line that is printed."""
        is_whole = float(self.value).is_integer()
        shown = str(int(self.value)) if is_whole else f"{self.value:.4g}"
        return f"{self.name}: {shown} {self.unit}".rstrip()


def print_figures(figures: Iterable[Figure], path: Path | None) -> None:
    """Print each figure as it comes; in the end write `{name: value}` as JSON to `path`, if there is one."""
    values: dict[str, float] = {}
    for figure in figures:
        print(figure.line(), flush=True)
        values[figure.name] = figure.value
    if path is not None:
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
