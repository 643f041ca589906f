"""A pipeline's table and a run of it as an HTML page: the content of `timetable`, in colours and to scale."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paceline.algorithms.schedules import BACKWARD, FORWARD, INPUTS, UPDATE, WEIGHTS, Table
from paceline.algorithms.schedules.clock import ticked
from paceline.algorithms.schedules.proof import prove_table
from paceline.planning.explain.timetable import MOVES, Span, cell, summary_line

COLOURS = {
    FORWARD: "#7aa6da",
    BACKWARD: "#8fbf7f",
    INPUTS: "#6fc2c2",
    WEIGHTS: "#d9b85f",
    UPDATE: "#d77a72",
    MOVES: "#b39ddb",
}
IDLE = "#eee"
NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUTS: "gradients of inputs",
    WEIGHTS: "gradients of weights",
    UPDATE: "update",
    MOVES: "messages",
}
WIDE, HIGH, LEFT = 1100, 28, 80  # pixels: of a picture, of a worker's line, of its name
STYLE = "body{font:14px sans-serif;margin:2em;color:#222}text{font:11px sans-serif}.k{padding:2px 8px;margin-right:1em}"


def page(title: str, table: Table, run: Sequence[Span], more: Sequence[str]) -> str:
    """Return the page of a table and of the measured work of one table, if there is any; `more` are lines to add."""
    figures = prove_table(table)
    planned = []
    for task in ticked(table):
        start, length = (task.tick, 1.0) if task.what != UPDATE else (task.tick + 0.85, 0.15)
        planned.append((table.stage_to_worker[task.stage], task.what, cell(task, table), start, start + length))
    what = dict.fromkeys([*(task[1] for task in planned), *(span.what for span in run)])
    named = [*((COLOURS[each], NAMES[each]) for each in what), (IDLE, "waits")]
    keys = "".join(f'<span class="k" style="background:{colour}">{name}</span>' for colour, name in named)
    parts = [
        f"<h1>{escape(title)}</h1><p>{keys}</p>",
        _picture(table.workers, planned),
        f"<p>{figures.ticks} ticks; each worker stands still for {figures.bubble:.1%} on average. Activations kept, in "
        f"micro-batches per stage: {', '.join(map(str, figures.in_flight))}. Versions of weights: "
        f"{', '.join(map(str, figures.versions))}.</p>",
        *(f"<p>{escape(line)}</p>" for line in more),
    ]
    if run:
        spans = [(span.worker, span.what, span.text, span.start / 1e6, span.end / 1e6) for span in run]
        parts += ["<h2>As it ran</h2>", _picture(table.workers, spans), f"<p>{summary_line(run, table.workers)}</p>"]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _picture(workers: int, spans: Sequence[tuple[int, str, str, float, float]]) -> str:
    """Draw spans as an SVG picture, a line per worker."""
    begins, ends = min(span[3] for span in spans), max(span[4] for span in spans)
    scale = WIDE / (ends - begins)
    lines = []
    for worker in range(workers):
        y = worker * HIGH
        lines.append(f'<text x="0" y="{y + 18}">worker {worker}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y + 2}" width="{WIDE}" height="{HIGH - 4}" fill="{IDLE}"/>')
    for worker, what, text, start, end in spans:
        x, y, wide = LEFT + (start - begins) * scale, worker * HIGH + 2, max(1.0, (end - start) * scale - 0.5)
        box = f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{HIGH - 4}" fill="{COLOURS[what]}">'
        lines.append(f"{box}<title>{NAMES[what]} {escape(text)}: {start:.6g} to {end:.6g}</title></rect>")
        if wide > 7 * len(text):
            lines.append(f'<text x="{x + 3:.1f}" y="{y + 16}">{escape(text)}</text>')
    return f'<svg width="{LEFT + WIDE}" height="{workers * HIGH}">{"".join(lines)}</svg>'
