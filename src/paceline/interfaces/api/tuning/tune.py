"""`tune`: many configurations of one job, and the best of them. `paceline.tune` and `paceline tune` both call it."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import JobError, TuningError, plain, whole
from paceline.errors.arguments import check_arguments
from paceline.errors.renames import RENAMED_ARGUMENTS, accepts_old_names, gathers_arguments
from paceline.interfaces.api.tuning.ranks import Where, local_ranks, meet
from paceline.interfaces.api.tuning.setup import (
    PlannedObjective,
    can_continue,
    check,
    functions,
    measure_of,
    objective_of,
    opened_folder,
    opened_states,
    probe,
    same_header,
    space_of,
)
from paceline.names import file_name
from paceline.planning.tuner import journal as journals
from paceline.planning.tuner.journal import SCHEMA, Journal
from paceline.planning.tuner.optuna import Storage
from paceline.planning.tuner.page import write_page
from paceline.planning.tuner.result import Account, Tuning
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.space import Space, read_space
from paceline.planning.tuner.study import Study
from paceline.planning.tuner.trial import Terms, Trial
from paceline.planning.tuner.trials import Objective, drive
from paceline.planning.tuner.trials.choice import ExecutorOptions, choose
from paceline.planning.tuner.trials.peers import RankInfo, serve
from paceline.planning.tuner.varied import write_best
from paceline.runtime.engines.cluster import NodeOptions
from paceline.runtime.runs.schema import write_json
from paceline.training.data.opening import open_source
from paceline.training.gradients.fused_replica import check_fusible
from paceline.training.jobs.job import Job
from paceline.training.jobs.loading import own_arguments
from paceline.training.jobs.pickling import announce_code

PATIENCE = 120.0  # seconds in which rank 0 has to be reached
MAX_T = 1  # steps of an objective, if nothing else is said


@gathers_arguments("nodes", NodeOptions)
@accepts_old_names(RENAMED_ARGUMENTS["tune"])
@own_arguments()
def tune(
    make_job: Callable[[Trial], Job] | Job | str | None = None,
    space: Space | Mapping[str, Any] | None = None, search: Any = "asha", *,
    objective: Callable[[Trial], float | None] | None = None, n_trials: int | None = None, workers: int | None = None,
    metric: str | None = None, mode: str | None = None, max_t: int | None = None, steps_per_epoch: int = 1,
    executor: str = "auto", plan: str | None = None, seed: int = 0, seconds: float | None = None,
    timeout: float | None = None, folder: str | Path | None = "runs", resume: str | Path | None = None,
    data_dir: str | None = None, space_file: Path | None = None, progress: Callable[[Study], None] | None = None,
    engine: str = "local", nodes: NodeOptions | None = None, storage: Any = None, job_args: str | None = None,
) -> Tuning:  # fmt: skip
    """Train a job with many configurations and return the best one.

    Args:
        make_job: A function that returns a Job, of a Trial or with a parameter for each name of the space; or a Job, of
            which the settings of the optimizer, the fields and dropout are varied by name.
        space: A Space, or `{name: Float(...) | Int(...) | Choice(...) | a list}`. Default: what `make_job` suggests.
        search: `"grid"`, `"random"`, `"sobol"`, `"successive_halving"`, `"asha"`, `"hyperband"`, `"median_stopping"`,
            `"pbt"` or a sampler of Optuna such as `"tpe"`; with options, as in `"asha:max_t=9,reduction_factor=3"`; or
            an Optuna sampler object.
        objective: A function of a Trial that trains by itself and returns a value, instead of `make_job`. It may call
            `trial.report(value, step)` and `trial.should_prune()`.
        n_trials: The number of trials. Default: all points of a grid, and 32 for searches that have no end.
        workers: The number of processes. Default: the number of cores.
        metric: `"test_loss"`, `"test_accuracy"`, `"train_loss"` or the name of one of the job's metrics.
        mode: `"min"` or `"max"`. Default: by the metric's name.
        max_t: The steps of a trial that is trained to its end. Default: all steps of the job.
        steps_per_epoch: How often per epoch a trial is evaluated and reports.
        executor: What runs trials: in `"processes"`, `"stacked"` in one vectorized pass, `"distributed"` with each
            trial trained by `plan`, or `"here"` in this process. `"auto"` measures and reports its choice.
        plan: The plan of distributed trials.
        seconds: Seconds after which no trial is started.
        timeout: Seconds without progress after which a trial's process is ended. Default: by how long trials take.
        folder: Where the tuning's folder is created; None writes nothing to disk.
        resume: The folder of an interrupted tuning. All decisions are replayed from its journal.
        data_dir: The folder with the data of a built-in job.
        space_file: The file from which the space was read; the tuning's folder keeps a copy.
        progress: A function that is called with the study whenever trials have ended.
        engine: `"local"`: this machine; `"cluster"`: the ranks that torchrun, srun or mpiexec started, or the tasks of
            an array of Slurm, each of which calls this function; `"ray"`: tasks of Ray.
        nodes: How ranks on several machines authenticate each other, and which Ray cluster runs trials (`NodeOptions`).
        storage: A storage of Optuna, such as `"sqlite:///tuning.db"`. Trials are written to its study of the job's
            name; samplers of Optuna also learn from what others wrote there.
        job_args: The arguments, as in a shell, that a job's Python file has as `sys.argv[1:]`.
    """
    check_arguments(tune, locals())
    search_space = space if space is None or isinstance(space, Space) else Space(space)
    make, custom_objective, origin = functions(make_job, objective, data_dir, job_args, search_space)
    parts = space_of(search_space, make)
    request = Asked(
        make, custom_objective, origin, parts, Search.parse(search), workers, n_trials, metric, mode, max_t,
        steps_per_epoch, executor, plan, seed, seconds, timeout, folder, resume, data_dir, space_file, progress,
        storage, job_args,
    )  # fmt: skip
    where = Where(engine, nodes or NodeOptions(), request.workers)
    where.check(executor)
    tuning: Tuning = meet(where, folder, request.name, lambda rank, ids: _tune(replace(request, rank_info=rank), ids))
    return tuning


@dataclass(frozen=True)
class Asked:
    """What `tune` was asked for."""

    make: Callable[[Trial], Job] | None
    own: Objective | None
    origin: str
    space: Space
    search: Search
    workers: int | None
    n_trials: int | None
    metric: str | None
    mode: str | None
    max_t: int | None
    steps_per_epoch: int
    executor: str
    plan: str | None
    seed: int
    seconds: float | None
    timeout: float | None
    folder: str | Path | None
    resume: str | Path | None
    data_dir: str | None
    space_file: Path | None
    progress: Callable[[Study], None] | None
    storage: Any
    job_args: str | None
    #: This process among several ranks.
    rank_info: RankInfo | None = None

    def __post_init__(self) -> None:
        numbers = {word: whole(word, getattr(self, word), 1, TuningError) for word in ("workers", "n_trials")}
        numbers |= {word: plain(getattr(self, word)) for word in ("max_t", "steps_per_epoch", "seed")}
        for word, number in numbers.items():
            object.__setattr__(self, word, number)

    @property
    def name(self) -> str:
        return file_name(Path(self.origin.partition(":")[0]).stem or "objective")


def _tune(request: Asked, array: Path | None) -> Tuning:
    """Refuse what cannot be done, open the study, run its trials and write what was found.

    `array` is the folder of the tuning that all tasks of an array share.
    """
    make, search = request.make, request.search
    _check_numbers(request)
    check(request.space, search, request.executor, request.plan, make)
    job = probe(make, request.space, request.seed) if make is not None else None
    measure, mode = measure_of(request.metric, request.mode, request.steps_per_epoch, job)
    max_t = search.max_t or request.max_t or (job.epochs * request.steps_per_epoch if job else MAX_T)
    continues = make is not None and can_continue(request.plan, request.steps_per_epoch)
    proposals, scheduler, total = search.open(
        request.space, request.n_trials, max_t, request.seed, mode == "min", continues
    )
    header = {
        "schema": SCHEMA,
        "name": job.name if job and job.name != "job" else request.name,
        "search": str(search),
        "seed": request.seed,
        "space": request.space.describe(),
        "metric": measure.metric if job else "value",
        "mode": mode,
        "max_t": max_t,
        "budget": request.n_trials,
        "steps_per_epoch": request.steps_per_epoch,
        "trials": total,
        "job": request.origin,
        "trials_run": request.executor,
        "plan": request.plan,
        "data_dir": request.data_dir,
        "job_args": request.job_args,
        "started": time.time(),
    }
    objective = (
        request.own
        if make is None
        else objective_of(make, measure, search, scheduler.heeds, request.plan, request.timeout)
    )
    assert objective is not None
    each = objective.plan.workers if isinstance(objective, PlannedObjective) else 1
    options = ExecutorOptions(
        objective, Terms(request.seed), request.workers, request.timeout, each, local_ranks(), request.rank_info
    )
    if request.rank_info is not None and not request.rank_info.leads:
        return _serve(request, options, header)
    with (
        opened_folder(request.folder, request.resume, str(header["name"]), array) as path,
        opened_states(path, scheduler.resumes) as states,
        contextlib.closing(Journal(path / "journal.jsonl" if path else None)) as diary,
    ):
        if path is not None and (request.resume is not None or array is not None):
            header = same_header(path, header)
        elif request.space_file is not None and path is not None:
            shutil.copy(request.space_file, path / f"space{request.space_file.suffix}")
        study = Study(proposals, scheduler, diary, mode == "min", total, header)
        tuning = _run(study, options._replace(terms=Terms(request.seed, states)), request, path, header)
        if path is not None:
            _write(path, tuning, header, request, study)
        return tuning


def _check_numbers(request: Asked) -> None:
    """Raise TuningError for a time or a number of steps that is not above 0."""
    for word in ("seconds", "timeout", "max_t"):
        if (value := getattr(request, word)) is not None and not value > 0:
            raise TuningError(f"{word}={value!r} is not above 0; give a larger number, or leave it out")


def _run(study: Study, options: ExecutorOptions, request: Asked, path: Path | None, header: dict[str, Any]) -> Tuning:
    """Run the trials that are left."""
    watchers = [request.progress] if request.progress is not None else []
    if request.storage is not None:
        tuning = path.name if path else f"{header['started']:.0f}"
        storage = Storage(request.storage, header["name"], tuning, request.space, study.minimize)
        storage.teach(study.proposals)
        watchers.append(storage)
    chosen = choose(study.way or request.executor, options, study)
    study.runs(chosen.name)
    spent = drive(study, chosen.trials, request.seconds, lambda study: [each(study) for each in watchers])
    if request.storage is not None:
        storage(study, last=True)
    account = Account(spent.wall, spent.inside, spent.workers, spent.legs, chosen.start)
    ordered = [study.trials[number] for number in sorted(study.trials)]
    return Tuning(
        path,
        ordered,
        study.best,
        account,
        header["metric"],
        header["mode"],
        header["search"],
        chosen.name,
        chosen.why,
        request.make,
    )


def _serve(request: Asked, options: ExecutorOptions, header: dict[str, Any]) -> Tuning:
    """Run trials for the rank that decides, and return what it has found."""
    rank_info = request.rank_info
    assert rank_info is not None
    begin = time.perf_counter()
    outcome = serve(rank_info, lambda terms: options._replace(terms=terms).start_pool(), request.timeout or PATIENCE)
    trials, best = outcome.trials, outcome.best
    account = Account(time.perf_counter() - begin, 0.0, options.cores, 0, 0.0)
    return Tuning(
        None,
        [trials[number] for number in sorted(trials)],
        None if best is None else trials[best],
        account,
        header["metric"],
        header["mode"],
        header["search"],
        request.executor,
        "",
        request.make,
        rank_info.rank,
    )


def tune_from_files(
    job: str | None,
    space: Path | None,
    search: str,
    *,
    data_dir: str | None = None,
    resume: Path | None = None,
    **rest: Any,
) -> Tuning:
    """Tune the JOB that the command line names over the space in a file; or resume the tuning in a folder."""
    if resume is not None:
        return _again(resume, job, space, data_dir, rest)
    if job is None:
        raise TuningError("there is nothing to tune: give JOB, or --resume FOLDER")
    parts = read_space(space) if space is not None else None
    return tune(job, parts, search, data_dir=data_dir, space_file=space, **rest)


def _again(folder: Path, job: str | None, space: Path | None, data_dir: str | None, rest: dict[str, Any]) -> Tuning:
    """Resume a tuning with the job, the space and the search of its journal."""
    rows = journals.read(folder / "journal.jsonl")
    if not rows:
        raise TuningError(f"{folder} has an empty journal; begin a new tuning")
    head = rows[0]
    if not job and (head["job"] or "").partition(":")[0].endswith((".py", ".toml")):
        announce_code(folder / "journal.jsonl", f"{head['job']}, which the journal of {folder} names")
    job = job or head["job"]
    if not job:
        raise TuningError(
            f"{folder} does not say where its job comes from; resume it with paceline.tune(..., resume=folder)"
        )
    file = space or next(folder.glob("space.*"), None)
    if file is not None and space is None and file.suffix == ".py":
        announce_code(file)
    parts: Any = head["space"] if file is None else read_space(file)
    rest["job_args"] = rest.get("job_args") or head.get("job_args")
    settings = {key: head[key] for key in ("metric", "mode", "max_t", "steps_per_epoch", "seed", "plan")}
    return tune(
        job,
        parts,
        head["search"],
        data_dir=data_dir or head["data_dir"],
        resume=folder,
        **{**rest, **settings, "n_trials": head["budget"], "executor": head["trials_run"]},
    )


def _write(path: Path, tuning: Tuning, header: dict[str, Any], request: Asked, study: Study) -> None:
    """Write what people and programs read: best.py, tuning.json and the page."""
    if tuning.best is not None and request.make is not None:
        description = f"trial {tuning.best.number}, {tuning.metric} {tuning.best.value:.6g}"
        epochs = -(-header["max_t"] // header["steps_per_epoch"])
        rest = {"data_dir": header["data_dir"], "job_args": header.get("job_args"), "compute": _compute_of(tuning)}
        write_best(path, request.make, request.origin, tuning.best.configuration, epochs, description, rest)
    write_json(path / "tuning.json", tuning.summary())
    write_page(path / "report.html", study, header, tuning.account)


def _compute_of(tuning: Tuning) -> str | None:
    """Return the field compute= with which the best job, trained separately, has the numbers of its trial."""
    job = tuning.best_job
    if tuning.way != "stacked":
        return "autograd" if job.compute == "auto" else None
    try:
        check_fusible(job, job.make_model(), open_source(job.data, job.seed))
    except JobError:
        return None  # it was stacked by torch.func
    return "fused"
