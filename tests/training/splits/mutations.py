"""Programs of split layers with one thing changed, and what they compute in fact."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from paceline.algorithms.splits import COPIED, PARTIAL, WHOLE, Placement, even, split
from paceline.algorithms.splits.derivation import PARAMETER, Program, ProgramStep
from paceline.algorithms.splits.recipes import Cannon, Experts, OneWeirdTrick, PerLayer, Redundant, SplitRecipe, Zero
from paceline.algorithms.splits.recipes import Tensor as TensorRecipe
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import trainable
from paceline.training.splits.gradients import SplitBlueprint, SplitReplica
from paceline.training.splits.planning import run_together, split_blueprint
from paceline.training.splits.slicing import assembled, sliced, stored_by
from paceline.training.stages.planning import Example, fresh


@dataclass(frozen=True)
class Case:
    """A model that is split, with a chunk."""

    job: Job
    module: nn.Module
    made: SplitBlueprint
    example: Example

    @property
    def program(self) -> Program:
        return self.made.program


def cases(examples: dict[str, tuple[Job, nn.Module, Example, tuple[str, ...]]]) -> list[Case]:
    recipes: list[tuple[SplitRecipe, int, int]] = [
        (TensorRecipe(), 2, 0),
        (TensorRecipe(), 3, 0),
        (OneWeirdTrick(), 2, 0),
        (OneWeirdTrick(), 3, 0),
        (Cannon(), 4, 0),
        (Zero(), 3, 3),
        (Redundant(20), 2, 0),
        (Redundant(0), 3, 0),
        (Experts(), 2, 0),
        (PerLayer.parse("*:rows+*:channels+*:heads+*:samples"), 3, 0),
    ]
    return [
        Case(job, module, split_blueprint(job, module, [example], moving, workers, recipe, stage), example)
        for job, module, example, moving in examples.values()
        for recipe, workers, stage in recipes
    ]


@dataclass(frozen=True)
class Mutant:
    """A program with one change, and each worker's line of steps."""

    what: str
    program: Program
    lines: list[Sequence[ProgramStep]]


def mutate(program: Program, chance: random.Random) -> Mutant:
    """Change one thing of a program."""
    kinds = [_movement, _steps, _layout, _way, _stored, _line, _line]
    return chance.choice(kinds)(program, chance)


def _all(what: str, program: Program) -> Mutant:
    return Mutant(what, program, [program.steps] * program.workers)


def _placement(program: Program, shape: Sequence[int], chance: random.Random) -> Placement:
    """Return a placement of a tensor of this shape, sometimes with uneven bounds."""
    if not shape or chance.random() < 0.5:
        return chance.choice([WHOLE, COPIED, PARTIAL])
    dim = chance.randrange(len(shape))
    bounds = list(even(shape[dim], program.workers))
    if chance.random() < 0.4:
        bounds[chance.randrange(len(bounds))] += chance.choice([-1, 1])
    return split(dim, bounds)


def _movement(program: Program, chance: random.Random) -> Mutant:
    forward = list(program.forward)
    number = chance.choice([n for n, step in enumerate(forward) if step.value])
    step = forward[number]
    other = _placement(program, program.shapes[step.value], chance)
    forward[number] = step._replace(source=other) if chance.random() < 0.3 else step._replace(target=other)
    return _all(f"{step} becomes {forward[number].source} -> {other}", replace(program, forward=tuple(forward)))


def _steps(program: Program, chance: random.Random) -> Mutant:
    forward = list(program.forward)
    what = _shuffled(forward, chance)
    return _all(what, replace(program, forward=tuple(forward)))


def _shuffled(line: list[ProgramStep], chance: random.Random) -> str:
    """Leave a step out, repeat it, or swap it with the next."""
    number = chance.randrange(len(line) - 1)
    what = chance.choice(["left out", "repeated", "swapped"])
    step = line[number]
    if what == "left out":
        del line[number]
    elif what == "repeated":
        line.insert(number, step)
    else:
        line[number : number + 2] = line[number : number + 2][::-1]
    return f"{step} {what}"


def _layout(program: Program, chance: random.Random) -> Mutant:
    name = chance.choice([n for n, node in program.nodes.items() if node.shape is not None and node.takes])
    node, layout = program.nodes[name], program.layouts[name]
    where = chance.choice(["takes", "gives", "uses"])
    if where == "takes" and node.shapes[0] is not None:
        layout = layout._replace(takes=(_placement(program, node.shapes[0], chance), *layout.takes[1:]))
    elif where == "uses" and node.held:
        held = chance.choice(node.held)
        layout = layout._replace(uses={**layout.uses, held.role: _placement(program, held.shape, chance)})
    else:
        assert node.shape is not None
        layout = layout._replace(gives=_placement(program, node.shape, chance))
    return _all(f"{where} of {name}: {layout}", replace(program, layouts={**program.layouts, name: layout}))


def _way(program: Program, chance: random.Random) -> Mutant:
    name = chance.choice([n for n, node in program.nodes.items() if node.held])
    way = chance.choice(["columns", "rows", "channels", "samples", "replica", "strips", "whole", ""])
    return _all(f"way of {name}: {way}", replace(program, ways={**program.ways, name: way}))


def _stored(program: Program, chance: random.Random) -> Mutant:
    name = chance.choice(list(program.stored))
    placed = _placement(program, program.shapes[PARAMETER + name], chance)
    return _all(f"{name} stored {placed}", replace(program, stored={**program.stored, name: placed}))


def _line(program: Program, chance: random.Random) -> Mutant:
    """Change one worker's line."""
    lines = [list(program.steps) for _ in range(program.workers)]
    worker = chance.randrange(program.workers)
    what = _shuffled(lines[worker], chance)
    return Mutant(f"worker {worker}: {what}", program, list(lines))


def computes_right(case: Case, mutant: Mutant) -> bool:
    """Whether a mutant computes the model's loss and gradients: by computing them."""
    try:
        return _apart(case, mutant) < 1e-9
    except Exception:  # it does not fit together, or the workers come to different movements
        return False


def _apart(case: Case, mutant: Mutant) -> float:
    whole = Replica(case.job, copy.deepcopy(case.module).train(), ())
    loss = whole.forward(whole.module, *fresh(case.example))
    loss.backward()
    made = replace(case.made, programs=dict.fromkeys(case.made.programs, mutant.program))
    parts = []
    for place in range(mutant.program.workers):
        part = SplitReplica(case.job, sliced(case.module, stored_by(mutant.program), place), made, place)
        for model in part.models.values():
            model.steps = tuple(mutant.lines[place])
        parts.append(part)
    share = len(parts) if case.made.stage else 1
    found = run_together([part.walk(*fresh(case.example), 1.0 / share) for part in parts])[0]
    worst = abs(found - float(loss.detach()))
    mine = [part.replica.take() for part in parts]
    for number, (name, expected) in enumerate(zip(trainable(case.module), whole.take(), strict=True)):
        placed = mutant.program.stored.get(name, WHOLE)
        gradients = [g[number] for g in mine]
        worst = max(worst, _gap(expected, gradients, placed, mutant.program, name))
    return worst


def _gap(expected: Tensor | None, mine: list[Tensor | None], placed: Placement, program: Program, name: str) -> float:
    """Return by how much the gradients of a parameter differ from the model's, on any worker."""
    if expected is None or any(g is None for g in mine):
        return 0.0 if expected is None and all(g is None for g in mine) else 1.0
    present = [g for g in mine if g is not None]
    if not placed.is_split:
        return max(float((g.reshape(expected.shape) - expected).abs().max()) for g in present)
    other = assembled(present, (placed, program.shapes[PARAMETER + name]), tuple(expected.shape))
    return float((other - expected).abs().max())
