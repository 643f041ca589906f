"""`train`: one job, one plan, one engine, one run. `paceline.train` and `paceline train` both call it."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import (
    Blamed,
    CheckpointWarning,
    DeathWarning,
    JobWarning,
    PacelineError,
    PeerLost,
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
from paceline.errors.renames import RENAMED_ARGUMENTS, accepts_old_names, gathers_arguments
from paceline.interfaces.api.engines import ENGINES, KEEPING, Request
from paceline.interfaces.api.hooks import Hooks, ProgressFunction, stopped_run
from paceline.interfaces.callbacks import check
from paceline.interfaces.callbacks.loggers import named
from paceline.plans.plan import Plan, check_method
from paceline.runtime.engines import checkpoints, cluster, mpi
from paceline.runtime.engines.checkpoints import CheckpointRequest
from paceline.runtime.engines.cluster import NodeOptions
from paceline.runtime.engines.cluster.rendezvous import Dismissed
from paceline.runtime.engines.cluster.successor import Promoted
from paceline.runtime.engines.job_file import save_job_file
from paceline.runtime.engines.outcome import Life, finish
from paceline.runtime.engines.record import first_record, life_record
from paceline.runtime.engines.resuming import check_end, check_same, for_plan, next_plan, open_run
from paceline.runtime.engines.setup import Setup, set_up
from paceline.runtime.runs.live import Heartbeat
from paceline.runtime.runs.progress import ProgressCallback
from paceline.runtime.runs.record import (
    CheckpointInterval,
    Evaluation,
    FailureRecord,
    RunFolder,
    RunRecord,
    Status,
    new_folder,
    unless_begun,
)
from paceline.runtime.runs.run import Run
from paceline.training.gradients.probe import probing_once
from paceline.training.jobs.job import Job, checked
from paceline.training.jobs.loading import own_arguments

if TYPE_CHECKING:
    from paceline.runtime.engines.cluster import Roster
    from paceline.runtime.engines.joining.guest import Guest
    from paceline.runtime.engines.virtual import World

RUNS = Path("runs")
AUTO = "auto"
RETURNS = 16  # times that a node comes back which was asleep, or whose network was gone


@gathers_arguments("nodes", NodeOptions)
@accepts_old_names(RENAMED_ARGUMENTS["train"])
@own_arguments()
def train(
    job: Job | None = None, plan: str | Plan | None = None, workers: int | None = None, *, engine: str = "local",
    compute: str | None = None, folder: str | Path | None = RUNS, progress: ProgressCallback | None = None,
    max_updates: int | None = None, timeout: float = 120.0, world: World | None = None,
    checkpoint_every: int | str | None = None, resume: str | Path | Run | None = None, epochs: int | None = None,
    callbacks: Sequence[Any] = (), loggers: Sequence[Any] = (), nodes: NodeOptions | None = None,
) -> Run:  # fmt: skip
    """Train a job by a plan and return the run.

    Args:
        job: The job. With `resume`, it is needed only where the run's folder could not keep it.
        plan: A plan, its name with options such as `"downpour:workers=4"`, or `"auto"` for the choice of
            `paceline.choose`. Default: one process.
        workers: The number of workers, unless the plan states it; where others join, of machines at once.
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
        nodes: How several machines come together: keys, copies of shards, who may join.
    """
    arguments, nodes = locals(), nodes or NodeOptions()
    engine = _joinable(engine, nodes, resume) if nodes.joinable else engine
    _check_together(engine, nodes, epochs, resume, world)
    _check(engine, folder, timeout, checkpoint_every is not None or resume is not None, progress)
    max_updates, workers = whole("max_updates", max_updates, 1), whole("workers", workers, 1)
    epochs = whole("epochs", epochs, 1)
    check_arguments(train, arguments)
    node = _node(nodes, plan, workers) if engine == "cluster" else None
    check(called := [*callbacks, *named(loggers)])
    request = Request(
        job, plan, workers, engine, Path(folder) if folder is not None else None, max_updates, timeout,
        _interval(checkpoint_every), world, _path(resume) if resume is not None else None, epochs,
        [*([] if progress is None else [ProgressFunction(progress)]), *called], bool(called), node, nodes,
    )  # fmt: skip
    if request.resume is not None:
        return _resume(request, request.resume)
    if job is None:
        raise UsageError("no job is given: name a job file, a built-in job such as digits, or a run to resume")
    checked(job).refuse_unused()
    with probing_once():
        return _begin(_chosen(request, job if compute is None else job.with_(compute=compute)))


def _joinable(engine: str, nodes: NodeOptions, resume: object) -> str:
    """Return the engine of a run that machines join; UsageError for settings that belong to other ways to meet."""
    if engine not in ("local", "cluster"):
        raise UsageError(f"machines join a run of this machine's own, and engine={engine!r} is another; leave one out")
    if nodes.keys is not None or nodes.trusted_network:
        raise UsageError("machines that join get keys for this run alone: leave --keys and --trusted-network out")
    if resume is not None:
        raise UsageError("a resumed run cannot be opened to other machines; resume it here alone, or by a launcher")
    if cluster.nodes():
        raise UsageError("a launcher has started this process; machines join a run that was started by hand, once")
    return "cluster"


def _node(nodes: NodeOptions, plan: str | Plan | None, workers: int | None) -> Roster:
    """Return this process's place among the nodes of its run."""
    if not nodes.joinable:
        return cluster.roster(keys=nodes.keys, trusted_network=nodes.trusted_network)
    from paceline.runtime.engines.joining import open_nodes, parcel

    parcel.watch_files()
    return open_nodes.open_roster(plan, workers, nodes.address)


def _ranks(engine: str) -> contextlib.AbstractContextManager[None]:
    """Return what ends all ranks of MPI when this one fails; what Paceline refuses, all of them raise."""
    if engine != "mpi":
        return contextlib.nullcontext()
    return mpi.one_for_all(PacelineError)


def _chosen(request: Request, job: Job) -> Request:
    """Return the request with the job's way of computing gradients; the planner chooses the plan `auto`."""
    if request.engine == "mpi" and job.compute == "auto":
        job = job.with_(compute="fused")  # there is no other way for its ranks
    if request.plan != AUTO:
        return replace(request, job=job)
    if request.engine != "local":
        raise UsageError(
            f"plan 'auto' chooses for the processes of this machine, and not for engine={request.engine!r}"
        )
    from paceline.interfaces.api.planning.following import follow

    plan, compute, why = follow(job, request.workers, request.max_updates)
    warnings.warn(f"plan auto: {plan}. {why}", PlanWarning, stacklevel=3)
    return replace(request, job=job.with_(compute=compute), plan=plan, workers=None)


def _begin(request: Request) -> Run:
    """Begin a run in a folder of its own."""
    job, engine, node = request.job, request.engine, request.node
    assert job is not None
    plan = plan_of(request.plan, request.workers or (node.nodes if node else None), engine)
    request = replace(request, interval=_possible(request, plan))
    _refuse(job, plan, engine, node)
    with _notes_of_rank_0(request), _ranks(engine):
        setup = set_up(job, plan, engine, request.max_updates, tested=request.leads, bounded=True)
    if node is None or not node.open:
        return _take_part(request, setup)
    from paceline.runtime.engines.joining.open_nodes import opened_run

    with opened_run(setup, node, request.timeout, request.interval, request.nodes.backups) as (placed, parcel):
        return _take_part(replace(request, node=placed, parcel=parcel), setup)


def take_part(guest: Guest, runs: Path, callbacks: Sequence[Any] = ()) -> Run:
    """Train the part of a machine that has joined a run; its folder is made in `runs`, should this machine lead."""
    spec, roster, parcel = guest.enter()
    request = Request(
        spec.job,
        spec.plan,
        None,
        "cluster",
        runs,
        spec.limit,
        spec.deadline,
        spec.interval,
        callbacks=callbacks,
        node=roster,
        nodes=NodeOptions(backups=spec.backups),
        parcel=parcel,
    )
    with _notes_of_rank_0(request):
        setup = set_up(spec.job, spec.plan, "cluster", spec.limit, tested=False, bounded=True)
    return _take_part(request, setup)


def _take_part(request: Request, setup: Setup) -> Run:
    """Train this process's part, which leads the run or follows; in a cluster that may change while it goes on."""
    before: Dismissed | None = None
    for returns in itertools.count():
        try:
            return _in_folder(request, setup)
        except Promoted as promoted:
            request = replace(request, successor=promoted.successor)
            setup = promoted.successor.part.setup.tested()
        except Dismissed as error:
            if error.roster is None or returns >= RETURNS:
                raise
            warnings.warn(f"{error}. This machine comes back as one of the others", DeathWarning, stacklevel=2)
            before, request = error, replace(request, node=error.roster, successor=None)
        except PeerLost as error:
            raise (before or error) from error
    raise AssertionError


def _in_folder(request: Request, setup: Setup) -> Run:
    """Train, in a new folder if this process leads and there is one to make it in."""
    folder, interval, job = request.folder if request.leads else None, request.interval, setup.users_job
    record = first_record(setup, kept=folder is not None).with_(checkpoint_every=interval)
    if request.successor is not None:
        record = record.with_(lives=request.successor.welcome.lives or record.lives)
    path = new_folder(folder, f"{job.name}-{setup.plan.name}") if folder is not None else None
    checkpoint = CheckpointRequest(path, interval, record.lives, None) if interval and path else None
    with unless_begun(path), RunFolder(path) as place:
        save_job_file(place, job, resumable=interval is not None)
        return _run(request, setup, place, record, checkpoint)


def _check_together(
    engine: str, nodes: NodeOptions, epochs: int | None, resume: str | Path | Run | None, world: World | None
) -> None:
    """Raise for settings that belong to others that are not given."""
    keys = nodes.keys
    if world is not None and engine != "virtual":
        raise UsageError(f"a world is simulated, so it needs engine='virtual', and not {engine!r}")
    if nodes.address is not None and not nodes.joinable and engine != "ray":
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


def _check(engine: str, folder: str | Path | None, timeout: float, checkpoints_wanted: bool, progress: object) -> None:
    """Raise for words and numbers that no run can have."""
    if progress is not None and not callable(progress):
        raise UsageError(
            f"progress={progress!r} is not a function that takes a Progress; for a bar give "
            "callbacks=[paceline.ProgressBar()]"
        )
    if engine not in ENGINES:
        raise PlanError(f"there is no engine {engine!r}; {suggest(engine, ENGINES)}")
    if not is_positive(timeout):
        raise UsageError(f"timeout={timeout!r} is not a positive number of seconds; give one, such as 120")
    if checkpoints_wanted and (engine not in KEEPING or folder is None):
        keeping = ", ".join(map(repr, KEEPING[:-1])) + f" or {KEEPING[-1]!r}"
        raise UsageError(f"checkpoints need engine={keeping}, and a folder")


def _refuse(job: Job, plan: Plan, engine: str, node: Roster | None) -> None:
    """Raise PlanError or JobError for what ranks that a launcher or Ray starts do not support."""
    if engine == "mpi":
        mpi.check(job, plan)
    if engine == "ray":
        check_method(plan)
    if node is not None:
        cluster.check(plan, node)


@contextlib.contextmanager
def _notes_of_rank_0(request: Request) -> Iterator[None]:
    """Let rank 0 alone warn of the job within the block."""
    with warnings.catch_warnings():
        if not request.leads:
            warnings.simplefilter("ignore", JobWarning)
        yield


def _possible(request: Request, plan: Plan) -> CheckpointInterval | None:
    """Return when checkpoints are taken under this plan; a run that can be stopped takes one where it is."""
    why, interval = plan.traits.no_checkpoints, request.interval
    if not why:
        stoppable = request.stoppable and request.engine in KEEPING and request.folder is not None
        return CheckpointInterval(0, 0.0) if interval is None and stoppable else interval
    if interval is not None and any(interval):
        raise PlanError(f"plan {plan.name} keeps no checkpoints: {why}")
    return None  # nor when a signal asks for one


def plan_of(plan: str | Plan | None, workers: int | None, engine: str) -> Plan:
    """Return the plan that is named, one process if none is; PlanError for one that the engine does not run."""
    chosen = Plan.parse("sequential" if plan is None else plan, workers)
    if workers not in (None, chosen.workers):
        has = f"has {chosen.workers}; leave out one of the two"
        says = has if "workers" in chosen.options else "is one process; plans of several are ring, downpour, ..."
        what = f"{workers} workers were asked for, and plan {chosen} {says}"
        warnings.warn(what, JobWarning, stacklevel=3)
    if chosen.traits.local_only and engine not in ("local", "cluster", "ray"):
        raise PlanError(f"plan {chosen.name!r} {chosen.traits.local_only}: engine='local'")
    return chosen


def _resume(request: Request, path: Path) -> Run:
    """Begin the next life of a run, in the same folder."""
    if not request.leads:
        return _resume_elsewhere(request, path)
    with RunFolder(path) as place:
        job, plan, before = open_run(
            path, request.job, request.plan, request.workers, request.max_updates, request.epochs
        )
        if request.node is not None:
            plan = _on_nodes(plan, request.workers, request.node)
            cluster.check(plan, request.node, resumed=True)
        begin = checkpoints.newest(path)
        setup = set_up(job, plan, request.engine, before.limit, bounded=True)
        check_same(setup, before, request.epochs)
        begin = for_plan(begin, before, job, setup)
        if request.epochs is not None:
            check_end(setup, begin.updates if begin else 0, before.job.epochs or 0)
            save_job_file(place, job, resumable=True)
        if begin is None:
            warnings.warn(f"{path} has no checkpoint yet: the run begins again", CheckpointWarning, stacklevel=3)
        interval = request.interval or before.checkpoint_every
        assert interval is not None, "open_run refuses a run without checkpoints"
        lives = (*begin.lives, life_record(setup, begin.updates)) if begin else (life_record(setup, 0),)
        record = first_record(setup, kept=True).with_(started=before.started, lives=lives, checkpoint_every=interval)
        record = record.with_(files={**record.files, **before.files})  # as they were where the run began
        earlier = [each for each in before.history if begin is not None and each.updates <= begin.updates]
        return _run(request, setup, place, record, CheckpointRequest(path, interval, lives, begin), earlier)


def _on_nodes(plan: Plan, workers: int | None, node: Roster) -> Plan:
    """Return the plan to resume with on these nodes: one with as many workers, where the algorithm allows that."""
    return plan if workers is not None or plan.traits.synchronous else next_plan(plan, None, node.nodes)


def _resume_elsewhere(request: Request, path: Path) -> Run:
    """Take part in the next life of a run whose folder belongs to another node, and may lie there alone."""
    job, updates, node = request.job, request.max_updates, request.node
    assert node is not None
    if (path / "run.json").is_file():
        job, plan, before = open_run(path, job, request.plan, request.workers, updates, request.epochs)
        updates, interval = before.limit, before.checkpoint_every
    elif job is None or request.plan is None:
        raise UsageError(
            f"rank {node.rank} finds no run in {path}: give a folder that all nodes share, or JOB and --plan as well"
        )
    else:
        plan, interval = plan_of(request.plan, request.workers, "cluster"), CheckpointInterval(0, 0.0)
    plan = _on_nodes(plan, request.workers, node)
    cluster.check(plan, node, resumed=True)
    with _notes_of_rank_0(request):
        setup = set_up(job, plan, "cluster", updates, tested=False, bounded=True)
    return _take_part(replace(request, interval=request.interval or interval), setup)


def _run(
    request: Request,
    setup: Setup,
    place: RunFolder,
    record: RunRecord,
    checkpoint: CheckpointRequest | None,
    earlier: Sequence[Evaluation] = (),
) -> Run:
    """Train on the engine of the setup. The folder says how it ended, also when it raises."""
    place.write(record)
    callbacks = request.callbacks if request.leads else ()
    hooks = Hooks(callbacks, setup, place.path, earlier)
    with Heartbeat(place.path, setup.agenda.updates) as heartbeat:
        follower = hooks if callbacks else None
        life = Life(setup.anew(), heartbeat, place, request.timeout, follower, checkpoint)
        try:
            hooks.begin()
            try:
                with ENGINES[request.engine].train(life, request) as outcome:
                    run = finish(life.setup, outcome, place, record, hooks)
            except RunStopped as stopped:
                if hooks.training.stopping is None or place.path is None or stopped.why:
                    raise
                run = stopped_run(setup, place, place.path, record, hooks)
            return hooks.end(run)
        except BaseException as error:
            with contextlib.suppress(RunFailed):  # which would hide the reason
                place.write(_failed(setup, place, record, error))
            hooks.failed(error)
            raise


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


def _interval(text: int | str | None) -> CheckpointInterval | None:
    """Parse `checkpoint_every`; None means no checkpoints at all."""
    if text is None:
        return None
    if seconds := re.fullmatch(r"(\d+(?:\.\d+)?)s", str(text)):
        return CheckpointInterval(0, float(seconds[1]))
    if not str(text).isdecimal():
        raise UsageError(f"checkpoint_every={text!r} is neither a number of updates nor of seconds, as in '30s'")
    return CheckpointInterval(int(text), 0.0)
