"""The page of a compression: the chosen network, the frontier as a picture, and all points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from paceline.compression.points import Point
from paceline.compression.result import Compression
from paceline.report.overview import section
from paceline.report.page import document

WIDTH, HEIGHT, MARGIN = 640, 320, 64


def page_of(found: Compression) -> str:
    """Return the HTML, one file that needs no network."""
    body = section("Summary", _summary(found))
    body += section(
        "Accuracy against cost",
        _picture(found),
        "Filled points are on the frontier; the ring is chosen.",
    )
    body += section("The frontier", _table(found, found.frontier))
    body += section("All points", _table(found, found.points))
    return document(f"{found.job}: compressed for {found.target}", body, "paceline compress")


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
    """Points by cost, on a logarithmic axis, and by accuracy."""
    costs = [math.log10(max(point.cost, 1e-3)) for point in found.points]
    shares = [point.accuracy for point in found.points]
    front = set(map(id, found.frontier))
    low, high, least, most = min(costs), max(costs), min(shares), max(shares)
    marks = []
    for point, cost in zip(found.points, costs, strict=True):
        x = MARGIN + (cost - low) / max(high - low, 1e-9) * (WIDTH - 2 * MARGIN)
        y = HEIGHT - MARGIN - (point.accuracy - least) / max(most - least, 1e-9) * (HEIGHT - 2 * MARGIN)
        filled = "currentColor" if id(point) in front else "none"
        what = f"{point.precision}, width {point.width:g}, {point.kernel}: {point.accuracy:.2%}, {_cost(point)}"
        ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="currentColor"/>' * (point is found.chosen)
        marks.append(
            f'{ring}<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{filled}" stroke="currentColor">'
            f"<title>{escape(what)}</title></circle>"
        )
    words = ("µs of a call" if found.target == "here" else "instructions of a call") + ", logarithmic"
    ends = "".join(
        f'<text x="{x}" y="{HEIGHT - 12}" text-anchor="{anchor}">{10**value:,.3g}</text>'
        for x, anchor, value in ((MARGIN, "start", low), (WIDTH - MARGIN, "end", high))
    )
    ends += "".join(
        f'<text x="2" y="{y}">{share:.1%}</text>' for share, y in {most: MARGIN, least: HEIGHT - MARGIN}.items()
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="12" fill="currentColor" '
        f'aria-label="accuracy against {words}">{"".join(marks)}{ends}'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{words}</text></svg>'
    )


def _table(found: Compression, points: Sequence[Point]) -> str:
    head = (
        "width", "precision", "kernel", "accuracy", "lost at most", "bytes", "values, bytes", "cost of a call",
        "outside",
    )  # fmt: skip
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (
            f"{point.width:g}", point.precision, point.kernel, f"{point.accuracy:.2%}",
            f"{point.lost.most(found.bounds.confidence):.2f}", f"{point.size:,}",
            f"{point.memory:,}", _cost(point), ", ".join(found.bounds.faults(point)),
        )) + "</tr>"
        for point in points
    )  # fmt: skip
    return f"<table><thead><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr></thead><tbody>{rows}</tbody></table>"
