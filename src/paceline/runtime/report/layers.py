"""Draws a model: a row per layer with its sizes, and on the left a graph of which layer's output reaches which."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paceline.runtime.report.formatting import count, share
from paceline.runtime.runs.record import LayerRecord

ROW = 26  # pixels, as in the style sheet
MOST = 400  # layers that are listed at most


def layers(model: Sequence[LayerRecord]) -> str:
    if not model:
        return ""
    shown = model[:MOST]
    total = sum(layer.parameters for layer in model)
    most = max((layer.parameters for layer in model), default=0)
    body = ""
    for number, layer in enumerate(shown):
        graph = f'<td rowspan="{len(shown)}" class=graph>{_graph(shown)}</td>' if number == 0 else ""
        body += f"<tr>{graph}{_row(layer, total, most)}</tr>"
    rest = f"<p>{len(model) - MOST} further layers are not listed.</p>" if len(model) > MOST else ""
    return (
        f"<div class=scroll tabindex='0'><table class=layers><caption class=unseen>Layers of the model</caption>"
        f"<thead><tr><td></td><th scope=col>layer</th><th scope=col>type</th><th scope=col>output of a batch</th>"
        f"<th scope=col class=n>parameters</th><th scope=col class=n>share</th><td></td></tr></thead>"
        f"<tbody>{body}</tbody><tfoot><tr><td></td><th scope=row>all</th><td></td><td></td>"
        f"<td class=n>{count(total)}</td><td></td><td></td></tr></tfoot></table></div>{rest}"
    )


def _row(layer: LayerRecord, total: int, most: int) -> str:
    parameters = layer.parameters
    reach = " × ".join(map(str, layer.output or ()))
    inside = "; ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in layer.shapes.items())
    width = parameters / most if most else 0.0
    return (
        f"<th scope=row>{escape(layer.name or 'model')}</th>"
        f'<td title="{escape(inside)}">{escape(layer.type)}</td><td>{escape(reach)}</td>'
        f"<td class=n>{count(parameters) if parameters else ''}</td>"
        f"<td class=n>{share(parameters / total) if parameters and total else ''}</td>"
        f'<td class=bar><div class=stack><i style="width:{width:.2%};background:var(--time-compute)"></i></div></td>'
    )


def _graph(model: Sequence[LayerRecord]) -> str:
    """A dot per layer; straight lines to the next one, arcs over those between."""
    drawn, widest = "", 0
    for number, layer in enumerate(model):
        y = number * ROW + ROW // 2
        drawn += f'<circle cx="0" cy="{y}" r="{4 if layer.parameters else 2.5}"/>'
        for source in layer.after:
            if not 0 <= source < number:
                continue
            above = source * ROW + ROW // 2
            reach = 0 if number - source == 1 else min(44, 6 + 4 * (number - source))
            widest = max(widest, reach)
            bow = f"C{-reach} {above} {-reach} {y} 0 {y}" if reach else f"V{y}"
            drawn += f'<path d="M0 {above}{bow}"/>'
    width, height = widest + 12, len(model) * ROW
    return (
        f'<svg width="{width}" height="{height}" viewBox="{-width + 6} 0 {width} {height}" role="img" '
        f'aria-label="Which layer\'s output reaches which">{drawn}</svg>'
    )
