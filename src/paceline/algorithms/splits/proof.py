"""Proof of a program of split layers before a process starts.

Every worker's line of steps is followed with symbols. A movement takes place when all workers of the group have come to
it: each sends to all others and takes from all. Proved are

- no worker waits for ever: all come to the same movements in the same order, and the parts that they send cover what
  they are to have, each number once;
- every operation takes its values placed as its way of splitting demands, so what it makes is placed as it says: a
  summand is never used as if it were the sum, nor a part as if it were the whole;
- every value's gradient comes back once, after all that computed with the value and before what made it, and reaches
  every stored parameter whole, or its own part of it;
- the loss is computed from whole values, on every worker alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.algorithms.splits import WHOLE, Layout, Placement
from paceline.algorithms.splits.catalogue import SPLITS
from paceline.algorithms.splits.derivation import JOINT, PARAMETER, Program, ProgramStep
from paceline.algorithms.splits.placements import TRIM, AllToAll, follow, intersection, volume
from paceline.errors import PlanError


@dataclass
class Figures:
    """What was counted."""

    operations: int = 0
    movements: int = 0
    exchanges: int = 0
    #: Numbers that each worker sends for a chunk.
    numbers: tuple[int, ...] = ()


def prove_program(program: Program, lines: Sequence[Sequence[ProgramStep]] | None = None) -> Figures:
    """Raise PlanError with the first fault; otherwise return what was counted.

    `lines` are the steps of each worker, where they are not those of the program.
    """
    worker_lines = [program.steps] * program.workers if lines is None else lines
    _meets(program, worker_lines)
    for node in program.nodes:
        _layout_holds(program, node)
    for place, line in enumerate(worker_lines):
        if place == 0 or line != worker_lines[0]:
            _Line(program, place).follow(line)
    return _counted(program, worker_lines)


def _meets(program: Program, lines: Sequence[Sequence[ProgramStep]]) -> None:
    """Prove that all workers come to the same movements in the same order."""
    moves = [[step for step in line if step.value and step.movement.travels] for line in lines]
    for number in range(max(map(len, moves))):
        steps = [line[number] if number < len(line) else None for line in moves]
        for place, step in enumerate(steps):
            if step != steps[0]:
                raise PlanError(
                    f"worker 0 waits in movement {number} ({steps[0] or 'none: it has finished'}), and worker {place} "
                    f"in another ({step or 'none: it has finished'}): they wait for ever"
                )
    for step in {step for line in moves for step in line}:
        for exchange in step.movement.exchanges(program.shapes[step.value], program.workers):
            _covers(step, exchange)


def _covers(step: ProgramStep, exchange: AllToAll) -> None:
    """Prove that what a worker takes covers what it is to have: every number once, or once from each worker."""
    extent, workers = exchange.extent, exchange.workers
    for receiver in range(workers):
        expected = volume(exchange.wants.box(extent, receiver))
        total = sum(volume(exchange.box(sender, receiver)) for sender in range(workers))
        if total != expected * (workers if exchange.adds else 1):
            raise PlanError(f"{step}: worker {receiver} takes {total} numbers for the {expected} that it is to have")


def _layout_holds(program: Program, name: str) -> None:
    """Prove that an operation's layout is what its way of splitting says."""
    node, claimed, way = program.nodes[name], program.layouts[name], program.ways[name]
    if way:
        if why := SPLITS[way].refusal(node, program.workers):
            raise PlanError(f"{name} cannot be split by {way}: {why}")
        rule = SPLITS[way].layout(node, program.workers)
    else:
        rule = follow(node, claimed.takes, program.workers)
    if not _same(rule, claimed):
        raise PlanError(f"{name} is laid out as {_describe(claimed)}, and {way or 'following'} says {_describe(rule)}")


def _same(one: Layout, other: Layout) -> bool:
    roles = {*one.uses, *other.uses}
    uses = all(one.uses.get(role, WHOLE) == other.uses.get(role, WHOLE) for role in roles)
    return uses and one.takes == other.takes and one.gives == other.gives


def _describe(layout: Layout) -> str:
    return f"{', '.join(map(str, layout.takes))} -> {layout.gives}"


class _Line:
    """Follows one worker's steps."""

    def __init__(self, program: Program, place: int) -> None:
        self.program, self.place = program, place
        #: What the worker has: (value, placement).
        self.has = {(value, WHOLE) for value in program.inputs}
        self.has |= {(PARAMETER + name, placed) for name, placed in program.stored.items()}
        self.computed: list[str] = []
        self.undone: list[str] = []
        self.moved: list[tuple[str, Placement]] = []
        self.returned: list[tuple[str, Placement]] = []
        self.again: list[tuple[str, Placement]] = []

    def follow(self, line: Sequence[ProgramStep]) -> None:
        for step in line:
            if (step.back or step.again) and not self.undone:
                self._loss()
            for name in reversed(step.nodes) if step.back else step.nodes:
                self._undo(name) if step.back else self._compute(name)
            if step.again:
                self._gather_again(step)
            elif step.value:
                self._return(step) if step.back else self._move(step)
        if self.computed != list(self.program.nodes) or self.undone != self.computed[::-1]:
            raise self.fault("it does not compute every operation once forward and once back, in order")
        expected = {key for key in self.moved if key[0] in self.program.needs}
        if set(self.returned) != expected:
            missing = sorted(value for value, _ in expected - set(self.returned))
            raise self.fault(f"the gradient of {', '.join(missing)} is never brought back")

    def _compute(self, name: str) -> None:
        if name not in self.program.nodes or name in self.computed or self.undone:
            raise self.fault(f"it computes {name} out of order")
        node, layout = self.program.nodes[name], self.program.layouts[name]
        wants = list(zip(node.takes, layout.takes, strict=True))
        wants += [(PARAMETER + parameter.name, layout.uses.get(parameter.role, WHOLE)) for parameter in node.held]
        for value, placement in wants:
            if (value, placement) not in self.has:
                raise self.fault(f"{name} wants {value} {placement}, and it is not there so")
        self.computed.append(name)
        self.has.add((name, layout.gives))

    def _move(self, step: ProgramStep) -> None:
        key = (step.value, step.target)
        if (step.value, step.source) not in self.has or step.source != self.program.placed(step.value):
            raise self.fault(f"{step}: the value is not there as {step.source}")
        if step.movement.kind == TRIM and not self._covered(step):
            raise self.fault(f"{step}: some numbers are with no worker that wants them")
        if key in self.moved or self.undone:
            raise self.fault(f"{step}: it is moved there twice, or too late")
        self.moved.append(key)
        self.has.add(key)

    def _covered(self, step: ProgramStep) -> bool:
        """Whether what the worker keeps of its part and borders lies in them."""
        shape = self.program.shapes[step.value]
        has, wants = step.source.box(shape, self.place), step.target.box(shape, self.place)
        return intersection(has, wants) == wants

    def _gather_again(self, step: ProgramStep) -> None:
        """Gather a parameter again: it must have been gathered before, and be wanted still."""
        key = (step.value, step.target)
        if key not in self.moved or key in self.again or key in self.returned or not self.program.drops:
            raise self.fault(f"{step}: it was not dropped")
        self.again.append(key)

    def _loss(self) -> None:
        for value in self.program.outputs:
            if (value, WHOLE) not in self.has:
                raise self.fault(f"the loss wants {value} whole")

    def _undo(self, name: str) -> None:
        """Compute back through an operation: the gradients of all that was computed from it must be there."""
        if name not in self.computed or name in self.undone:
            raise self.fault(f"it computes back through {name} out of order")
        dropped = [
            move for move in self.program.gathers(ProgramStep((name,))) if (move.value, move.target) not in self.again
        ]
        if dropped and self.program.drops:
            raise self.fault(f"it computes back through {name} without {dropped[0].value}, which was dropped")
        late = [each for each in self.computed if name in self.program.nodes[each].takes and each not in self.undone]
        late += [v for v, placed in self.moved if v == name in self.program.needs and (v, placed) not in self.returned]
        if late:
            raise self.fault(f"it computes back through {name} before the gradient from {late[0]} is there")
        self.undone.append(name)

    def _return(self, step: ProgramStep) -> None:
        for value in step.joins:
            self._return(step._replace(value=value, joins=()))
        if step.value == JOINT:
            return
        key = (step.value, step.target)
        if key not in self.moved or key in self.returned or step.source != self.program.placed(step.value):
            raise self.fault(f"{step}: there is no such movement to bring back, or it was brought back already")
        for name in self.computed:
            node, layout = self.program.nodes[name], self.program.layouts[name]
            uses = {*zip(node.takes, layout.takes, strict=True)}
            uses |= {(PARAMETER + parameter.name, layout.uses.get(parameter.role, WHOLE)) for parameter in node.held}
            if key in uses and name not in self.undone:
                raise self.fault(f"{step}: the gradient from {name} is not in it yet")
        if step.value in self.undone:
            raise self.fault(f"{step}: what made the value has been computed back already")
        self.returned.append(key)

    def fault(self, what: str) -> PlanError:
        return PlanError(f"worker {self.place} of {self.program.workers}: {what}")


def _counted(program: Program, lines: Sequence[Sequence[ProgramStep]]) -> Figures:
    moves = [step for step in lines[0] if step.value and step.movement.travels]
    shapes, workers = program.shapes, program.workers
    return Figures(
        len(program.nodes),
        len(moves),
        sum(len(step.movement.exchanges(shapes[step.value], workers)) for step in moves),
        tuple(sum(s.movement.numbers(shapes[s.value], place, workers) for s in moves) for place in range(workers)),
    )
