"""A pipeline's table as text, with a line per worker and a column per tick; and the measured times of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from paceline.algorithms.schedules import BACKWARD, FORWARD, INPUTS, UPDATE, WEIGHTS, Table
from paceline.algorithms.schedules.clock import Task, ticked
from paceline.algorithms.schedules.proof import prove_table
from paceline.plans.methods.views import Stages
from paceline.runtime.runs.trace import Columns, Kind

WIDTH = 120  # characters of a line
SHOWN = 6  # batches of a pipeline that is never flushed
MOVES = "~"  # sending or receiving messages, which takes no tick of a table
COLOURS = {FORWARD: 34, BACKWARD: 32, INPUTS: 36, WEIGHTS: 33, UPDATE: 31, MOVES: 35}  # ANSI codes
SIGNS = (
    (FORWARD, "F0", "forward of micro-batch 0"),
    (BACKWARD, "B0", "backward of micro-batch 0"),
    (INPUTS, "I0", "its first half, for which the stage before waits: gradients of inputs"),
    (WEIGHTS, "W0", "its second half: gradients of weights"),
    (UPDATE, "U", "then the stage's update"),
)


def shown_table(stages: Stages) -> Table:
    """Return the table of the updates that are drawn."""
    return stages.table((stages.micro_batches,) * (stages.span or SHOWN + stages.mesh.workers))


def draw_table(table: Table, colours: bool = False) -> list[str]:
    """Draw a table with its legend and figures."""
    figures = prove_table(table)
    tasks = ticked(table)
    holders = table.stage_to_worker
    plain = holders == tuple(range(table.workers))
    return [
        *([] if plain else [f"The stages lie, in order, with workers {', '.join(map(str, holders))}.", ""]),
        *grid(table, tasks, colours),
        "",
        *legend(table, tasks, colours),
        "",
        f"{figures.ticks} ticks, of which each worker stands still for {figures.bubble:.0%} on average.",
        _kept(figures.in_flight, figures.versions),
        *([f"A gradient is up to {figures.staleness} updates old."] if figures.staleness else []),
    ]


def _kept(in_flight: Sequence[int], versions: Sequence[int]) -> str:
    sentence = f"Stages keep activations of at most {', '.join(map(str, in_flight))} micro-batches"
    return sentence + (
        "." if max(versions) == 1 else f", and {', '.join(map(str, versions))} versions of their weights."
    )


def cell(task: Task, table: Table) -> str:
    """Return the text of a task: F2, or F2.1 if its worker holds several stages; F2v1 reads version 1."""
    stage = f".{task.stage}" if table.stages > table.workers else ""
    version = f"v{task.version}" if task.version else ""
    return "U" if task.what == UPDATE else f"{task.what}{task.micro}{stage}{version}"


def grid(table: Table, tasks: Sequence[Task], colours: bool) -> list[str]:
    """Return a line per worker, in several blocks if the page is too narrow."""
    last = max((task.tick for task in tasks), default=0)
    cells = [[""] * (last + 1) for _ in range(table.workers)]
    paint = [[""] * (last + 1) for _ in range(table.workers)]
    for task in tasks:
        worker = table.stage_to_worker[task.stage]
        cells[worker][task.tick] += cell(task, table)
        paint[worker][task.tick] += _painted(cell(task, table), task.what, colours)
    wide = max(len(str(last)), *(len(text) for row in cells for text in row))
    fit = max(1, (WIDTH - 10) // (wide + 1))
    lines: list[str] = []
    for first in range(0, last + 1, fit):
        stop = min(first + fit, last + 1)
        lines += [""] * bool(lines)
        lines.append("tick       " + " ".join(str(tick).ljust(wide) for tick in range(first, stop)).rstrip())
        for worker in range(table.workers):
            row = [(paint[worker][t] or ".") + " " * (wide - len(cells[worker][t] or ".")) for t in range(first, stop)]
            lines.append(f"worker {worker:<3} " + " ".join(row).rstrip())
    return lines


def legend(table: Table, tasks: Sequence[Task], colours: bool) -> list[str]:
    """Explain the signs that occur in a table."""
    kinds = {task.what for task in tasks}
    lines = [
        f"  {_painted(sign, what, colours)}{' ' * (5 - len(sign))}{means}"
        for what, sign, means in SIGNS
        if what in kinds
    ]
    if table.stages > table.workers:
        lines.append("  F0.1 through stage 1")
    if any(task.version and task.what != UPDATE for task in tasks):
        lines.append("  F0v1 reading version 1 of the stage's weights, the first that an update has made")
    return [*lines, "  .    waits"]


def _painted(text: str, what: str, colours: bool) -> str:
    return f"\x1b[{COLOURS[what]}m{text}\x1b[0m" if colours else text


# A run as it was measured.


def draw_measured(table: Table, rows: Columns, colours: bool = False) -> list[str]:
    """Draw the measured times of one table of a run: the one of median length."""
    spans = measured(rows, table)
    if not spans:
        return ["Its trace has no whole table to draw."]
    begins, ends = min(span.start for span in spans), max(span.end for span in spans)
    column = (ends - begins) / (WIDTH - 11)
    lines = [f"As it ran, a column for {column / 1e6:.3g} ms:", ""]
    for worker in range(table.workers):
        line, length = "", 0
        for span in (span for span in spans if span.worker == worker):
            start, stop = round((span.start - begins) / column), round((span.end - begins) / column)
            wide = stop - max(start, length)
            if wide > 0:
                line += "." * (start - length)
                line += _painted((span.text + (MOVES if span.what == MOVES else "-") * wide)[:wide], span.what, colours)
                length = max(start, length) + wide
        lines.append(f"worker {worker:<3} {line}{'.' * (WIDTH - 11 - length)}")
    sign = [f"  {_painted(MOVES, MOVES, colours)}    moves messages", ""]
    return [
        *lines,
        "",
        *(sign if any(span.what == MOVES for span in spans) else []),
        summary_line(spans, table.workers),
    ]


def summary_line(spans: Sequence[Span], workers: int) -> str:
    """Return how long a table took, and the shares of it that workers were idle or moved messages."""
    length = max(span.end for span in spans) - min(span.start for span in spans)
    moving, working = (
        sum(span.end - span.start for span in spans if (span.what == MOVES) == moves) / (length * workers)
        for moves in (True, False)
    )
    return (
        f"{length / 1e6:.3g} ms, of which each worker stood still for {1 - moving - working:.0%} on average, and moved "
        f"messages for {moving:.0%}."
    )


class Span(NamedTuple):
    """A piece of work, with its times in nanoseconds."""

    worker: int
    what: str
    text: str
    start: int
    end: int
    #: Nanoseconds that the worker waited before it.
    waited: int = 0


def measured(rows: Columns, table: Table) -> list[Span]:
    """Return the work of the group of updates that took a median time, of those whose trace is complete."""
    work, count = rows[rows["kind"] == Kind.STAGE], sum(each.what != UPDATE for line in table.lines for each in line)
    together = max(each.version for line in table.lines for each in line if each.what == UPDATE)
    groups = {int(group): work[work["update"] // together == group] for group in np.unique(work["update"] // together)}
    complete = [(int(m["end"].max() - m["start"].min()), group) for group, m in groups.items() if len(m) == count]
    if not complete:
        return []
    group = sorted(complete)[len(complete) // 2][1]
    spans = []
    kinds = np.isin(rows["kind"], (Kind.STAGE, Kind.APPLY))
    for row in rows[kinds & (rows["update"] // together == group)]:
        what = UPDATE if row["kind"] == Kind.APPLY else chr(row["version"])
        micro = int(row["base"]) if what != UPDATE else 0
        text = cell(Task(0, int(row["shard"]), micro, what), table)
        spans.append(Span(int(row["worker"]), what, text, int(row["start"]), int(row["end"]), int(row["waited"])))
    spans.sort(key=lambda span: span.start)
    return sorted([*spans, *_messages(spans)], key=lambda span: span.start)


def _messages(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the times between two pieces of a worker's work in which it did not wait."""
    before: dict[int, Span] = {}
    for span in spans:
        last = before.get(span.worker)
        if last is not None and (moved := span.start - last.end - span.waited) > 0:
            yield Span(span.worker, MOVES, "", last.end, last.end + moved)
        before[span.worker] = span


# A pipeline's table and a run of it as an HTML page: the content of `timetable`, in colours and to scale.

FILLS = {
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
    named = [*((FILLS[each], NAMES[each]) for each in what), (IDLE, "waits")]
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
        box = f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{HIGH - 4}" fill="{FILLS[what]}">'
        lines.append(f"{box}<title>{NAMES[what]} {escape(text)}: {start:.6g} to {end:.6g}</title></rect>")
        if wide > 7 * len(text):
            lines.append(f'<text x="{x + 3:.1f}" y="{y + 16}">{escape(text)}</text>')
    return f'<svg width="{LEFT + WIDE}" height="{workers * HIGH}">{"".join(lines)}</svg>'
