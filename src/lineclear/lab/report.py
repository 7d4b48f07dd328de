"""One HTML page about an ablation: a picture, a table, and what the numbers mean. No script, nothing to fetch."""

from collections.abc import Sequence
from html import escape

from lineclear.lab.cells import CellOutcome
from lineclear.lab.plan import Plan

_WIDTH, _LABEL, _ROW = 960, 430, 30

_COLUMNS = (
    *(
        "cell",
        "answers",
        "corrupted",
        "in 10,000",
        "exact 95 %",
        "Wilson 95 %",
        "wrong alone",
        "ties",
        "garbled",
        "loops",
    ),
    *("foreign", "left", "errors", "fired", "sanitizer found", "answers/s", "p50 s", "p95 s"),
)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 13px }
td, th { border: 1px solid #ccc; padding: .3em .6em; text-align: right }
td:first-child, th:first-child { text-align: left } .wrong { color: #b00020; font-weight: 600 }
"""


def render_report(plan: Plan, outcomes: Sequence[CellOutcome]) -> str:
    """Return the page."""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(_row(each) for each in outcomes)
    unfired = [f"{each.key}: {', '.join(each.unfired)}" for each in outcomes if each.unfired]
    warning = "".join(f"<p class=wrong>Armed and never fired: {escape(each)}</p>" for each in unfired)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(plan.name)}</title>
<style>{_STYLE}</style><h1>{escape(plan.name)}</h1>
<p>{plan.requests} requests a cell, seed {plan.seed}. An answer is corrupted if it differs from that of the same
request alone, and not by a near tie. Bars are 95 % intervals (Clopper and Pearson); where none was found, the end of
the bar is what that bounds.</p>{warning}
{_plot(outcomes)}
<h2>Cells</h2><table><tr>{head}</tr>{rows}</table></html>
"""


def _row(each: CellOutcome) -> str:
    mark = ' class="wrong"' if each.num_corrupted else ""
    cells = [
        str(each.num_answers),
        f"<span{mark}>{each.num_corrupted}</span>",
        f"{each.in_10000:.1f}",
        _bounds(each.exact_in_10000),
        _bounds(each.wilson_in_10000),
        str(each.num_corrupted_alone),
        str(each.num_ties),
        str(each.num_garbled),
        str(each.num_loops),
        str(each.num_foreign),
        str(each.num_left),
        _counts(each.errors),
        _counts(each.firings),
        _counts({kind: count for kind, count in each.sanitizer_faults.items() if count}),
        f"{each.answers_per_second:.2f}",
        _seconds(each.seconds_p50),
        _seconds(each.seconds_p95),
    ]
    return f"<tr><td>{escape(each.key)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _plot(outcomes: Sequence[CellOutcome]) -> str:
    most = max([each.exact_in_10000[1] for each in outcomes] or [1.0])
    scale = (_WIDTH - _LABEL - 90) / most
    marks: list[str] = []
    for idx, each in enumerate(outcomes):
        y = 20 + idx * _ROW
        low, high = each.exact_in_10000
        x = _LABEL + each.in_10000 * scale
        colour = "#b00020" if each.num_corrupted else "#2a7f3f"
        marks.append(
            f'<text x="{_LABEL - 8}" y="{y + 4}" text-anchor="end" font-size="11">{escape(each.key)}</text>'
            f'<line x1="{_LABEL + low * scale:.1f}" x2="{_LABEL + high * scale:.1f}" y1="{y}" y2="{y}" '
            f'stroke="{colour}" stroke-width="3"/><circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}"/>'
            f'<text x="{_LABEL + high * scale + 8:.1f}" y="{y + 4}" font-size="11">{each.in_10000:.0f}</text>'
        )
    height = 40 + len(outcomes) * _ROW
    axis = f'<line x1="{_LABEL}" x2="{_LABEL}" y1="6" y2="{height - 26}" stroke="#888"/>'
    legend = f'<text x="{_LABEL}" y="{height - 8}" font-size="12">corrupted answers in 10,000 (0 to {most:.0f})</text>'
    return f'<svg width="{_WIDTH}" height="{height}" role="img">{axis}{"".join(marks)}{legend}</svg>'


def _bounds(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.1f} to {bounds[1]:.1f}"


def _counts(counts: dict[str, int]) -> str:
    return escape(", ".join(f"{name} {count}" for name, count in counts.items())) or "none"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"
