"""`train`: one job, one plan, one engine, one run. `paceline.train` and `paceline train` both call it."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.engines import ENGINES, KEEPING, Life, Settings
from paceline.api.hooks import Hooks
from paceline.api.stopped import stopped_run
from paceline.callbacks import check
from paceline.callbacks.loggers import named
from paceline.engines import checkpoints, cluster, mpi
from paceline.engines.checkpoints import CheckpointRequest
from paceline.engines.job_file import save_job_file
from paceline.engines.outcome import Earlier, Hearer, finish
from paceline.engines.record import first_record, life_record
from paceline.engines.resuming import check_end, check_same, for_plan, next_plan, open_run
from paceline.engines.setup import Setup, set_up
from paceline.errors import (
    Blamed,
    CheckpointWarning,
    JobWarning,
    PacelineError,
    PlanError,
    PlanWarning,
    RunFailed,
    RunStopped,
    UsageError,
    WorkerDied,
    WorkerSilent,
    is_positive,
    suggest,
    whole,
)
from paceline.errors.arguments import check_arguments
from paceline.errors.renames import RENAMED_ARGUMENTS, accepts_old_names
from paceline.jobs.job import Job, checked
from paceline.jobs.loading import own_arguments
from paceline.plans.clusters import check_method
from paceline.plans.plan import Plan
from paceline.runs.folder import RunFolder, new_folder, unless_begun
from paceline.runs.live import Heartbeat
from paceline.runs.progress import ProgressCallback
from paceline.runs.record import CheckpointInterval, Evaluation, FailureRecord, RunRecord, Status
from paceline.runs.run import Run

if TYPE_CHECKING:
    from paceline.engines.cluster import Roster
    from paceline.engines.virtual import World

RUNS = Path("runs")
AUTO = "auto"


@accepts_old_names(RENAMED_ARGUMENTS["train"])
@own_arguments()
def train(
    job: Job | None = None, plan: str | Plan | None = None, workers: int | None = None, *, engine: str = "local",
    compute: str | None = None, folder: str | Path | None = RUNS, progress: ProgressCallback | None = None,
    max_updates: int | None = None, timeout: float = 120.0, world: World | None = None,
    checkpoint_every: int | str | None = None, resume: str | Path | Run | None = None, epochs: int | None = None,
    callbacks: Sequence[Any] = (), loggers: Sequence[Any] = (), keys: str | Path | None = None,
    trusted_network: bool = False, backups: int = 1, address: str | None = None,
) -> Run:  # fmt: skip
    """Train a job by a plan and return the run.

    Args:
        job: The job. With `resume`, it is needed only where the run's folder could not keep it.
        plan: A plan, its name with options such as `"downpour:workers=4"`, or `"auto"` for the choice of
            `paceline.choose`. Default: one process.
        workers: The number of workers, unless the plan states it.
        engine: `"local"`: processes on this machine; `"virtual"`: a simulated clock; `"mpi"`: the ranks that mpiexec
            started; `"cluster"`: the nodes that torchrun, srun, mpiexec or Kubernetes started, each of which calls
            this function; `"ray"`: nodes that Ray places, starts and replaces.
        compute: `"autograd"`, `"fused"` or `"auto"`, instead of the job's.
        folder: Where the run's folder is created; None writes nothing to disk.
        progress: A function that is called about ten times a second with a Progress, in this process. It ends the run
            by raising.
        max_updates: Updates after which the run ends, instead of after `job.epochs`.
        world: The simulated speeds, network and faults, for the virtual engine.
        timeout: Seconds a worker waits for another before the run fails with the name of the one it waited for.
        checkpoint_every: Updates between checkpoints, or seconds as in `"30s"`; 0: only at a signal; None: none.
        resume: The folder of a run to resume from its newest checkpoint, with its own job, plan and settings.
            `workers` may differ where the plan allows that.
        epochs: With `resume`: the passes over the data in total, more than before, so a finished run can be continued.
        callbacks: Objects with hooks such as `on_evaluation_end`, called in this process.
        loggers: `"csv"`, `"tensorboard"`, `"wandb"` or `"mlflow"`, with options as in `"wandb:project=digits"`.
        keys: The folder of keys with which the nodes of a cluster authenticate each other (`paceline keys`).
        trusted_network: Authenticate the nodes of a cluster by `PACELINE_TOKEN`, without encryption.
        backups: Servers on other nodes that hold a copy of each shard, on a cluster and under plans with servers.
        address: The Ray cluster, `HOST:PORT` or `"auto"`. Default: one is started on this machine for the run.
    """
    given = locals()
    _check_together(engine, address, keys, epochs, resume, world)
    _check(engine, folder, timeout, checkpoint_every is not None or resume is not None)
    if progress is not None and not callable(progress):
        raise UsageError(
            f"progress={progress!r} is not a function that takes a Progress; for a bar give "
            "callbacks=[paceline.ProgressBar()]"
        )
    max_updates, workers = whole("max_updates", max_updates, 1), whole("workers", workers, 1)
    backups, epochs = whole("backups", backups, 0), whole("epochs", epochs, 1)
    check_arguments(train, given)
    node = cluster.roster(keys=keys, trusted_network=trusted_network) if engine == "cluster" else None
    hooks = _callbacks(callbacks, loggers, node)
    settings = Settings(engine, progress, timeout, world, hooks, node, backups, address, trusted_network)
    interval = _interval(checkpoint_every)
    if resume is not None:
        return _resume(_path(resume), job, plan, workers, max_updates, epochs, interval, settings)
    if job is None:
        raise UsageError("no job is given: name a job file, a built-in job such as digits, or a run to resume")
    checked(job).refuse_unused()
    job, plan, workers = _settled(job, plan, workers, engine, compute, max_updates)
    return _begin(job, plan, workers, folder, max_updates, interval, settings)


def _ranks(engine: str) -> contextlib.AbstractContextManager[None]:
    """Return what ends all ranks of MPI when this one fails; what Paceline refuses, all of them raise."""
    if engine != "mpi":
        return contextlib.nullcontext()
    from paceline.engines.mpi import one_for_all

    return one_for_all(PacelineError)


def _settled(
    job: Job, plan: str | Plan | None, workers: int | None, engine: str, compute: str | None, updates: int | None
) -> tuple[Job, str | Plan | None, int | None]:
    """Return the job with its way of computing gradients, the plan and its workers; the planner chooses `auto`."""
    job = job if compute is None else job.with_(compute=compute)
    if engine == "mpi" and job.compute == "auto":
        job = job.with_(compute="fused")  # there is no other way for its ranks
    if plan != AUTO:
        return job, plan, workers
    if engine != "local":
        raise UsageError(f"plan 'auto' chooses for the processes of this machine, and not for engine={engine!r}")
    from paceline.api.planning.following import follow

    plan, chosen, why = follow(job, workers, updates)
    warnings.warn(f"plan auto: {plan}. {why}", PlanWarning, stacklevel=3)
    return job.with_(compute=chosen), plan, None


def _begin(
    job: Job, plan: str | Plan | None, workers: int | None, folder: str | Path | None, updates: int | None,
    interval: CheckpointInterval | None, settings: Settings,
) -> Run:  # fmt: skip
    """Begin a run in a folder of its own."""
    engine, node = settings.engine, settings.node
    chosen = plan_of(plan, workers or (node.nodes if node else None), engine)
    stoppable = bool(settings.callbacks) and engine in KEEPING and folder is not None
    interval = _possible(interval, chosen, stoppable)
    leads = not _follows(job, chosen, engine, node)
    folder = folder if leads else None
    with _notes_of_rank_0(engine, node), _ranks(engine):
        setup = set_up(job, chosen, engine, updates, tested=leads, bounded=True)
    record = first_record(setup, kept=folder is not None).with_(checkpoint_every=interval)
    path = new_folder(Path(folder), f"{job.name}-{chosen.name}") if folder is not None else None
    request = CheckpointRequest(path, interval, record.lives, None) if interval and path else None
    with unless_begun(path), RunFolder(path) as place:
        save_job_file(place, job, resumable=interval is not None)
        return _run(setup, place, record, request, settings)


def _check_together(
    engine: str, address: str | None, keys: str | Path | None, epochs: int | None, resume: str | Path | Run | None,
    world: World | None,
) -> None:  # fmt: skip
    """Raise for settings that belong to others that are not given."""
    if world is not None and engine != "virtual":
        raise UsageError(f"a world is simulated, so it needs engine='virtual', and not {engine!r}")
    if address is not None and engine != "ray":
        raise UsageError("an address is that of a Ray cluster, so it needs engine='ray'")
    if engine == "ray":
        cluster.refuse_torchrun()
    if keys is not None and engine == "ray":
        raise UsageError("engine='ray' makes keys for every run and hands them out itself; leave keys out")
    if keys is not None and engine != "cluster":
        raise UsageError(
            "keys are for the nodes of a cluster, and this run has none; start it with torchrun, srun or "
            "PACELINE_NODES=2 PACELINE_HEAD=HOST:PORT PACELINE_RANK=0, or leave keys out"
        )
    if epochs is not None and resume is None:
        raise UsageError("epochs= is for a run to resume (resume=); a job has its own: Job(epochs=)")


def _check(engine: str, folder: str | Path | None, timeout: float, checkpoints_wanted: bool) -> None:
    if engine not in ENGINES:
        raise PlanError(f"there is no engine {engine!r}; {suggest(engine, ENGINES)}")
    if not is_positive(timeout):
        raise UsageError(f"timeout={timeout!r} is not a positive number of seconds; give one, such as 120")
    if checkpoints_wanted and (engine not in KEEPING or folder is None):
        keeping = ", ".join(map(repr, KEEPING[:-1])) + f" or {KEEPING[-1]!r}"
        raise UsageError(f"checkpoints need engine={keeping}, and a folder")


def _follows(job: Job, plan: Plan, engine: str, node: Roster | None) -> bool:
    """Whether another rank writes and evaluates; PlanError or JobError for what a launcher's ranks do not support."""
    if engine == "mpi":
        mpi.check(job, plan)
        return mpi.rank() > 0
    if engine == "ray":
        check_method(plan)
    if node is None:
        return False
    cluster.check(plan, node)
    return not node.leads


@contextlib.contextmanager
def _notes_of_rank_0(engine: str, node: Roster | None) -> Iterator[None]:
    """Let rank 0 alone warn of the job within the block."""
    with warnings.catch_warnings():
        if node is not None and not node.leads:
            warnings.simplefilter("ignore", JobWarning)
        yield


def _callbacks(callbacks: Sequence[Any], loggers: Sequence[Any], node: Roster | None) -> list[Any]:
    """Return the callbacks with the loggers; of several ranks, only the first has any."""
    found = [*callbacks, *named(loggers)]
    check(found)
    return [] if mpi.rank() or (node is not None and not node.leads) else found


def _possible(interval: CheckpointInterval | None, plan: Plan, stoppable: bool) -> CheckpointInterval | None:
    """Return when checkpoints are taken under this plan; a `stoppable` run takes one where a callback stops it."""
    why = plan.traits.no_checkpoints
    if not why:
        return CheckpointInterval(0, 0.0) if interval is None and stoppable else interval
    if interval is not None and any(interval):
        raise PlanError(f"plan {plan.name} keeps no checkpoints: {why}")
    return None  # nor when a signal asks for one


def plan_of(plan: str | Plan | None, workers: int | None, engine: str) -> Plan:
    """Return the plan that is named, one process if none is; PlanError for one that the engine does not run."""
    chosen = Plan.parse("sequential" if plan is None else plan, workers)
    if workers not in (None, chosen.workers):
        own = f"has {chosen.workers}; leave out one of the two"
        says = own if "workers" in chosen.options else "is one process; plans of several are ring, downpour, ..."
        what = f"{workers} workers were asked for, and plan {chosen} {says}"
        warnings.warn(what, JobWarning, stacklevel=3)
    if chosen.traits.local_only and engine not in ("local", "cluster", "ray"):
        raise PlanError(f"plan {chosen.name!r} {chosen.traits.local_only}: engine='local'")
    return chosen


def _resume(
    path: Path, job: Job | None, plan: str | Plan | None, workers: int | None, updates: int | None,
    epochs: int | None, interval: CheckpointInterval | None, settings: Settings,
) -> Run:  # fmt: skip
    """Begin the next life of a run, in the same folder."""
    if settings.node is not None and not settings.node.leads:
        return _resume_elsewhere(path, job, plan, workers, updates, epochs, settings, settings.node)
    with RunFolder(path) as place:
        job, chosen, before = open_run(path, job, plan, workers, updates, epochs)
        if settings.node is not None:
            chosen = _on_nodes(chosen, workers, settings.node)
            cluster.check(chosen, settings.node, resumed=True)
        begin = checkpoints.newest(path)
        setup = set_up(job, chosen, settings.engine, before.limit, bounded=True)
        check_same(setup, before, epochs)
        begin = for_plan(begin, before, job, setup)
        if epochs is not None:
            check_end(setup, begin.updates if begin else 0, before.job.epochs or 0)
            save_job_file(place, job, resumable=True)
        if begin is None:
            warnings.warn(f"{path} has no checkpoint yet: the run begins again", CheckpointWarning, stacklevel=3)
        interval = interval or before.checkpoint_every
        assert interval is not None, "open_run refuses a run without checkpoints"
        lives = (*begin.lives, life_record(setup, begin.updates)) if begin else (life_record(setup, 0),)
        record = first_record(setup, kept=True).with_(started=before.started, lives=lives, checkpoint_every=interval)
        record = record.with_(files={**record.files, **before.files})  # as they were where the run began
        earlier = [each for each in before.history if begin is not None and each.updates <= begin.updates]
        return _run(setup, place, record, CheckpointRequest(path, interval, lives, begin), settings, earlier)


def _on_nodes(plan: Plan, workers: int | None, node: Roster) -> Plan:
    """Return the plan to resume with on these nodes: one with as many workers, where the algorithm allows that."""
    return plan if workers is not None or plan.traits.keeps_step else next_plan(plan, None, node.nodes)


def _resume_elsewhere(
    path: Path, job: Job | None, plan: str | Plan | None, workers: int | None, updates: int | None,
    epochs: int | None, settings: Settings, node: Roster,
) -> Run:  # fmt: skip
    """Take part in the next life of a run whose folder belongs to another node, and may lie there alone."""
    if (path / "run.json").is_file():
        job, chosen, before = open_run(path, job, plan, workers, updates, epochs)
        updates = before.limit
    elif job is None or plan is None:
        raise UsageError(
            f"rank {node.rank} finds no run in {path}: give a folder that all nodes share, or JOB and --plan as well"
        )
    else:
        chosen = plan_of(plan, workers, "cluster")
    chosen = _on_nodes(chosen, workers, node)
    cluster.check(chosen, node, resumed=True)
    with _notes_of_rank_0("cluster", node):
        setup = set_up(job, chosen, "cluster", updates, tested=False, bounded=True)
    return _run(setup, RunFolder(None), first_record(setup, kept=False), None, settings)


def _run(
    setup: Setup, place: RunFolder, record: RunRecord, request: CheckpointRequest | None, settings: Settings,
    earlier: Sequence[Evaluation] = (),
) -> Run:  # fmt: skip
    """Train on the engine of the setup. The folder says how it ended, also when it raises."""
    place.write(record)
    hooks = Hooks(settings.callbacks, setup, place.path, settings.progress, earlier) if settings.callbacks else None
    hearer: Hearer = hooks or Earlier({each.updates: each for each in earlier})
    settings = replace(settings, progress=hooks) if hooks else settings
    with Heartbeat(place.path, setup.agenda.updates) as heartbeat:
        life = Life(setup.anew(), place, request, settings, heartbeat)
        try:
            if hooks is None:
                return _train(life, record, hearer)
            hooks.begin()
            try:
                run = _train(life, record, hooks)
            except RunStopped as stopped:
                if hooks.training.stopping is None or place.path is None or stopped.why:
                    raise
                run = stopped_run(setup, place, place.path, record, hooks)
            return hooks.end(run)
        except BaseException as error:
            with contextlib.suppress(RunFailed):  # which would hide the reason
                place.write(_failed(setup, place, record, error))
            if hooks is not None:
                hooks.failed(error)
            raise


def _train(life: Life, record: RunRecord, hearer: Hearer) -> Run:
    with ENGINES[life.settings.engine].train(life) as outcome:
        return finish(life.setup, outcome, life.place, record, hearer)


def _failed(setup: Setup, place: RunFolder, record: RunRecord, error: BaseException) -> RunRecord:
    """Describe the end of a run that did not finish; a failure learns where it can be replayed from."""
    if isinstance(error, KeyboardInterrupt):
        return record.with_(status=Status.STOPPED, error="interrupted by Ctrl-C or SIGTERM")
    status = Status.STOPPED if isinstance(error, RunStopped) else Status.FAILED
    if not isinstance(error, Blamed):
        return record.with_(status=status, error=f"{type(error).__name__}: {error}")
    error.failure.run = place.path if setup.plan.replayable else None
    if record.checkpoint_every is not None and isinstance(error, WorkerDied | WorkerSilent):
        error.failure.resume = place.path
    return record.with_(status=status, error=str(error), failure=FailureRecord.of(error.failure))


def _path(run: str | Path | Run) -> Path:
    path = run.path if isinstance(run, Run) else Path(run)
    if path is None:
        raise UsageError("this run has no folder (folder=None), so there is nothing to resume")
    return path


def _interval(given: int | str | None) -> CheckpointInterval | None:
    """Parse `checkpoint_every`; None means no checkpoints at all."""
    if given is None:
        return None
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)s", str(given)):
        return CheckpointInterval(0, float(found[1]))
    if not str(given).isdecimal():
        raise UsageError(f"checkpoint_every={given!r} is neither a number of updates nor of seconds, as in '30s'")
    return CheckpointInterval(int(given), 0.0)
