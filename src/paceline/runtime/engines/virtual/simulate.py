"""Running a plan in a virtual world: in time only (`simulate`), or with the job's real arithmetic (`train`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.codecs.catalogue import estimate
from paceline.errors.arguments import check_arguments
from paceline.plans.plan import Plan, program_of
from paceline.runtime.engines.arithmetic.dataflow import DataflowArithmetic
from paceline.runtime.engines.arithmetic.pipeline import ReplicaArithmetic, StagedPipeline
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.arithmetic.splits import SplitArithmetic
from paceline.runtime.engines.arithmetic.synchronous import SynchronousArithmetic, synchronous
from paceline.runtime.engines.outcome import Outcome
from paceline.runtime.engines.setup import Setup
from paceline.runtime.engines.virtual.dataflow import run_dataflow
from paceline.runtime.engines.virtual.lockstep import run_synchronous
from paceline.runtime.engines.virtual.pipeline import run_pipeline
from paceline.runtime.engines.virtual.rows import Rows, Totals, TraceRows
from paceline.runtime.engines.virtual.server import run_server
from paceline.runtime.engines.virtual.splits import run_split
from paceline.runtime.engines.virtual.world import World
from paceline.runtime.runs.trace import Trace
from paceline.training.gradients.payload import Payload
from paceline.training.jobs.job import threads

Arithmetic = (
    SynchronousArithmetic | ServerArithmetic | StagedPipeline | SplitArithmetic | ReplicaArithmetic | DataflowArithmetic
)

#: What runs the workers of a plan without a server on one clock, by what they hold of the model: called with the plan
#: and its method, the agenda, the world, the bytes that a worker sends, the arithmetic or None, and where its rows go.
RUNS: dict[str, Callable[[Plan, Any, Agenda, World, int, Any, Rows], None]] = {
    "replica": run_synchronous,
    "stages": run_pipeline,
    "parts": run_split,
    "operators": run_dataflow,
}


def _run(plan: Plan, agenda: Agenda, world: World, size: int, arithmetic: Arithmetic | None, rows: Rows) -> None:
    """Run a plan on one clock."""
    served = plan.method.server is not None and plan.traits.whole_model
    run = run_server if served else RUNS[plan.traits.holds]
    run(plan, plan.method, agenda, world, size, arithmetic, rows)  # type: ignore[arg-type]


def train(setup: Setup, world: World) -> Outcome:
    """Train with the job's real arithmetic, in virtual time."""
    check_arguments(train, {"world": world})
    with threads(setup.plan.threads):
        plan, layout = setup.plan, setup.layout
        arithmetic = _arithmetic(setup)
        size = Payload.length(layout) * layout.bytes_per_number if plan.traits.synchronous else layout.bytes
        rows = TraceRows()
        _run(plan, setup.agenda, world, size, arithmetic, rows)
        trace = rows.trace()
        seconds = int(trace.rows["end"].max(initial=0)) / 1e9
        return Outcome(trace, seconds, arithmetic.values(), arithmetic.snapshots.kept)


def simulate(plan: Plan, agenda: Agenda, world: World, parameter_bytes: int = 220_200) -> Trace:
    """Simulate the plan in this world without a model, in time only.

    A coordinator is assumed to evaluate twice per update, and its vector algebra to take no time.
    """
    rows = TraceRows()
    _run(plan, agenda, world, _size(plan, parameter_bytes), None, rows)
    return rows.trace()


def simulate_totals(plan: Plan, agenda: Agenda, world: World, parameter_bytes: int = 220_200) -> Totals:
    """Simulate the plan in this world in time only, and keep no trace: for thousands of workers."""
    totals = Totals()
    _run(plan, agenda, world, _size(plan, parameter_bytes), None, totals)
    return totals


def _size(plan: Plan, parameter_bytes: int) -> int:
    """Return about how many bytes a worker sends of so many bytes of parameters; servers tell pushes from pulls."""
    return round(estimate(plan.codec, parameter_bytes)) if plan.traits.synchronous else parameter_bytes


def _arithmetic(setup: Setup) -> Arithmetic:
    """Make the arithmetic of the plan's method."""
    plan = setup.plan
    if setup.pipeline is not None:
        return StagedPipeline(setup) if plan.method.server is None else ReplicaArithmetic(setup)
    if plan.method.server is not None:
        return ServerArithmetic(setup)
    if setup.operators is not None:
        return DataflowArithmetic(setup)
    if setup.split is not None:
        return SplitArithmetic(setup, plan.method)  # type: ignore[arg-type]
    return synchronous(setup, program_of(plan))
