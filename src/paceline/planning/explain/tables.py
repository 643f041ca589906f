"""Tables as text: of a collective, of the messages between operators, of a mesh, of split layers."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.algorithms.collectives import Collective, Part, Step
from paceline.algorithms.collectives.canonical import Canonical
from paceline.algorithms.splits import WHOLE, Mesh, SplitNode
from paceline.algorithms.splits.derivation import JOINT, PARAMETER, Program
from paceline.algorithms.splits.derivation import ProgramStep as SplitStep
from paceline.algorithms.splits.recipes import example_program
from paceline.algorithms.splits.ways import DISPATCH
from paceline.errors import PlanError
from paceline.plans.methods.pipeline import LAYERS
from paceline.plans.methods.split_layers import DATA, INSIDE
from paceline.plans.methods.views import Operators, Stages
from paceline.plans.plan import Plan

# Drawing operators at work as text: a line per worker, a column per piece of work, from a simulation in time only.

INSTANCES, COMPUTE = 6, 1e-3  # trees that are drawn, and the seconds of one
TREE_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def draw_messages(plan: Plan, operators: Operators) -> list[str]:
    """Draw a few trees on their way through operators: of one shape after another, several at a time."""
    from paceline.algorithms.dataflow import Instances
    from paceline.runtime.engines.virtual import World, simulate
    from paceline.runtime.runs.trace import Kind

    parts = operators.micro_batches
    agenda = plan.agenda(INSTANCES, parts, 1)
    world = World(compute=COMPUTE, jitter=0.0, latency=COMPUTE / 100, update=0.0)
    trace, instances = simulate(plan, agenda, world, 0), Instances(agenda)
    works = trace.of_kind(Kind.STAGE)
    tick = min(int(row["end"] - row["start"]) for row in works)
    lines = [""] * plan.workers
    for row in works[works["start"].argsort(kind="stable")]:
        worker, letter = int(row["worker"]), TREE_LETTERS[instances.number(int(row["update"]), int(row["base"]))]
        first, last = round(int(row["start"]) / tick), round(int(row["end"]) / tick)
        sign = letter if chr(int(row["version"])) == "F" else letter.upper()
        lines[worker] = lines[worker].ljust(first, ".") + sign * max(1, last - first)
    length = max(map(len, lines))
    stale = trace.staleness()
    return [
        *(f"worker {number:<2} {line.ljust(length, '.')}" for number, line in enumerate(lines)),
        "",
        f"  a   a call of tree a forward; trees a to {TREE_LETTERS[INSTANCES - 1]} have one to three leaves",
        "  A   the same call backward, which takes twice as long here",
        "  .   no message is there",
        "",
        f"At most {operators.active} trees are under way. An operator makes an update when {operators.every} "
        f"tree{'s have' if operators.every > 1 else ' has'} brought it all of",
        f"{'their' if operators.every > 1 else 'its'} gradients. Meanwhile the oldest of them had seen "
        f"{stale.mean():.1f} updates on average, at most {stale.max()}.",
    ]


# A pipeline on a mesh as text: where each worker lies, the timetable of one pipeline, and how its stages are split.


def draw_mesh(stages: Stages, timetable: list[str]) -> list[str]:
    """Draw the mesh, then its axes one by one: `layers` as a timetable, `inside` as a table of layers."""
    mesh = stages.mesh
    lines = [f"A mesh of {mesh}:", "", *_places(mesh), ""]
    if stages.gate is not None:
        lines += [
            "Replicas do not wait for each other. Each computes a batch that it has leased; each of its workers pushes",
            "to the shard of its place, and pulls from it:",
            "",
            *(f"  shard {place}   workers {' '.join(map(str, workers))}" for place, workers in _shards(mesh)),
            "",
        ]
    elif mesh.size(DATA) > 1:
        lines += [
            f"Replicas sum the gradients of like parts before an update, by {type(stages.collective).__name__}.",
            "",
        ]
    if mesh.size(LAYERS) > 1:
        lines += ["Along layers, of one replica; its worker n stands for the workers of stage n:", "", *timetable, ""]
    if mesh.size(INSIDE) > 1:
        lines += ["Along inside, as of a stage with all of a small net:", ""]
        lines += draw_split(example_program(stages.recipe, mesh.size(INSIDE)), 1)
    return lines


def _shards(mesh: Mesh) -> list[tuple[int, range]]:
    """Return the workers of each shard: one of every replica."""
    size = mesh.workers // mesh.size(DATA)
    return [(place, range(place, mesh.workers, size)) for place in range(size)]


def _places(mesh: Mesh) -> list[str]:
    """Return a row for each replica, a column for each stage, and the workers that share it."""
    depth, inside = mesh.size(LAYERS), mesh.size(INSIDE)
    cells = [["", *(f"layers {stage}" for stage in range(depth))]]
    for replica in range(mesh.size(DATA)):
        first = [(replica * depth + stage) * inside for stage in range(depth)]
        groups = (mesh.group(worker, INSIDE) for worker in first)
        cells.append([f"data {replica}", *("workers " + " ".join(map(str, group)) for group in groups)])
    widths = [max(len(row[column]) for row in cells) for column in range(depth + 1)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


LETTERS = "abcdefghijklmnopqrstuvwxyz"  # a segment each

LEGEND = (
    (">", "a>1", "sends segment a to worker 1"),
    ("+", "+a<1", "takes segment a from worker 1 and adds it to its own"),
    (" <", "a<1", "takes segment a from worker 1 in place of its own"),
    ("-", "a2-3", "segment a of the sum of chunks 2 and 3; one that is taken without + lies beside the others"),
    ("=", "=a0-3", "adds two sums of segment a that it has"),
    ("A", "A", "a capital: the sum of all workers"),
    (".", ".", "sits this step out"),
)


def draw_collective(collective: Collective, workers: int) -> list[str]:
    """Draw the table of a collective: what each worker sends and receives in each step."""
    if workers == 1:
        return ["One worker has no other to exchange with."]
    segments = collective.segments(workers)
    if segments > len(LETTERS):
        raise PlanError(f"{segments} segments do not fit on a page; draw fewer workers: --workers 8")
    tables = [list(collective.steps(worker, workers)) for worker in range(workers)]
    drawn = _Drawn(collective, workers)
    rows = [drawn.cells(row) for row in zip(*tables, strict=True)]
    most = max(sum(s.send.stop - s.send.first for s in table if s.send is not None) for table in tables) / segments
    return [
        *_grid([f"worker {worker}" for worker in range(workers)], rows),
        "",
        *_legend(" ".join(f" {cell}" for row in rows for cell in row)),
        "",
        f"{len(rows)} steps; the worker that sends most sends {most:.3g} times the vector.",
    ]


class _Drawn:
    """What each segment of each worker is made of, as the table goes on: workers, or chunks of a canonical sum."""

    def __init__(self, collective: Collective, workers: int) -> None:
        self.segments = collective.segments(workers)
        self.whole, self.ranges = set(range(workers)), isinstance(collective, Canonical)
        self.held: list[list[set[int]]] = [[{worker} for _ in range(self.segments)] for worker in range(workers)]
        if isinstance(collective, Canonical):
            self.whole, lanes = set(range(collective.chunks)), collective.lanes(workers)
            for worker in range(workers):
                trees = [set(range(*tree)) for tree in collective.partial_sums(worker, workers)]
                trees += [set() for _ in range(lanes - len(trees))]
                self.held[worker] = [tree for tree in trees for _ in range(self.segments)]

    def cells(self, row: Sequence[Step]) -> list[str]:
        """Return the cells of a step, and apply the step to what workers hold."""
        before = [list(mine) for mine in self.held]
        cells = []
        for worker, step in enumerate(row):
            words = [] if step.send is None else [f"{self._name(step.send, before[worker])}>{step.send.other}"]
            if step.receive is not None:
                other, first, stop = step.receive
                for number, theirs in enumerate(before[other][first:stop], start=step.written.first):
                    self.held[worker][number] = before[worker][number] | theirs if step.reduce else theirs
                name = self._name(step.written, self.held[worker])
                words.append(f"={name}" if other == worker else f"{'+' * step.reduce}{name}<{other}")
            cells.append(" ".join(words) or ".")
        return cells

    def _name(self, part: Part, held: Sequence[set[int]]) -> str:
        """Return the letters of a part; capitals are complete sums."""
        letters = [
            LETTERS[number % self.segments].upper() if held[number] == self.whole else LETTERS[number % self.segments]
            for number in range(part.first, part.stop)
        ]
        name, summands = "".join(letters) if len(letters) <= 4 else f"{letters[0]}..{letters[-1]}", held[part.first]
        if not self.ranges or summands == self.whole:
            return name
        return f"{name}{min(summands)}-{max(summands)}" if len(summands) > 1 else f"{name}{min(summands)}"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [("step", heads), *((str(number), row) for number, row in enumerate(rows))]
    return [
        f"{first:>4}   {'   '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))}".rstrip()
        for first, cells in lines
    ]


def _legend(text: str) -> list[str]:
    """Explain the signs that occur."""
    words = text.split()
    occurs = {
        ">": ">" in text,
        "+": "+" in text,
        " <": any(
            "<" in word and "+" not in word and not any(map(str.isdigit, word.partition("<")[0])) for word in words
        ),
        "-": any(any(map(str.isdigit, word.partition("<")[0].partition(">")[0])) for word in words),
        "=": "=" in text,
        "A": text != text.lower(),
        ".": " . " in f"{text} ",
    }
    return [f"  {sign:<5}  {meaning}" for key, sign, meaning in LEGEND if occurs[key]]


# Split layers as text: who holds what of each layer, and what travels between them.

MOST = 8  # workers with a column


def draw_split(program: Program, replicas: int) -> list[str]:
    """Draw a program: a row for each layer with a column for each worker, and a row for each movement."""
    shown = min(program.workers, MOST)
    table = [["layer", "way", *(f"worker {place}" for place in range(shown))]]
    lines: list[tuple[list[str], str]] = []
    for step in program.forward:
        if step.value:
            lines.append(([], _movement(program, step)))
        lines += [
            (_row(program, program.nodes[name], shown), "") for name in step.nodes if not name.endswith("#blocks")
        ]
    if program.joins:
        lines.append(([], _joint(program)))
    table += [cells for cells, _ in lines if cells]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]

    def padded(cells: list[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    drawing = [padded(table[0]), "  ".join("-" * width for width in widths)]
    drawing += [padded(cells) if cells else text for cells, text in lines if cells or text]
    sent = [sum(program.numbers(place).values()) for place in range(program.workers)]
    each = f"{min(sent):,}" if min(sent) == max(sent) else f"{min(sent):,} to {max(sent):,}"
    drawing += ["", f"Each worker sends {each} numbers for a batch, forward and back."]
    if program.workers > MOST:
        drawing.append(f"{program.workers - MOST} more workers hold parts like these.")
    if replicas > 1:
        drawing.append(f"{replicas} replicas are split in this way, and add the gradients of like parts up.")
    return drawing


def _row(program: Program, node: SplitNode, shown: int) -> list[str]:
    way = program.ways[node.name] or ("follows" if program.layouts[node.name].gives != WHOLE else "whole")
    return [
        node.name if node.kind == DISPATCH else node.layer or node.name,
        way,
        *(_held(program, node, place) for place in range(shown)),
    ]


def _held(program: Program, node: SplitNode, place: int) -> str:
    """Return what a worker holds of a layer's largest parameter, or makes of an operation's result."""
    if node.held:
        parameter = max(node.held, key=lambda each: len(each.shape))
        box = program.stored[parameter.name].box(parameter.shape, place)
        return f"{parameter.role} {_sizes(box)}"
    if node.shape is None:
        return ""
    return f"[{_sizes(program.layouts[node.name].gives.box(node.shape, place))}]"


def _sizes(box: tuple[tuple[int, int], ...]) -> str:
    return "x".join(str(stop - first) for first, stop in box)


def _movement(program: Program, step: SplitStep) -> str:
    """Return a line for a movement; an empty one where nothing travels either way."""
    forward = step.movement
    back = forward.back if step.value in program.needs and step.value not in program.joins else None
    if not forward.travels and not (back is not None and back.travels):
        return ""
    shape, workers = program.shapes[step.value], program.workers
    words = [_way(forward.kind, forward.numbers(shape, 0, workers))]
    if back is not None:
        words.append("back: " + _way(back.kind, back.numbers(shape, 0, workers)))
    name = step.value.removeprefix(PARAMETER)
    return f"    ~~ {name}: {step.source} -> {step.target};  {';  '.join(words)}"


def _joint(program: Program) -> str:
    """Return the line for the gradients that are summed together, at the end of an update's backward."""
    movement, shape = program.steps[-1].movement, program.shapes[JOINT]
    names = [value.removeprefix(PARAMETER) for value in reversed(program.joins)]
    many = f"{len(names)} parameters, {names[0]} to {names[-1]}"
    return f"    ~~ gradients of {many}: {_way(movement.kind, movement.numbers(shape, 0, program.workers))}"


def _way(kind: str, numbers: int) -> str:
    return f"{kind} {numbers:,}" if numbers else kind
