"""The page of a compression: the chosen network, the frontier as a picture, and all points."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from paceline.compression.result import Compression, Point
from paceline.runtime.report.charts import Scale
from paceline.runtime.report.overview import section
from paceline.runtime.report.page import document

PLACES = {"here": "this machine", "cortex-m4": "a Cortex-M4"}


def page_of(compression: Compression) -> str:
    """Return the HTML, one file that needs no network."""
    body = section("Summary", _summary(compression))
    body += section(
        "Accuracy against cost",
        _picture(compression),
        "Filled points are on the frontier, the one in a ring is chosen; the line is the best accuracy at each cost.",
    )
    body += section("The frontier", _table(compression, compression.frontier))
    body += section("All points", _table(compression, compression.points))
    return document(f"{compression.job}: compressed for {PLACES[compression.target]}", body, "paceline compress")


def _summary(compression: Compression) -> str:
    point = compression.chosen
    lead = (
        "No point is within the bounds."
        if point is None
        else (
            f"{point.precision} at width {point.width:g} ({point.kernel}): {point.accuracy:.2%} on validation data, "
            f"{point.size:,} bytes, {_cost(point)}."
        )
    )
    text = f"The trained model has {compression.trained:.2%} on validation data"
    if compression.trained_on_test is not None:
        text += f" and {compression.trained_on_test:.2%} on test data"
    if compression.on_test is not None and compression.lost is not None:
        text += f"; the chosen network has {compression.on_test:.2%} on test data, {0.0 - compression.lost:+.2f} points"
    bounds = compression.bounds
    text += f". At most {bounds.within:g} points may be lost, which has to be {bounds.confidence:.0%} sure."
    return f'<p class="lead">{escape(lead)}</p><p class="said">{escape(text)}</p>'


def _cost(point: Point) -> str:
    if point.latency is not None:
        return f"{point.latency.p50:.2f} µs (p99 {point.latency.p99:.2f})"
    return f"{point.instructions or 0:,} instructions"


def _picture(compression: Compression) -> str:
    """Points by cost, on a logarithmic axis, and by accuracy; a line of the best accuracy at each cost."""
    costs, shares = ([_cost_of(p) for p in compression.points], [100 * p.accuracy for p in compression.points])
    across, up = Scale(min(costs) / 1.15, max(costs) * 1.15, log=True), Scale(min(shares) - 0.2, max(shares) + 0.2)
    marks = [_line(0, 100 - y, 100, 100 - y, "grid") for y in (_percent(up, value) for value, _ in up.ticks())]
    marks += [_line(x, 0, x, 100, "grid") for x in (_percent(across, value) for value, _ in across.ticks())]

    def place(point: Point) -> tuple[float, float]:
        return _percent(across, _cost_of(point)), 100 - _percent(up, 100 * point.accuracy)

    marks += _edge([place(point) for point in sorted(compression.frontier, key=_cost_of)])
    front = set(map(id, compression.frontier))
    for point in compression.points:
        x, y = (f"{number:.2f}%" for number in place(point))
        filled = "currentColor" if id(point) in front else "var(--paper)"
        what = f"{point.precision}, width {point.width:g}, {point.kernel}: {point.accuracy:.2%}, {_cost(point)}"
        if point is compression.chosen:
            marks.append(f'<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="currentColor"/>')
        marks.append(
            f'<circle cx="{x}" cy="{y}" r="3.5" fill="{filled}" stroke="currentColor">'
            f"<title>{escape(what)}</title></circle>"
        )
    labels = [f'<i class="y" style="top:{100 - _percent(up, v):.2f}%">{text}%</i>' for v, text in up.ticks()]
    labels += [f'<i class="x" style="left:{_percent(across, v):.2f}%">{text}</i>' for v, text in across.ticks()]
    words = ("µs of a call" if compression.target == "here" else "instructions of a call") + ", logarithmic"
    return (
        f'<figure><div class="plot" style="height:20rem;max-width:50rem"><svg role="img" '
        f'aria-label="accuracy against {words}">{"".join(marks)}</svg>{"".join(labels)}</div>'
        f'<div class="axis" style="max-width:50rem">{words}</div></figure>'
    )


def _percent(axis: Scale, value: float) -> float:
    return 100 * float(axis.place(np.array([value]))[0])


def _cost_of(point: Point) -> float:
    return max(point.cost, 1e-3)


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.2f}%" y1="{y:.2f}%" x2="{to_x:.2f}%" y2="{to_y:.2f}%"/>'


def _edge(places: Sequence[tuple[float, float]]) -> list[str]:
    """Steps through the places that are higher than all before them."""
    segments, last = list[str](), None
    for x, y in places:
        if last is None or y < last[1]:
            if last is not None:
                segments += [_line(*last, x, last[1], "rule"), _line(x, last[1], x, y, "rule")]
            last = (x, y)
    return segments


def _table(compression: Compression, points: Sequence[Point]) -> str:
    head = (
        "width",
        "precision",
        "kernel",
        "accuracy",
        "lost at most",
        "bytes",
        "values, bytes",
        "cost of a call",
        "outside",
    )
    rows = "".join(
        f"<tr{' class=chosen' * (point is compression.chosen)}>"
        + "".join(
            f"<td>{escape(cell)}</td>"
            for cell in (
                f"{point.width:g}",
                point.precision,
                point.kernel,
                f"{point.accuracy:.2%}",
                f"{point.lost.most(compression.bounds.confidence):.2f}",
                f"{point.size:,}",
                f"{point.memory:,}",
                _cost(point),
                ", ".join(compression.bounds.faults(point)),
            )
        )
        + "</tr>"
        for point in points
    )
    heads = "".join(f"<th>{word}</th>" for word in head)
    table = f"<table class=forms><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div class=scroll>{table}</div>"
