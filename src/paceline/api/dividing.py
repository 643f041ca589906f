"""Divides a job's model as a plan would, without starting a worker: the bytes, the memory and the work of its parts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from paceline.core.schedules import SEND_ON
from paceline.core.schedules.clock import sends
from paceline.core.splits import PARTIAL, WHOLE
from paceline.core.splits.derivation import PARAMETER, Program
from paceline.core.splits.movements import Exchange, Movement, volume
from paceline.engines.memory_check import peaks_of
from paceline.engines.setup import Setup, set_up
from paceline.jobs.job import Job
from paceline.parameters.layout import ALIGN
from paceline.planner.divisions import ModelDivision
from paceline.planner.methods import sent
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.split_layers import SplitLayers
from paceline.plans.plan import Plan

PASSES = 8  # updates of a table that never flushes that are counted
TOTALS_BYTES = 8  # of each number in which workers of ZeRO add up losses and weights


@dataclass
class Divider:
    """Divides one job's model; what it found is kept."""

    job: Job
    #: Whether the tensors of stages are weighed, by two real micro-batches.
    weighs: bool
    _known: dict[str, ModelDivision] = field(default_factory=dict)

    def divide(self, plan: Plan) -> ModelDivision | None:
        """Return how the plan divides the model; None if it does not. Raise PacelineError if it cannot."""
        if not isinstance(plan.method, Pipeline | SplitLayers):
            return None
        if str(plan) not in self._known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                setup = set_up(self.job.untested(), plan, "local", 1)
            method = setup.plan.method
            assert isinstance(method, Pipeline | SplitLayers)
            found = _stages(setup, method, self.weighs) if isinstance(method, Pipeline) else _parts(setup, method)
            self._known[str(plan)] = found
        return self._known[str(plan)]


def _stages(setup: Setup, method: Pipeline, weighs: bool) -> ModelDivision:
    """Count the messages of a pipeline's table."""
    made, workers, micro = setup.blueprint, setup.plan.workers, method.micro_batches
    assert made is not None
    updates = method.schedule.span or PASSES
    table = setup.table([micro] * updates)
    moved = sum(
        made.bytes_on[work.stage] if work.what == SEND_ON else made.bytes_back[work.stage - 1]
        for program in table.programs
        for work in program
        if sends(work)
    )
    memory = 0
    if weighs:
        chunk = max(setup.agenda.filled(0), key=lambda chunk: chunk.samples)
        memory = max(peaks_of(setup.job, setup.module, setup.source, made, chunk, table))
    return ModelDivision(moved / updates / workers, memory)


def _parts(setup: Setup, method: SplitLayers) -> ModelDivision:
    """Count the movements of the program that workers of a group follow."""
    assert setup.split is not None
    program, number = setup.split.program, setup.layout.bytes_per_number
    size = program.workers
    exchanges = _exchanges(program, method.stage)
    moved = sum(each.sent(place) for each in exchanges for place in range(size)) * number / size
    if method.stage:
        totals = 2 + sum(prod(setup.split.shapes[name]) for name in setup.split.moving)
        added = Movement(PARTIAL, WHOLE).exchanges((totals,), size)
        moved += sum(each.sent(place) for each in added for place in range(size)) * TOTALS_BYTES / size
        exchanges += added
    if method.data > 1:
        moved += sent(method.collective, method.data, number * _payload(program, setup.split.moving, number))
    computed = {node.layer: 1.0 if not program.ways[name] else 1.0 / size for name, node in program.nodes.items()}
    if method.stage:
        computed = dict.fromkeys(computed, 1.0)  # of a chunk of its own
    segments = sum(bool(step.nodes) for step in program.steps)
    return ModelDivision(moved, 0, len(exchanges) * (size - 1), segments, _held(program), computed)


def _exchanges(program: Program, stage: int) -> list[Exchange]:
    """Return the exchanges of an update; stages 1 and 2 of ZeRO gather each parameter once."""
    moves = [step for step in program.steps if step.value and not (step.again and stage in (1, 2))]
    return [e for step in moves for e in step.movement.exchanges(program.shapes[step.value], program.workers)]


def _held(program: Program) -> float:
    """Return the share of the trained parameters that a worker holds, on average."""
    names = [name for name in program.stored if PARAMETER + name in program.needs]
    whole = program.workers * sum(prod(program.shapes[PARAMETER + name]) for name in names)
    return sum(_volume(program, name, place) for name in names for place in range(program.workers)) / max(1, whole)


def _payload(program: Program, moving: Sequence[str], number: int) -> float:
    """Return the numbers of the vector that replicas add up, on average over the workers of a group."""
    line = ALIGN // number
    trained = [name for name in program.stored if PARAMETER + name in program.needs]
    numbers = sum(
        -(-_volume(program, name, place) // line) * line
        for name in (*trained, *moving)
        for place in range(program.workers)
    )
    return numbers / program.workers + len(trained) + 2


def _volume(program: Program, name: str, place: int) -> int:
    """Return how many numbers of a parameter or buffer the worker at this place holds."""
    return volume(program.stored.get(name, WHOLE).box(program.shapes[PARAMETER + name], place))
