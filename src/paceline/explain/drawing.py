"""Drawing a plan as plain text: what `paceline draw` prints.

A table        for a collective: a row per step, a column per worker (`collective_table`)
layers         for split layers: who holds what, and what travels (`split_table`)
commands       for a coordinator: what it commands in an update (`commands`)
messages       for operators: which instance each worker is at, in a virtual world (`message_table`)
a timetable    for a pipeline: a line per worker, a column per tick (`timetable`); on a mesh, its other axes too
a timeline     for everything else: a line per worker, in a virtual world of unequal workers (`timeline`)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.splits.example import example_program
from paceline.errors import PlanError, RunFolderError, UsageError
from paceline.explain.collective_table import LETTERS, draw_collective
from paceline.explain.commands import draw_commands
from paceline.explain.mesh_table import draw_mesh
from paceline.explain.message_table import draw_messages
from paceline.explain.split_table import draw_split
from paceline.explain.timeline import draw_timeline
from paceline.explain.timetable import draw_measured, draw_table, measured, shown_table
from paceline.explain.timetable_page import page
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.dataflow import Dataflow
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.split_layers import DATA, INSIDE, SplitLayers
from paceline.plans.plan import RECIPES, Plan

if TYPE_CHECKING:
    from paceline.runs.trace import Columns


def draw(plan: Plan, colours: bool = False, more: Sequence[str] = ()) -> str:
    """Draw a plan as text, without a newline at its end.

    Args:
        colours: whether to colour a timetable for a terminal.
        more: lines to append.
    """
    if plan.workers > len(LETTERS):
        raise PlanError(f"{plan.workers} workers do not fit on a page; draw at most {len(LETTERS)}: --workers 8")
    return "\n".join([f"{plan}: {RECIPES[plan.name].about}", "", *_body(plan, colours), *more]).rstrip()


def _body(plan: Plan, colours: bool) -> list[str]:
    """Draw what the method of the plan has to show."""
    match plan.method:
        case AllReduce(collective):
            return draw_collective(collective, plan.workers)
        case Coordinated(_, coordinator):
            return draw_commands(coordinator)
        case Pipeline() as pipeline:
            timetable = draw_table(shown_table(pipeline, plan.workers), colours)
            mesh = pipeline.mesh(plan.workers)
            return draw_mesh(mesh, timetable, pipeline.spread) if pipeline.spread.wide else timetable
        case SplitLayers() as split:
            mesh = split.mesh(plan.workers)
            return draw_split(example_program(split.recipe, mesh.size(INSIDE), split.stage), mesh.size(DATA))
        case Dataflow() as dataflow:
            return draw_messages(plan, dataflow)
        case NativeDdp():
            return ["What its workers do is decided inside PyTorch: there is nothing of Paceline's to draw."]
        case _:
            return draw_timeline(plan)


class RecordedRun(NamedTuple):
    """The plan and the trace of a run's folder."""

    plan: Plan
    rows: Columns


def open_run(folder: Path) -> RecordedRun:
    """Read a run's folder."""
    from paceline.runs.record import read_record
    from paceline.runs.trace import Trace

    if not (folder / "run.json").is_file():
        raise RunFolderError(
            f"{folder} is neither a plan nor a run's folder: it has no run.json. Give a run's folder; a table "
            f"of your own is drawn as table:file={folder}"
        )
    try:
        record = read_record(folder)
        return RecordedRun(Plan.recorded(record.plan, record.table), Trace.open(folder / "trace.arrow").rows)
    except (KeyError, TypeError, OSError, ValueError, PlanError) as error:
        raise RunFolderError(f"{folder} cannot be drawn, something of the run is missing or damaged: {error}") from None


def draw_run(run: RecordedRun, colours: bool = False, more: Sequence[str] = ()) -> str:
    """Draw the plan of a run; for a pipeline, with the measured times of one table."""
    plan, rows = run
    if not isinstance(plan.method, Pipeline):
        return draw(plan, colours, more)
    table = shown_table(plan.method, plan.workers)
    return "\n".join([draw(plan, colours, more), "", *draw_measured(table, rows, colours)])


def draw_page(what: Plan | RecordedRun, more: Sequence[str] = ()) -> str:
    """Draw a pipeline as an HTML page."""
    plan, rows = (what, None) if isinstance(what, Plan) else what
    if not isinstance(plan.method, Pipeline):
        raise PlanError(f"plan {plan.name} has no timetable to write as a page; draw it without --page")
    table = shown_table(plan.method, plan.workers)
    return page(f"{plan}: {RECIPES[plan.name].about}", table, [] if rows is None else measured(rows, table), more)


def write_page(what: Plan | RecordedRun, file: Path, more: Sequence[str] = ()) -> None:
    """Write the HTML page of a pipeline to a file."""
    text = draw_page(what, more)
    try:
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"the page cannot be written to {file}: {error.strerror}; give another --page") from error
