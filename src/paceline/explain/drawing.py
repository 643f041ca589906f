"""Drawing a plan as plain text: what `paceline draw` prints.

a table      of a collective: a row per step, a column per worker
a programme  of a coordinator: the commands of an update
a timetable  of a pipeline: a line per worker, a column per tick (`timetable`)
a timeline   of everything else: a line per worker, in a virtual world whose workers are of unequal speed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.collectives import Collective, Part, Shards, Step
from paceline.core.collectives.neighbours import Neighbours
from paceline.core.coordinators import PARAMETERS, Axpy, Command, Coordinator, Copy, Dot, Evaluate, Scale
from paceline.core.coordinators.rehearsal import rehearse
from paceline.errors import PlanError, RunFolderError, UsageError
from paceline.explain.timetable import draw_measured, draw_table, measured, shown_counts
from paceline.explain.timetable_page import page
from paceline.plans.plan import RECIPES, Plan

if TYPE_CHECKING:
    from paceline.runs.trace import Columns, Trace

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # a segment each


def draw(plan: Plan, colours: bool = False, more: Sequence[str] = ()) -> str:
    """The plan's picture, without a newline at its end; in colours as a terminal shows them, where it has any. `more`:
    what else is said of it.
    """
    if plan.workers > len(LETTERS):
        raise PlanError(f"{plan.workers} workers do not fit on a page; draw at most {len(LETTERS)}: --workers 8")
    if plan.native:
        body = ["What its workers do is decided inside PyTorch: there is nothing of Paceline's to draw."]
    elif plan.schedule is not None:
        body = draw_table(plan, colours)
    elif plan.coordinator is not None:
        body = _coordinator(plan.coordinator)
    elif plan.meeting is None or isinstance(plan.meeting, Shards) or plan.averaging is not None:
        body = _timeline(plan)
    else:
        body = _table(plan.meeting, plan.workers)
    return "\n".join([f"{plan}: {RECIPES[plan.name].about}", "", *body, *more]).rstrip()


class Opened(NamedTuple):
    """A run's folder, read once."""

    plan: Plan
    rows: Columns


def opened(folder: Path) -> Opened:
    from paceline.runs.record import read_record
    from paceline.runs.trace import Trace

    if not (folder / "run.json").is_file():
        raise RunFolderError(
            f"{folder} is neither a plan nor a run's folder: it has no run.json. Give a run's folder; a table "
            f"of your own is drawn as table:file={folder}"
        )
    try:
        record = read_record(folder)
        return Opened(Plan.recorded(record.plan, record.table), Trace.open(folder / "trace.arrow").rows)
    except (KeyError, TypeError, OSError, ValueError) as error:
        raise RunFolderError(f"{folder} cannot be drawn, something of the run is missing or damaged: {error}") from None


def draw_run(run: Opened, colours: bool = False, more: Sequence[str] = ()) -> str:
    """A run's plan; of a pipeline, with one table's time as it was measured under it."""
    plan, rows = run
    if plan.schedule is None:
        return draw(plan, colours, more)
    return "\n".join([draw(plan, colours, more), "", *draw_measured(plan.table(shown_counts(plan)), rows, colours)])


def draw_page(what: Plan | Opened, more: Sequence[str] = ()) -> str:
    """The same of a pipeline as an HTML page."""
    plan, rows = (what, None) if isinstance(what, Plan) else what
    if plan.schedule is None:
        raise PlanError(f"plan {plan.name} has no timetable to write as a page; draw it without --page")
    table = plan.table(shown_counts(plan))
    return page(f"{plan}: {RECIPES[plan.name].about}", table, [] if rows is None else measured(rows, table), more)


def write_page(what: Plan | Opened, file: Path, more: Sequence[str] = ()) -> None:
    text = draw_page(what, more)
    try:
        file.write_text(text)
    except OSError as error:
        raise UsageError(f"the page cannot be written to {file}: {error.strerror}; give another --page") from error


# --- tables ---------------------------------------------------------------------------------------------------------

LEGEND = (
    (">", "a>1", "sends segment a to worker 1"),
    ("+", "+a<1", "takes segment a from worker 1 and adds it to its own"),
    (" <", "a<1", "takes segment a from worker 1 in place of its own"),
    ("A", "A", "a capital: the sum of all workers"),
    (".", ".", "sits this step out"),
)


def _table(meeting: Collective, workers: int) -> list[str]:
    if workers == 1:
        return ["One worker has nobody to meet."]
    segments = meeting.segments(workers)
    if segments > len(LETTERS):
        raise PlanError(f"{segments} segments do not fit on a page; draw fewer workers: --workers 8")
    tables = [list(meeting.steps(worker, workers)) for worker in range(workers)]
    held = [[{worker} for _ in range(segments)] for worker in range(workers)]  # whose contributions are in it
    rows = [_cells(row, held) for row in zip(*tables, strict=True)]
    most = max(sum(s.send.stop - s.send.first for s in table if s.send is not None) for table in tables) / segments
    return [
        *_grid([f"worker {worker}" for worker in range(workers)], rows),
        "",
        *_legend(" ".join(f" {cell}" for row in rows for cell in row)),
        "",
        f"{len(rows)} steps; who sends most sends {most:.3g} times the vector.",
    ]


def _cells(row: Sequence[Step], held: list[list[set[int]]]) -> list[str]:
    """What each worker does in a step, by name; and do it to what they hold."""
    before, workers = [list(mine) for mine in held], len(row)
    cells = []
    for worker, (send, receive, reduce) in enumerate(row):
        words = [] if send is None else [f"{_name(send, before[worker], workers)}>{send.other}"]
        if receive is not None:
            for place in range(receive.first, receive.stop):
                theirs = before[receive.other][place]
                held[worker][place] = before[worker][place] | theirs if reduce else theirs
            words.append(f"{'+' * reduce}{_name(receive, held[worker], workers)}<{receive.other}")
        cells.append(" ".join(words) or ".")
    return cells


def _name(part: Part, held: Sequence[set[int]], workers: int) -> str:
    """The letters of a part; capitals are complete."""
    letters = [
        LETTERS[place].upper() if len(held[place]) == workers else LETTERS[place]
        for place in range(part.first, part.stop)
    ]
    return "".join(letters) if len(letters) <= 4 else f"{letters[0]}..{letters[-1]}"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [("step", heads), *((str(number), row) for number, row in enumerate(rows))]
    return [
        f"{first:>4}   {'   '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))}".rstrip()
        for first, cells in lines
    ]


def _legend(text: str) -> list[str]:
    """The signs that occur."""
    occurs = {
        ">": ">" in text,
        "+": "+" in text,
        " <": any("<" in word and "+" not in word for word in text.split()),
        "A": text != text.lower(),
        ".": " . " in f"{text} ",
    }
    return [f"  {sign:<5}  {meaning}" for key, sign, meaning in LEGEND if occurs[key]]


# --- programmes -----------------------------------------------------------------------------------------------------

REHEARSED = 3  # updates: enough to see what is remembered


def _coordinator(coordinator: Coordinator) -> list[str]:
    """An update's commands as they come in a rehearsal, and where all must meet to carry them out."""
    *_, commands = rehearse(coordinator, REHEARSED).updates
    signs, stale = list[str](), False
    for command in commands:
        if isinstance(command, Evaluate):
            signs.append("M-M" if stale else "-M")
            stale = False
        else:
            signs.append("m" * isinstance(command, Dot))
            stale = stale or getattr(command, "target", "") == PARAMETERS
    said = "".join(signs)
    return [
        f"What the coordinator commands in update {REHEARSED} of a rehearsal:",
        "",
        *(f"  {sign:>3}  {_formula(command)}" for sign, command in zip(signs, commands, strict=True)),
        "",
        "    -  everyone computes its chunk",
        "    M  all meet: to make parameters whole that have changed, and to add up the gradient",
        "    m  all meet to add up one number",
        "    k  some number",
        "",
        f"{len(commands)} commands; {said.count('M')} meetings over the vector, {said.count('m')} over a number.",
        "Every worker is a shard too: it holds its slice of every vector. And every worker runs the coordinator, which",
        "decides by numbers alone; all hear the same ones.",
    ]


def _formula(command: Command) -> str:
    if isinstance(command, Dot):
        return f"{command.one} . {command.other}"
    if isinstance(command, Copy):
        return f"{command.target} <- {command.source}"
    if isinstance(command, Scale):
        return f"{command.target} <- k {command.target}"
    if isinstance(command, Axpy):
        return f"{command.target} <- {command.target} + k {command.other}"
    return "loss and gradient of the parameters"


# --- timelines ------------------------------------------------------------------------------------------------------

BATCH = 100  # samples that one worker computes in one piece
COMPUTE, MOVE = 1e-5, 2e-5  # seconds: for a sample; for a gradient on its way, and for its update
SHOWN = 10  # local steps between two meetings that fit on a page


def _timeline(plan: Plan) -> list[str]:
    """From a simulation in time only: who waits and whose gradients are old, not how well it learns."""
    shown, notes = _shortened(plan)
    own_steps = plan.gate is None or plan.exchanging is not None
    slowest, columns = (2, 2) if own_steps else (3, 7)
    trace = _simulated(shown, _updates(shown), slowest)
    lines = _lines(shown, trace, columns, own_steps)
    if plan.workers > 1:
        notes.append(f"In this made-up world worker {plan.workers - 1} is {slowest} times slower than worker 0.")
    return [*lines, "", *_signs(plan, own_steps), "", *_says(plan, trace), *notes]


def _shortened(plan: Plan) -> tuple[Plan, list[str]]:
    """The same plan with as many local steps between two meetings as fit on a page; and a note, where that differs."""
    rule = plan.averaging or plan.exchanging
    if rule is None or rule.every <= SHOWN:
        return plan, []
    fits: Any = replace(rule, every=SHOWN)  # type: ignore[type-var]
    shown = replace(plan, averaging=plan.averaging and fits, exchanging=plan.exchanging and fits)
    return shown, [f"Drawn with every={SHOWN} instead of {rule.every}, to fit on a page."]


def _updates(plan: Plan) -> int:
    if plan.averaging is not None:
        return max(6, 2 * plan.averaging.every) if plan.averaging.every else SHOWN  # two meetings; or one, at the end
    if plan.exchanging is not None:
        return 3 * (plan.exchanging.parts or plan.workers) * plan.block
    if plan.gathers:
        return 5
    return (5 if plan.gate is not None else SHOWN) * plan.workers


def _simulated(plan: Plan, updates: int, slowest: float) -> Trace:
    """The last worker is `slowest` times slower than the first, and the others lie between."""
    from paceline.engines.virtual import World, simulate

    others = max(1, plan.workers - 1)
    speeds = tuple(1 - (1 - 1 / slowest) * worker / others for worker in range(plan.workers))
    move = 0.0 if plan.gate is None else MOVE
    world = World(compute=COMPUTE, speeds=speeds, jitter=0.0, latency=move, update=move)
    size = BATCH * plan.parts
    return simulate(plan, plan.agenda(size * updates, size), world, 0)


class _Line:
    """One worker's time, from left to right; a meeting takes a column of its own."""

    def __init__(self, column: float) -> None:
        self.column, self.text, self.meetings = column, "", 0  # nanoseconds

    def until(self, end: int, sign: str) -> None:
        self.text += sign * (round(end / self.column) + self.meetings - len(self.text))

    def meet(self) -> None:
        self.text, self.meetings = self.text + "M", self.meetings + 1


def _lines(plan: Plan, trace: Trace, columns: int, own_steps: bool) -> list[str]:
    """A line per worker; the fastest one computes a batch in so many columns."""
    from paceline.runs.trace import Kind

    lines = [_Line(BATCH * COMPUTE * 1e9 / columns) for _ in range(plan.workers)]
    for row in trace.rows:  # in the order in which things ended
        line = lines[row["worker"]]
        if row["kind"] == Kind.COMPUTE:
            line.until(row["start"], ".")
            line.until(row["end"], "-")
            line.text = line.text[:-1] + "o" if own_steps else line.text
        elif row["kind"] == Kind.MEET:
            line.until(row["end"], ".")
            line.meet()
        elif row["kind"] == Kind.APPLY and plan.gate is not None and row["shard"] == 0:
            line.text += str(row["version"]) if plan.locked else "*"
        elif row["kind"] == Kind.DROP:
            line.text += "/"
    return [f"worker {number:<2} {line.text}" for number, line in enumerate(lines)]


def _signs(plan: Plan, own_steps: bool) -> list[str]:
    signs = ["  -o  a step of its own parameters" if own_steps else "  -   computes a batch"]
    if plan.exchanging is not None and plan.exchanging.parts:
        signs.append("  3   has trained on a part of the data, the third that is done; the next begins from the start")
    elif plan.exchanging is not None:
        signs.append("  3   meets the centre, whose version 3 that makes")
    elif plan.pairing is not None:
        signs.append("  3   meets one of its neighbours halfway and makes its step: the third of all such meetings")
    elif plan.gate is not None:
        of = " of shard 0" if plan.shards > 1 else ""
        does = "is held for" if plan.gathers else "makes"
        signs.append(f"  3   pushes its gradient, which {does} version 3{of}" if plan.locked else "  *   pushes")
        if plan.gathers:
            signs.append("  /   comes too late: computes it again")
    elif plan.meeting is not None:
        signs.append("  M   meets the others")
    return signs if plan.meeting is None else [*signs, "  .   waits"]


def _says(plan: Plan, trace: Trace) -> list[str]:
    if plan.gate is None:
        return [] if plan.meeting is None else [_what_a_meeting_is(plan)]
    if plan.exchanging is not None and plan.exchanging.parts:
        return ["The result is the mean of one model for each part."]
    stale = trace.staleness()
    if not len(stale):
        return ["Without locks there are no versions, so nobody can say how old a gradient was."]
    return [
        f"Staleness: between a pull and its push came {stale.mean():.1f} versions on average, at most {stale.max()}."
    ]


def _what_a_meeting_is(plan: Plan) -> str:
    if isinstance(plan.meeting, Neighbours):
        others = sorted(other for other, _ in plan.meeting.weights(0, plan.workers)[1:])
        whose = f"worker{'s' * (len(others) > 1)} {', '.join(map(str, others))}" if others else "nobody"
        return f"In a meeting worker 0 mixes its parameters with those of {whose}."
    return f"A meeting is an all-reduce among all workers, by the table of {type(plan.meeting).__name__}."
