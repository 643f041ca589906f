"""Running a plan in a virtual world: in time only (`simulate`), or with the job's real arithmetic (`train`)."""

from __future__ import annotations

from torch import Tensor

from paceline.core.agenda import Agenda
from paceline.engines.arithmetic.pipeline import StagedPipeline
from paceline.engines.arithmetic.servers import ServerArithmetic
from paceline.engines.arithmetic.synchronous import synchronous
from paceline.engines.outcome import Outcome, Snapshot
from paceline.engines.setup import Setup
from paceline.engines.threads import threads
from paceline.engines.virtual.pipeline import run_pipeline
from paceline.engines.virtual.server import run_server
from paceline.engines.virtual.synchronous import run_synchronous
from paceline.engines.virtual.world import World
from paceline.gradients.payload import Payload
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.server import Server
from paceline.plans.plan import Plan
from paceline.runs.trace import Row, Trace


def train(setup: Setup, world: World) -> Outcome:
    """Train with the job's real arithmetic, in virtual time."""
    with threads(setup.plan.threads):
        return _train(setup, world)


def _train(setup: Setup, world: World) -> Outcome:
    plan, agenda, method, layout = setup.plan, setup.agenda, setup.plan.method, setup.layout
    if isinstance(method, Server):
        server = ServerArithmetic(setup)
        rows = run_server(plan, method, agenda, world, layout.bytes, server)
        return _outcome(rows, server.values(), server.snapshots.kept)
    if isinstance(method, Pipeline):
        stages = StagedPipeline(setup)
        return _outcome(run_pipeline(plan, method, agenda, world, stages), stages.values(), stages.snapshots)
    workers = synchronous(setup)
    size = layout.bytes if isinstance(method, Alone) else Payload.length(layout) * layout.bytes_per_number
    rows = run_synchronous(plan, agenda, world, size, workers)
    return _outcome(rows, workers.values(), workers.snapshots.kept)


def simulate(plan: Plan, agenda: Agenda, world: World, parameter_bytes: int = 220_200) -> Trace:
    """Simulate the plan in this world without a model, in time only.

    A coordinator is assumed to evaluate twice per update, and its vector algebra to take no time.
    """
    method = plan.method
    if isinstance(method, Pipeline):
        rows = run_pipeline(plan, method, agenda, world, None)
    elif isinstance(method, Server):
        rows = run_server(plan, method, agenda, world, parameter_bytes, None)
    else:
        rows = run_synchronous(plan, agenda, world, parameter_bytes, None)
    return Trace.of(sorted(rows, key=lambda row: row.end))


def _outcome(rows: list[Row], values: list[Tensor], snapshots: list[Snapshot]) -> Outcome:
    trace = Trace.of(sorted(rows, key=lambda row: row.end))
    return Outcome(trace, max((row.end for row in rows), default=0) / 1e9, values, snapshots)
