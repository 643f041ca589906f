"""`train`: one job, one plan, one engine, one run. The face of the library and of the command line."""

from __future__ import annotations

from pathlib import Path

from paceline.engines.setup import Progress, first_record, finish, set_up
from paceline.errors import PlanError, suggest
from paceline.job import Job
from paceline.plan import Plan
from paceline.run import Run, RunFolder, new_folder

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
) -> Run:
    """Train `job` by `plan` and return the run.

    folder    where run folders go; None keeps nothing on disk
    updates   stop after so many updates instead of `job.epochs`
    deadline  seconds a worker may wait for another before the run is called off, naming whom it waited for
    """
    from paceline.engines import local

    chosen = Plan.parse(plan, workers)
    if engine not in ENGINES:
        raise PlanError(f"there is no engine {engine!r}; {suggest(engine, ENGINES)}")
    setup = set_up(job, chosen, engine, updates)
    place = RunFolder(new_folder(Path(folder), f"{job.name}-{chosen.name}") if folder is not None else None)
    record = first_record(setup)
    place.write(record)
    try:
        outcome = local.train(setup, place.file("trace.arrow"), progress, deadline)
    except BaseException as error:
        place.write({**record, "status": "failed", "error": f"{type(error).__name__}: {error}"})
        raise
    return finish(setup, outcome, place, record)
