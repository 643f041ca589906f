"""The page of a compression: the chosen network, the frontier as a picture, and all points."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from paceline.compression.points import Point
from paceline.compression.result import Compression
from paceline.runtime.report.charts import Scale
from paceline.runtime.report.overview import section
from paceline.runtime.report.page import document

PLACES = {"here": "this machine", "cortex-m4": "a Cortex-M4"}


def page_of(found: Compression) -> str:
    """Return the HTML, one file that needs no network."""
    body = section("Summary", _summary(found))
    body += section(
        "Accuracy against cost",
        _picture(found),
        "Filled points are on the frontier, the one in a ring is chosen; the line is the best accuracy at each cost.",
    )
    body += section("The frontier", _table(found, found.frontier))
    body += section("All points", _table(found, found.points))
    return document(f"{found.job}: compressed for {PLACES[found.target]}", body, "paceline compress")


def _summary(found: Compression) -> str:
    point = found.chosen
    lead = "No point is within the bounds." if point is None else (
        f"{point.precision} at width {point.width:g} ({point.kernel}): {point.accuracy:.2%} on validation data, "
        f"{point.size:,} bytes, {_cost(point)}."
    )  # fmt: skip
    said = f"The trained model has {found.trained:.2%} on validation data"
    if found.trained_on_test is not None:
        said += f" and {found.trained_on_test:.2%} on test data"
    if found.on_test is not None and found.lost is not None:
        said += f"; the chosen network has {found.on_test:.2%} on test data, {0.0 - found.lost:+.2f} points"
    said += f". At most {found.bounds.within:g} points may be lost, which has to be {found.bounds.confidence:.0%} sure."
    return f'<p class="lead">{escape(lead)}</p><p class="said">{escape(said)}</p>'


def _cost(point: Point) -> str:
    if point.latency is not None:
        return f"{point.latency.p50:.2f} µs (p99 {point.latency.p99:.2f})"
    return f"{point.instructions or 0:,} instructions"


def _picture(found: Compression) -> str:
    """Points by cost, on a logarithmic axis, and by accuracy; a line of the best accuracy at each cost."""
    costs, shares = ([_cost_of(p) for p in found.points], [100 * p.accuracy for p in found.points])
    across, up = Scale(min(costs) / 1.15, max(costs) * 1.15, log=True), Scale(min(shares) - 0.2, max(shares) + 0.2)
    marks = [_line(0, 100 - y, 100, 100 - y, "grid") for y in (_percent(up, value) for value, _ in up.ticks())]
    marks += [_line(x, 0, x, 100, "grid") for x in (_percent(across, value) for value, _ in across.ticks())]

    def place(point: Point) -> tuple[float, float]:
        return _percent(across, _cost_of(point)), 100 - _percent(up, 100 * point.accuracy)

    marks += _edge([place(point) for point in sorted(found.frontier, key=_cost_of)])
    front = set(map(id, found.frontier))
    for point in found.points:
        x, y = (f"{number:.2f}%" for number in place(point))
        filled = "currentColor" if id(point) in front else "var(--paper)"
        what = f"{point.precision}, width {point.width:g}, {point.kernel}: {point.accuracy:.2%}, {_cost(point)}"
        if point is found.chosen:
            marks.append(f'<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="currentColor"/>')
        marks.append(
            f'<circle cx="{x}" cy="{y}" r="3.5" fill="{filled}" stroke="currentColor">'
            f"<title>{escape(what)}</title></circle>"
        )
    labels = [f'<i class="y" style="top:{100 - _percent(up, v):.2f}%">{text}%</i>' for v, text in up.ticks()]
    labels += [f'<i class="x" style="left:{_percent(across, v):.2f}%">{text}</i>' for v, text in across.ticks()]
    words = ("µs of a call" if found.target == "here" else "instructions of a call") + ", logarithmic"
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
    made, last = list[str](), None
    for x, y in places:
        if last is None or y < last[1]:
            if last is not None:
                made += [_line(*last, x, last[1], "rule"), _line(x, last[1], x, y, "rule")]
            last = (x, y)
    return made


def _table(found: Compression, points: Sequence[Point]) -> str:
    head = (
        "width", "precision", "kernel", "accuracy", "lost at most", "bytes", "values, bytes", "cost of a call",
        "outside",
    )  # fmt: skip
    rows = "".join(
        f"<tr{' class=chosen' * (point is found.chosen)}>" + "".join(f"<td>{escape(cell)}</td>" for cell in (
            f"{point.width:g}", point.precision, point.kernel, f"{point.accuracy:.2%}",
            f"{point.lost.most(found.bounds.confidence):.2f}", f"{point.size:,}",
            f"{point.memory:,}", _cost(point), ", ".join(found.bounds.faults(point)),
        )) + "</tr>"
        for point in points
    )  # fmt: skip
    heads = "".join(f"<th>{word}</th>" for word in head)
    table = f"<table class=forms><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div class=scroll>{table}</div>"
