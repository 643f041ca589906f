"""Divides a job's model as a plan would, without starting a worker: the bytes, the memory and the work of its parts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from paceline.algorithms.schedules.clock import Walk
from paceline.algorithms.schedules.worker import Send
from paceline.algorithms.splits.derivation import Program
from paceline.planning.planner.facts import ModelDivision
from paceline.planning.planner.split_search import OperationGraph, division_of
from paceline.plans.methods.views import Parts, Stages
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.dividing import peaks_of
from paceline.runtime.engines.setup import Setup, set_up
from paceline.training.jobs.job import Job

PASSES = 8  # updates of a table that never flushes that are counted


@dataclass
class Divider:
    """Divides one job's model; what it found is kept."""

    job: Job
    #: Whether the tensors of stages are weighed, by two real micro-batches.
    weighs: bool
    _known: dict[str, ModelDivision] = field(default_factory=dict)

    def divide(self, plan: Plan) -> ModelDivision | None:
        """Return how the plan divides the model; None if it does not. Raise PacelineError if it cannot."""
        if not plan.traits.divided:
            return None
        if str(plan) not in self._known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                setup = set_up(self.job.untested(), plan, "local", 1)
            match setup.plan.method.picture(plan.workers):
                case Stages() as stages:
                    self._known[str(plan)] = _stages(setup, stages, self.weighs)
                case Parts() as parts:
                    self._known[str(plan)] = _parts(setup, parts)
        return self._known[str(plan)]


@dataclass(frozen=True)
class Splittable:
    """A job's model as a search of splits takes it."""

    graph: OperationGraph
    parts: Parts
    #: The shapes of the buffers that training changes.
    moving: dict[str, tuple[int, ...]]
    #: Bytes of a number.
    number: int

    def division(self, program: Program) -> ModelDivision:
        """Return the figures of a program of this model."""
        return division_of(program, self.parts, self.moving, self.number)


def splittable(job: Job, workers: int, data: int) -> Splittable:
    """Trace the model for so many replicas; raise PacelineError if it cannot be traced or divided so."""
    plan = make("per_layer", workers=workers, data=data, ways="*:whole")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup = set_up(job.untested(), plan, "local", 1)
    assert setup.split is not None
    parts = plan.method.picture(workers)
    assert isinstance(parts, Parts)
    program = setup.split.program
    graph = OperationGraph(
        tuple(program.nodes.values()), _inputs(program), program.outputs, program.needs, program.workers
    )
    moving = {name: setup.split.shapes[name] for name in setup.split.moving}
    return Splittable(graph, parts, moving, setup.layout.bytes_per_number)


def _inputs(program: Program) -> dict[str, tuple[int, ...]]:
    return {name: tuple(program.shapes[name]) for name in program.inputs}


def _stages(setup: Setup, stages: Stages, weighs: bool) -> ModelDivision:
    """Count the messages of a pipeline's table."""
    blueprint, workers, micro = setup.blueprint, setup.plan.workers, stages.micro_batches
    assert blueprint is not None
    updates = stages.span or PASSES
    table = setup.table([micro] * updates)
    moved = sum(
        blueprint.bytes_on[stage] if stage < other else blueprint.bytes_back[other]
        for _, effect, _ in Walk.of(table)
        if isinstance(effect, Send)
        for stage, other in [effect.channel]
    )
    memory = 0
    if weighs:
        chunk = max(setup.agenda.filled(0), key=lambda chunk: chunk.samples)
        memory = max(peaks_of(setup.job, setup.module, setup.source, blueprint, chunk, table))
    return ModelDivision(moved / updates / workers, memory)


def _parts(setup: Setup, parts: Parts) -> ModelDivision:
    """Return the figures of the program that workers of a group follow."""
    assert setup.split is not None
    moving = {name: setup.split.shapes[name] for name in setup.split.moving}
    return division_of(setup.split.program, parts, moving, setup.layout.bytes_per_number)
