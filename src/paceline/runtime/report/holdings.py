"""Draws who holds what: a row per layer, a column per worker, shaded by the worker's share of the layer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paceline.runtime.report.formatting import count, size
from paceline.runtime.runs.record import LayerRecord

WORKERS, LAYERS = 32, 400  # of a matrix, at most


def holdings(model: Sequence[LayerRecord]) -> str:
    """Return the matrix; empty where every worker holds the whole model."""
    rows = [layer for layer in model if any(layer.held)]
    if not rows:
        return ""
    workers = len(rows[0].held)
    shown = range(min(workers, WORKERS))
    head = "".join(f"<th scope=col class=n>worker {worker}</th>" for worker in shown)
    body = "".join(_row(layer, shown) for layer in rows[:LAYERS])
    sums = "".join(f"<td class=n>{size(sum(layer.held[worker] for layer in rows))}</td>" for worker in shown)
    left_out = [f"{workers - WORKERS} further workers"] if workers > WORKERS else []
    left_out += [f"{len(rows) - LAYERS} further layers"] if len(rows) > LAYERS else []
    rest = f"<p>{' and '.join(left_out)} are not listed.</p>" if left_out else ""
    return (
        f"<div class=scroll tabindex='0'><table class=layers><caption class=unseen>Bytes of each layer at each worker"
        f"</caption><thead><tr><th scope=col>layer</th>{head}</tr></thead><tbody>{body}</tbody>"
        f"<tfoot><tr><th scope=row>all</th>{sums}</tr></tfoot></table></div>{rest}"
    )


def _row(layer: LayerRecord, shown: range) -> str:
    most = max(layer.held)
    cells = "".join(_cell(layer.held[worker], most) for worker in shown)
    return f"<tr><th scope=row>{escape(layer.name or 'model')}</th>{cells}</tr>"


def _cell(amount: int, most: int) -> str:
    if not amount:
        return "<td></td>"
    shade = f"color-mix(in srgb, var(--time-compute) {round(30 * amount / most)}%, transparent)"
    return f'<td class=n title="{count(amount)} bytes" style="background:{shade}">{size(amount)}</td>'
