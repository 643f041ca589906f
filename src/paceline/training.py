"""`train`: one job, one plan, one engine, one run. The face of the library and of the command line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.engines.setup import Progress, finish, first_record, keep_job, set_up
from paceline.errors import Blamed, PlanError, RunFailed, UsageError, suggest
from paceline.job import Job
from paceline.plan import Plan
from paceline.run import Run, RunFolder, new_folder

if TYPE_CHECKING:
    from paceline.engines.virtual import World

ENGINES = ("local", "virtual")
RUNS = Path("runs")


def train(
    job: Job,
    plan: str | Plan = "sequential",
    workers: int | None = None,
    *,
    engine: str = "local",
    folder: str | Path | None = RUNS,
    progress: Progress | None = None,
    updates: int | None = None,
    deadline: float = 120.0,
    world: World | None = None,
) -> Run:
    """Train `job` by `plan` and return the run.

    folder    where run folders go; None keeps nothing on disk
    updates   stop after so many updates instead of `job.epochs`
    world     of the virtual engine: speeds, network, faults
    deadline  seconds a worker may wait for another before the run is called off, naming whom it waited for
    """
    from paceline.engines import local, virtual

    chosen = Plan.parse(plan, workers)
    if engine not in ENGINES:
        raise PlanError(f"there is no engine {engine!r}; {suggest(engine, ENGINES)}")
    if chosen.native and engine != "local":
        raise PlanError(f"plan {chosen.name!r} is PyTorch's own code and runs on real processes only: engine='local'")
    if not deadline > 0:
        raise UsageError(f"deadline={deadline}: nobody waits less than no time; give seconds, such as 120")
    setup = set_up(job, chosen, engine, updates)
    place = RunFolder(new_folder(Path(folder), f"{job.name}-{chosen.name}") if folder is not None else None)
    record = first_record(setup, kept=place.path is not None)
    place.write(record)
    keep_job(place, job)
    try:
        if engine == "virtual":
            outcome = virtual.train(setup, world or virtual.World())
            place.keep_trace(outcome.trace)
            return finish(setup, outcome, place, record)
        with local.train(setup, place.file("trace.arrow"), progress, deadline) as outcome:
            return finish(setup, outcome, place, record)
    except BaseException as error:
        record = {**record, "status": "failed", "error": f"{type(error).__name__}: {error}"}
        if isinstance(error, Blamed):
            error.failure.run = place.path if chosen.replayable else None
            record |= {"error": str(error), "failure": error.failure.as_dict()}
        with contextlib.suppress(RunFailed):  # which would hide the reason
            place.write(record)
        raise
