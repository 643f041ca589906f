"""`train`: one job, one plan, one engine, one run. The face of the library and of the command line."""

from __future__ import annotations

import contextlib
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.engines import checkpoints, mpi
from paceline.engines.job_file import save_job_file
from paceline.engines.resuming import check_same, open_run
from paceline.engines.setup import CheckpointRequest, Progress, Setup, finish, first_record, life, set_up
from paceline.errors import Blamed, CheckpointWarning, JobWarning, PlanError, RunFailed, RunStopped, UsageError, suggest
from paceline.jobs.job import Job
from paceline.plans.plan import Plan
from paceline.runs.run import Run, RunFolder, new_folder

if TYPE_CHECKING:
    from paceline.engines.virtual import World

ENGINES = ("local", "virtual", "mpi")
RUNS = Path("runs")


def train(
    job: Job | None = None,
    plan: str | Plan | None = None,
    workers: int | None = None,
    *,
    engine: str = "local",
    compute: str | None = None,
    folder: str | Path | None = RUNS,
    progress: Progress | None = None,
    updates: int | None = None,
    deadline: float = 120.0,
    world: World | None = None,
    checkpoint_every: int | str | None = None,
    resume: str | Path | Run | None = None,
) -> Run:
    """Train `job` by `plan` (None: sequential) and return the run.

    engine    "local": processes of this machine; "virtual": a clock that jumps; "mpi": the ranks that mpiexec started
    compute   "autograd" or "fused" instead of the job's
    folder    where run folders go; None keeps nothing on disk
    updates   stop after so many updates instead of `job.epochs`
    world     of the virtual engine: speeds, network, faults
    deadline  seconds a worker may wait for another before the run is called off, naming whom it waited for
    checkpoint_every  so many updates, or seconds as in "30s"; 0: only when a signal asks for one; None: no checkpoints
    resume    a run's folder: go on with that run. Its job, plan and settings are its own; `workers` may be another
              number where the plan allows that, and `job` is needed only where the folder could not keep it
    """
    if engine not in ENGINES:
        raise PlanError(f"there is no engine {engine!r}; {suggest(engine, ENGINES)}")
    if not deadline > 0:
        raise UsageError(f"deadline={deadline}: nobody waits less than no time; give seconds, such as 120")
    if (resume is not None or checkpoint_every is not None) and (engine != "local" or folder is None):
        raise UsageError("checkpoints need engine='local' and a folder to lie in")
    every = _every(checkpoint_every)
    if resume is not None:
        return _go_on(_path(resume), job, plan, workers, progress, updates, deadline, every)
    if job is None:
        raise UsageError("there is no job to train: give one (--help says how), or the run to go on with (resume)")
    job.refuse_unused()
    if compute is not None:
        job = job.with_(compute=compute)
    chosen = Plan.parse("sequential" if plan is None else plan, workers)
    if workers not in (None, chosen.workers):
        says = f"has {chosen.workers}" if "workers" in chosen.options else "is one process"
        what = f"{workers} workers were asked for, and plan {chosen} {says}; plans of several are ring, downpour, ..."
        warnings.warn(what, JobWarning, stacklevel=2)
    if chosen.traits.local_only and engine != "local":
        raise PlanError(f"plan {chosen.name!r} {chosen.traits.local_only}: engine='local'")
    if chosen.traits.no_checkpoints and every is not None:
        if any(every):
            raise PlanError(f"plan {chosen.name} keeps no checkpoints: {chosen.traits.no_checkpoints}")
        every = None  # nor when a signal asks for one
    if engine == "mpi":
        mpi.check(job, chosen)
        if mpi.rank():  # the first rank keeps and evaluates
            job, folder = job.with_(test=None), None
    setup = set_up(job, chosen, engine, updates)
    record = {**first_record(setup, kept=folder is not None), "checkpoint_every": every}
    path = new_folder(Path(folder), f"{job.name}-{chosen.name}") if folder is not None else None
    request = CheckpointRequest(path, *every, record["lives"], None) if every and path else None
    with RunFolder(path) as place:
        save_job_file(place, job, to_go_on=every is not None)
        return _run(setup, place, record, progress, deadline, world, request)


def _go_on(
    path: Path,
    job: Job | None,
    plan: str | Plan | None,
    workers: int | None,
    progress: Progress | None,
    updates: int | None,
    deadline: float,
    every: tuple[int, float] | None,
) -> Run:
    """The next life of a run, in the same folder."""
    with RunFolder(path) as place:
        job, chosen, before = open_run(path, job, plan, workers, updates)
        begin = checkpoints.newest(path)
        setup = set_up(job, chosen, "local", before["limit"])
        check_same(setup, before)
        if begin is None:
            warnings.warn(f"{path} has no checkpoint yet: the run begins again", CheckpointWarning, stacklevel=3)
        every = every or tuple(before["checkpoint_every"])
        lives = [*begin.lives, life(setup, begin.updates)] if begin else [life(setup, 0)]
        same = {"started": before["started"], "lives": lives, "checkpoint_every": every}
        record = {**first_record(setup, kept=True), **same}
        return _run(setup, place, record, progress, deadline, None, CheckpointRequest(path, *every, lives, begin))


def _run(
    setup: Setup,
    place: RunFolder,
    record: dict[str, Any],
    progress: Progress | None,
    deadline: float,
    world: World | None,
    request: CheckpointRequest | None,
) -> Run:
    from paceline.engines import local, virtual

    place.write(record)
    try:
        if setup.engine in ("virtual", "mpi"):
            outcome = mpi.train(setup) if setup.engine == "mpi" else virtual.train(setup, world or virtual.World())
            place.keep_trace(outcome.trace)
            return finish(setup, outcome, place, record)
        with local.train(setup, place.file("trace.arrow"), progress, deadline, request) as outcome:
            return finish(setup, outcome, place, record)
    except BaseException as error:
        status = "stopped" if isinstance(error, RunStopped) else "failed"
        record = {**record, "status": status, "error": f"{type(error).__name__}: {error}"}
        if isinstance(error, Blamed):
            error.failure.run = place.path if setup.plan.replayable else None
            record |= {"error": str(error), "failure": error.failure.as_dict()}
        with contextlib.suppress(RunFailed):  # which would hide the reason
            place.write(record)
        raise


def _path(run: str | Path | Run) -> Path:
    path = run.path if isinstance(run, Run) else Path(run)
    if path is None:
        raise UsageError("this run has no folder (folder=None), so nothing was kept to go on with")
    return path


def _every(given: int | str | None) -> tuple[int, float] | None:
    """Updates and seconds between two checkpoints, 0 where it is not by them."""
    if given is None:
        return None
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)s", str(given)):
        return 0, float(found[1])
    if not str(given).isdigit():
        raise UsageError(f"checkpoint_every={given!r} is neither a number of updates nor of seconds, as in '30s'")
    return int(given), 0.0
