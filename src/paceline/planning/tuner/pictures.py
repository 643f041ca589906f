"""Pictures of a tuning as SVG: slices, parallel coordinates, and what each worker did when."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from paceline.planning.tuner.study import FAILURE, STOPPED, TrialRecord
from paceline.runtime.report.charts import SIDE, ticks
from paceline.runtime.report.formatting import number

MOST = 2000  # trials in a picture
HEIGHT = 0.09  # of a line of text, as a share of the picture's
WIDTH = 0.03  # of a letter


class Axis(NamedTuple):
    """An axis with a place from 0 to 1 for each value."""

    name: str
    place: Callable[[Any], float]
    marks: list[tuple[float, str]]


def axis_of(name: str, values: Sequence[Any], log: bool = False) -> Axis:
    """Return an axis for these values: a scale for numbers, a place each for anything else."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        words = sorted({str(value) for value in values})
        places = {word: (at + 0.5) / len(words) for at, word in enumerate(words)}
        return Axis(name, lambda value: places[str(value)], [(at, word) for word, at in places.items()])
    low, high = float(min(values)), float(max(values))
    if log and low > 0:
        return _logarithmic(name, low, high)
    width = (high - low) or 1.0
    marks = [((value - low) / width, text) for value, text in ticks(low, high, 4)]
    return Axis(name, lambda value: (float(value) - low) / width, marks)


def _logarithmic(name: str, low: float, high: float) -> Axis:
    span = math.log(high / low) or 1.0
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    values = [10.0**power for power in powers] if len(powers) > 1 else [low, high]
    marks = [(math.log(value / low) / span, number(value)) for value in values]
    return Axis(name, lambda value: math.log(float(value) / low) / span, marks)


def slice_of(axis: Axis, values: Axis, points: Sequence[tuple[Any, float | None, int, bool]]) -> str:
    """Draw the metric over one parameter: (parameter, metric, trial, whether it is the best) for each trial."""
    spots = "".join(
        f'<path class="dots{" loud" * best}" style="stroke:var(--{"run-1" if best else "run-0"});opacity:'
        f'{1 if best else 0.5}" d="M{axis.place(x) * SIDE:.0f} {(1 - values.place(y)) * SIDE:.0f}h0">'
        f"<title>trial {trial}: {escape(f'{axis.name}={x}')}, {number(y, 4)}</title></path>"
        for x, y, trial, best in points[:MOST]
        if y is not None
    )
    return _figure(f"{values.name} by {axis.name}", spots, _below(axis) + _beside(values), axis.name)


def parallel(axes: Sequence[Axis], rows: Sequence[tuple[list[Any], float, int]]) -> str:
    """Draw a line for each trial through its values on all axes; the last axis is the metric. Good ones are dark."""
    gap = SIDE / max(1, len(axes) - 1)
    lines, words = "", ""
    crowded = sum(len(axis.name) for axis in axes) * WIDTH > 1
    at_edge = ";transform:translateX(-100%)"
    for values, goodness, trial in sorted(rows, key=lambda row: row[1])[-MOST:]:
        points = [
            (n * gap, (1 - a.place(v)) * SIDE)
            for n, (a, v) in enumerate(zip(axes, values, strict=True))
            if v is not None
        ]
        path = "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
        colour, opacity = ("run-1", 0.9) if goodness >= 0.9 else ("run-0", 0.12 + 0.4 * goodness)
        lines += (
            f'<path class="line" style="stroke:var(--{colour});opacity:{opacity:.2f}" d="M{path}">'
            f"<title>trial {trial}</title></path>"
        )
    for place, axis in enumerate(axes):
        lines += f'<path class="grid" d="M{place * gap:.0f} 0v{SIDE}"/>'
        left = place / max(1, len(axes) - 1)
        moved = f"margin-top:{1.1 * (place % 2 and crowded)}em{at_edge * (axis is axes[-1])}"
        words += f'<i class="x" style="left:{left:.1%};{moved}">{escape(axis.name)}</i>'
        for at, text in _apart(axis.marks, [HEIGHT] * len(axis.marks)):
            words += f'<i style="left:{left:.1%};top:{1 - at:.1%}">{escape(text)}</i>'
    return _figure("All parameters and the metric", lines, words, "\N{NO-BREAK SPACE}", "wide")


def workers(trials: Sequence[TrialRecord]) -> str:
    """Draw which worker trained which trial when."""
    spans = [(worker, begin, end, trial) for trial in trials for worker, begin, end in trial.spans]
    if not spans:
        return ""
    last = max(end for _, _, end, _ in spans) or 1.0
    lanes = sorted({worker for worker, *_ in spans})
    rows, words = "", ""
    for worker, begin, end, trial in spans[: 4 * MOST]:
        colour = {FAILURE: "bad", STOPPED: "run-other"}.get(trial.status, f"run-{trial.number % 8}")
        top, width = lanes.index(worker) / len(lanes) * SIDE, max(1.0, (end - begin) / last * SIDE)
        rows += (
            f'<rect x="{begin / last * SIDE:.1f}" y="{top + 40 / len(lanes):.1f}" width="{width:.1f}" '
            f'height="{SIDE / len(lanes) * 0.9:.1f}" style="fill:var(--{colour})"><title>trial {trial.number}: '
            f"{end - begin:.2f} s</title></rect>"
        )
    for place, worker in enumerate(lanes):
        words += f'<i class="y" style="top:{(place + 0.5) / len(lanes):.1%}">worker {worker}</i>'
    words += _below(axis_of("seconds", [0.0, last]))
    return _figure("What each worker trained", rows, words, "seconds", "wide")


def _below(axis: Axis) -> str:
    shown = _apart(axis.marks, [WIDTH * len(text) for _, text in axis.marks])
    return "".join(f'<i class="x" style="left:{at:.1%}">{escape(text)}</i>' for at, text in shown)


def _beside(axis: Axis) -> str:
    shown = _apart(axis.marks, [HEIGHT] * len(axis.marks))
    return "".join(f'<i class="y" style="top:{1 - at:.1%}">{escape(text)}</i>' for at, text in shown)


def _apart(marks: Sequence[tuple[float, str]], sizes: Sequence[float]) -> list[tuple[float, str]]:
    """Return the marks without those whose text would cover that of the one before."""
    shown: list[tuple[float, str]] = []
    end = -math.inf
    for mark, size in sorted(zip(marks, sizes, strict=True)):
        if mark[0] - size / 2 >= end:
            shown.append(mark)
            end = mark[0] + size / 2
    return shown


def _figure(title: str, drawn: str, words: str, below: str, css: str = "") -> str:
    title = escape(title)
    return (
        f'<figure class="chart {css}"><figcaption>{title}</figcaption><div class="plot">'
        f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" aria-label="{title}">{drawn}</svg>'
        f'{words}</div><div class="axis">{escape(below)}</div></figure>'
    )
