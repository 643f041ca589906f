"""Drawing a plan as plain text: what `paceline draw` prints.

A table        for a collective: a row per step, a column per worker (`tables`)
layers         for split layers: who holds what, and what travels (`split_table`)
commands       for a coordinator: what it commands in an update (`commands`)
messages       for operators: which instance each worker is at, in a virtual world (`message_table`)
a timetable    for a pipeline: a line per worker, a column per tick (`timetable`); on a mesh, its other axes too
a timeline     for everything else: a line per worker, in a virtual world of unequal workers (`timeline`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.algorithms.coordinators import (
    PARAMETERS,
    Axpy,
    Command,
    Coordinator,
    Copy,
    Dot,
    Evaluate,
    Scale,
    rehearse,
)
from paceline.algorithms.splits.recipes import example_program
from paceline.errors import PlanError, RunFolderError, UsageError
from paceline.planning.explain.tables import LETTERS, draw_collective, draw_mesh, draw_messages, draw_split
from paceline.planning.explain.timetable import draw_measured, draw_table, measured, page, shown_table
from paceline.plans.methods.views import Commands, Operators, Parts, Stages, Summing, Timeline, Words
from paceline.plans.plan import RECIPES, Plan

if TYPE_CHECKING:
    from paceline.runtime.runs.trace import Columns, Trace


# A plan's timeline as text, from a simulation in time only: which workers wait, and how old gradients are.

BATCH = 100  # samples that one worker computes in one piece
COMPUTE, MOVE = 1e-5, 2e-5  # seconds: for a sample; for a gradient on its way, and for its update


def draw_timeline(plan: Plan, legend: Timeline) -> list[str]:
    """Draw the timeline of a plan with its legend."""
    shown = replace(plan, method=legend.fitting) if legend.fitting is not None else plan
    slowest, columns = (2, 2) if legend.own_steps else (3, 7)
    trace = _simulated(shown, legend.updates, slowest)
    notes = [legend.note] if legend.note else []
    if plan.workers > 1:
        notes.append(f"In this simulated cluster worker {plan.workers - 1} is {slowest} times slower than worker 0.")
    return [
        *_lines(shown, trace, columns, legend),
        "",
        *legend.signs,
        "",
        *legend.says,
        *(_staleness(trace) if legend.staleness else []),
        *notes,
    ]


def _staleness(trace: Trace) -> list[str]:
    stale = trace.staleness()
    if not len(stale):
        return ["Without locks there are no versions, so it is not known how old a gradient was."]
    return [
        f"Staleness: between a pull and its push came {stale.mean():.1f} versions on average, at most {stale.max()}."
    ]


def _simulated(plan: Plan, updates: int, slowest: float) -> Trace:
    """Simulate a world whose last worker is `slowest` times slower than the first, with the others in between."""
    from paceline.runtime.engines.virtual import World, simulate

    others = max(1, plan.workers - 1)
    speeds = tuple(1 - (1 - 1 / slowest) * worker / others for worker in range(plan.workers))
    move = 0.0 if plan.traits.synchronous else MOVE
    world = World(compute=COMPUTE, speeds=speeds, jitter=0.0, latency=move, update=move)
    size = BATCH * plan.parts
    return simulate(plan, plan.agenda(size * updates, size), world, 0)


class _WorkerLine:
    """The line of one worker, from left to right; a collective takes one column."""

    def __init__(self, column: float) -> None:
        #: Nanoseconds of a column; the text so far; the columns that collectives took.
        self.column, self.text, self.collectives = column, "", 0

    def until(self, end: int, sign: str) -> None:
        self.text += sign * (round(end / self.column) + self.collectives - len(self.text))

    def exchange(self) -> None:
        self.text, self.collectives = self.text + "M", self.collectives + 1


def _lines(plan: Plan, trace: Trace, columns: int, legend: Timeline) -> list[str]:
    """Return a line per worker; the fastest one computes a batch in so many columns."""
    from paceline.runtime.runs.trace import Kind

    lines = [_WorkerLine(BATCH * COMPUTE * 1e9 / columns) for _ in range(plan.workers)]
    for row in trace.rows:  # in the order in which things ended
        line = lines[row["worker"]]
        if row["kind"] == Kind.COMPUTE:
            line.until(row["start"], ".")
            line.until(row["end"], "-")
            line.text = line.text[:-1] + "o" if legend.own_steps else line.text
        elif row["kind"] == Kind.COLLECTIVE:
            line.until(row["end"], ".")
            line.exchange()
        elif row["kind"] == Kind.APPLY and not plan.traits.synchronous and row["shard"] == 0:
            line.text += str(row["version"]) if legend.versions else "*"
        elif row["kind"] == Kind.DROP:
            line.text += "/"
    return [f"worker {number:<2} {line.text}" for number, line in enumerate(lines)]


# The commands of a coordinator in an update, as text.

REHEARSED = 3  # updates: enough to see what is remembered


def draw_commands(coordinator: Coordinator) -> list[str]:
    """Draw the commands of an update as a rehearsal gives them, and the collectives that they need."""
    *_, commands = rehearse(coordinator, REHEARSED).updates
    signs, stale = list[str](), False
    for command in commands:
        if isinstance(command, Evaluate):
            signs.append("M-M" if stale else "-M")
            stale = False
        else:
            signs.append("m" * isinstance(command, Dot))
            stale = stale or getattr(command, "target", "") == PARAMETERS
    marks = "".join(signs)
    return [
        f"What the coordinator commands in update {REHEARSED} of a rehearsal:",
        "",
        *(f"  {sign:>3}  {_formula(command)}" for sign, command in zip(signs, commands, strict=True)),
        "",
        "    -  every worker computes its chunk",
        "    M  a collective over the vector: to gather changed parameters, and to add up the gradient",
        "    m  a collective over one number",
        "    k  some number",
        "",
        f"{len(commands)} commands; {marks.count('M')} collectives over the vector, {marks.count('m')} over a number.",
        "Every worker is a shard too: it holds its slice of every vector. And every worker runs the coordinator, which",
        "decides by numbers alone; all get the same ones.",
    ]


def _formula(command: Command) -> str:
    """Return a command as a formula."""
    if isinstance(command, Dot):
        return f"{command.one} . {command.other}"
    if isinstance(command, Copy):
        return f"{command.target} <- {command.source}"
    if isinstance(command, Scale):
        return f"{command.target} <- k {command.target}"
    if isinstance(command, Axpy):
        return f"{command.target} <- {command.target} + k {command.other}"
    return "loss and gradient of the parameters"


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
    match plan.method.picture(plan.workers):
        case Summing(collective):
            return draw_collective(collective, plan.workers)
        case Commands(coordinator):
            return draw_commands(coordinator)
        case Stages() as stages:
            timetable = draw_table(shown_table(stages), colours)
            return draw_mesh(stages, timetable) if stages.wide else timetable
        case Parts() as parts:
            return draw_split(example_program(parts.recipe, parts.inside, parts.stage), parts.replicas)
        case Operators() as operators:
            return draw_messages(plan, operators)
        case Timeline() as legend:
            return draw_timeline(plan, legend)
        case Words(text):
            return [text]


class RecordedRun(NamedTuple):
    """The plan and the trace of a run's folder."""

    plan: Plan
    rows: Columns


def open_run(folder: Path) -> RecordedRun:
    """Read a run's folder."""
    from paceline.runtime.runs.record import read_record
    from paceline.runtime.runs.trace import Trace

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
    stages = plan.method.picture(plan.workers)
    if not isinstance(stages, Stages):
        return draw(plan, colours, more)
    table = shown_table(stages)
    return "\n".join([draw(plan, colours, more), "", *draw_measured(table, rows, colours)])


def draw_page(what: Plan | RecordedRun, more: Sequence[str] = ()) -> str:
    """Draw a pipeline as an HTML page."""
    plan, rows = (what, None) if isinstance(what, Plan) else what
    stages = plan.method.picture(plan.workers)
    if not isinstance(stages, Stages):
        raise PlanError(f"plan {plan.name} has no timetable to write as a page; draw it without --page")
    table = shown_table(stages)
    return page(f"{plan}: {RECIPES[plan.name].about}", table, [] if rows is None else measured(rows, table), more)


def write_page(what: Plan | RecordedRun, file: Path, more: Sequence[str] = ()) -> None:
    """Write the HTML page of a pipeline to a file."""
    text = draw_page(what, more)
    try:
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"the page cannot be written to {file}: {error.strerror}; give another --page") from error
