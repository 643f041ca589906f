"""What a tuning needs before its first trial: everything that can be refused is refused here."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.algorithms.agenda import Agenda
from paceline.errors import JobWarning, PacelineError, TrialStopped, TuningError, suggest
from paceline.interfaces.api.train import train
from paceline.interfaces.callbacks import Training
from paceline.planning.tuner import journal as journals
from paceline.planning.tuner.journal import SCHEMA
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.space import Configuration, Space
from paceline.planning.tuner.state_file import OLD_SUFFIX
from paceline.planning.tuner.training import JobObjective, Measure
from paceline.planning.tuner.trial import Terms, Trial
from paceline.planning.tuner.trials import Objective
from paceline.planning.tuner.trials.choice import EXECUTORS
from paceline.planning.tuner.varied import NamedArguments, VariedJob, maker_of, suggested_space
from paceline.plans.plan import Plan
from paceline.runtime.engines import checkpoints
from paceline.runtime.engines.setup import set_up
from paceline.runtime.engines.stepping import SteppedTraining
from paceline.runtime.runs.record import Evaluation, new_folder
from paceline.training.data.opening import open_source
from paceline.training.gradients.evaluate import rehearse
from paceline.training.jobs.job import Job
from paceline.training.jobs.loading import load_maker

HIGHER = ("accuracy", "auc", "auroc", "f1", "precision", "recall", "r2", "score")
PROBED = 3  # configurations whose job is made before the start, until one can be made


def functions(
    make_job: Any,
    objective: Callable[[Trial], float | None] | None,
    data_dir: str | None,
    job_args: str | None,
    space: Space | None,
) -> tuple[Callable[[Trial], Job] | None, Any, str]:
    """Return (make_job as a function of a trial, objective, where the job comes from)."""
    if (make_job is None) == (objective is None):
        raise TuningError("give either make_job, a function of a trial that makes a Job, or objective=, which trains")
    if objective is not None:
        return None, objective, ""
    origin = ""
    if isinstance(make_job, str):
        origin = _absolute(make_job) if make_job.partition(":")[0].endswith((".py", ".toml")) else make_job
        make_job = load_maker(make_job, data_dir, job_args)
    if isinstance(make_job, Job):
        origin = origin or make_job.origin
    if not isinstance(make_job, Job) and not callable(make_job):
        raise TuningError(
            f"make_job={make_job!r:.60} is neither a Job, nor a function that makes one, nor a JOB's name"
        )
    return maker_of(make_job, space.parameters if space is not None else ()), None, origin


def _absolute(where: str) -> str:
    path, colon, name = where.partition(":")
    return f"{Path(path).resolve()}{colon}{name}"


def space_of(space: Space | None, make: Callable[[Trial], Job] | None) -> Space:
    """Return the space of a tuning: the given one, or what a function of a trial suggests."""
    if space is not None:
        return space
    return Space({}) if make is None or isinstance(make, VariedJob) else suggested_space(make)


def check(space: Space, search: Search, executor: str, plan: str | None, make: Any) -> None:
    if not space.parameters and (make is not None or search.sampler != "random"):
        raise TuningError(
            f"search {search} has nothing to vary: give --space FILE, space={{name: paceline.Float(low, high), ...}}, "
            "or a function of a trial that suggests values"
        )
    if executor not in EXECUTORS:
        number = "; the number of trials is n_trials" if str(executor).isdigit() else ""
        raise TuningError(f"executor={executor!r} is what runs trials; {suggest(str(executor), EXECUTORS)}{number}")
    if (plan is not None) != (executor == "distributed"):
        raise TuningError("plan= is how each trial is trained by several workers: it goes with executor='distributed'")
    if make is None and executor in ("stacked", "distributed"):
        raise TuningError(f"executor={executor!r} needs make_job, since an objective contains its own training")
    if isinstance(make, VariedJob | NamedArguments):
        make.check(space.parameters)


def probe(make: Callable[[Trial], Job], space: Space, seed: int) -> Job:
    """Make the job of one configuration, for what all have in common. If none of the first few can be made, say why."""
    proposals, *_ = Search.parse("random").open(space, PROBED, 1, seed, True)
    error: Exception | None = None
    for number in range(PROBED):
        configuration: Configuration | None = proposals.configuration(number)
        try:
            return _tried(make(Trial(number, configuration or {}, 0, 1, Terms(seed))))
        except Exception as fault:
            error = fault
    assert error is not None
    if isinstance(error, PacelineError):
        raise error
    raise TuningError(f"make_job fails for each of {PROBED} configurations: {type(error).__name__}: {error}") from error


def _tried(job: Any) -> Job:
    """Return a job whose test data can be evaluated; raise for anything else."""
    if not isinstance(job, Job):
        raise TuningError(
            f"make_job returned {type(job).__name__}, not a Job; a function that trains and returns a number is given "
            "as objective="
        )
    job.refuse_unused()
    if job.test is not None:
        rehearse(job, job.make_model(), open_source(job.test, job.seed, "test"))
    return job


def measure_of(metric: str | None, mode: str | None, per_epoch: int, job: Job | None) -> tuple[Measure, str]:
    if per_epoch < 1:
        raise TuningError(f"steps_per_epoch={per_epoch} is not a whole number of at least 1")
    if mode not in (None, "min", "max"):
        raise TuningError(f"mode={mode!r}; {suggest(str(mode), ('min', 'max'))}")
    if metric is None:
        metric = "test_loss" if job is not None and job.test is not None else "train_loss" if job else "value"
    if job is not None and job.test is None and metric != "train_loss":
        raise TuningError(f"metric={metric!r} needs test data, and the job has none; give it test=, or train_loss")
    if job is not None and metric not in (figures := ("train_loss", "test_loss", "test_accuracy", *job.metrics)):
        raise TuningError(f"there is no figure {metric!r} to tune by; {suggest(metric, figures)}")
    higher = any(metric.lower().endswith(word) for word in HIGHER)
    return Measure(metric, per_epoch), mode or ("max" if higher else "min")


def can_continue(plan: str | None, steps_per_epoch: int) -> bool:
    """Whether a trial of a job can go on later from where it was; one that is trained by a plan needs checkpoints."""
    return plan is None or (steps_per_epoch == 1 and not Plan.parse(plan).traits.no_checkpoints)


def objective_of(
    make: Callable[[Trial], Job],
    measure: Measure,
    search: Search,
    heeds: frozenset[int] | None,
    plan: str | None,
    timeout: float | None,
) -> Objective:
    jobs = JobObjective(make, SteppedTraining, measure, heeds)
    if plan is None:
        return jobs
    planned = PlannedObjective(jobs, plan, timeout)
    if search.name == "pbt" and (why := planned.unable()):
        raise TuningError(f"search pbt lets trials go on from each other's checkpoints: {why}")
    return planned


@contextlib.contextmanager
def opened_folder(
    folder: str | Path | None, resume: str | Path | None, name: str, array: Path | None = None
) -> Iterator[Path | None]:
    """The folder of a tuning: a new one, the one to resume, or that of an array's tasks."""
    if array is not None:
        yield array
        return
    if resume is not None:
        if not (Path(resume) / "journal.jsonl").is_file():
            raise TuningError(f"{resume} has no journal.jsonl; give the folder of a tuning")
        yield Path(resume)
        return
    yield new_folder(Path(folder), f"tune-{name}") if folder is not None else None


@contextlib.contextmanager
def opened_states(path: Path | None, enabled: bool) -> Iterator[Path | None]:
    """The folder for states between legs. It is emptied when the tuning is over, and kept when it was ended early."""
    if not enabled:
        yield None
        return
    if path is None:
        with tempfile.TemporaryDirectory(prefix="paceline-tune-") as scratch:
            yield Path(scratch)
        return
    states = path / "states"
    if next(states.glob(f"*{OLD_SUFFIX}"), None) is not None:
        raise TuningError(
            f"the tuning in {path} has schema 1: the states of its trials are pickles, which this version of Paceline "
            f"does not read, and from {SCHEMA} on they are not; resume it with the version that began it, or begin anew"
        )
    states.mkdir(exist_ok=True)
    yield states
    shutil.rmtree(states)


def same_header(path: Path, header: dict[str, Any]) -> dict[str, Any]:
    """Return the header of the journal; refuse to resume with another search, space or seed."""
    rows = journals.read(path / "journal.jsonl")
    if not rows:
        return header
    for key in ("search", "seed", "space", "metric", "mode", "max_t", "steps_per_epoch", "trials"):
        now, then = header[key], rows[0][key]
        if _plain(now) != _plain(then):
            raise TuningError(f"the tuning in {path} has {key}={then}, and now it is {now}; resume it as it was begun")
    return {key: value for key, value in rows[0].items() if key not in ("row", "time")}


def _plain(value: Any) -> Any:
    """Return a value as a journal would have it."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


# --- A trial that is itself a parallel run, trained by a plan ---------------------------------------------------------
# The tuner decides alone: the workers of a run never see the search, so they cannot disagree about a stop, and none
# waits for another's answer. A run that is stopped is ended as by a callback that raises.
#
# A trial that goes on in a later leg is a run that is resumed from its checkpoint. Under population-based training it
# may be another trial's: so replicas with different settings, each with servers of its own, exchange what they have
# learned.

LAST = 1 << 40  # updates between checkpoints, so that there is one at the end alone


class PlannedObjective:
    """Trains the job of a trial by a plan on the local engine, from its beginning or from the end of a leg."""

    def __init__(self, jobs: JobObjective, plan: str, timeout: float | None) -> None:
        self.jobs, self.plan, self.timeout = jobs, Plan.parse(plan), timeout or 120.0

    def unable(self) -> str:
        """Return why trials cannot go on from another's checkpoint; an empty string if they can."""
        if self.jobs.measure.steps_per_epoch > 1:
            return "a run is resumed at the end of an epoch: leave steps_per_epoch out"
        why = self.plan.traits.no_checkpoints
        return why and f"plan {self.plan.name} keeps no checkpoints: {why}"

    def __call__(self, trial: Trial) -> float:
        if trial.terms.states is not None and not self.unable():
            return self._from_checkpoint(trial, trial.terms.states)
        return self._from_beginning(trial)

    def _from_checkpoint(self, trial: Trial, states: Path) -> float:
        job = self.jobs.job(trial).with_(epochs=trial.stop)
        checkpoint = states / f"{trial.number}-{trial.stop}"
        with tempfile.TemporaryDirectory(prefix="draft-", dir=states) as draft, warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)
            if trial.start:
                place = Path(draft, "run")
                shutil.copytree(states / f"{trial.source}-{trial.start}", place)
                module = job.make_model()
                checkpoints.change_settings(place, job.make_optimizer(module, list(module.parameters())))
                run = train(job, resume=place, epochs=trial.stop, timeout=self.timeout)
            else:
                run = train(job, self.plan, timeout=self.timeout, folder=draft, checkpoint_every=LAST)
            value = self.jobs.measure.value(run.summary())
            assert run.path is not None
            shutil.rmtree(checkpoint, ignore_errors=True)  # of a leg that begins again
            os.replace(run.path, checkpoint)
        return value

    def _from_beginning(self, trial: Trial) -> float:
        job, measure = self.jobs.job(trial), self.jobs.measure
        agenda = set_up(job, Plan.parse("sequential"), "virtual").agenda
        reporting = Reporting(trial, measure, agenda)
        callbacks: list[Any] = []
        if self.jobs.heeds != frozenset() and job.test is not None and not self.plan.traits.no_checkpoints:
            job = job.with_(evaluate_every=measure.updates(agenda, 1))
            callbacks = [reporting]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)
            run = train(
                job,
                self.plan,
                max_updates=measure.updates(agenda, trial.stop),
                timeout=self.timeout,
                folder=None,
                callbacks=callbacks,
            )
        return measure.value(run.summary())


@dataclass
class Reporting:
    """Reports each evaluation of a run to the study, and ends the run when the study says so."""

    trial: Trial
    measure: Measure
    agenda: Agenda
    #: The steps whose evaluations were reported.
    reported: set[int] = field(default_factory=set)

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        step = next((s for s in self._open() if self.measure.updates(self.agenda, s) <= evaluation.updates), None)
        if step is None:
            return
        self.reported.add(step)
        self.trial.report(self.measure.value(evaluation.metrics), step)
        if self.trial.should_prune():
            raise TrialStopped(f"trial {self.trial.number} is stopped after step {step}")

    def _open(self) -> list[int]:
        return [s for s in range(self.trial.start + 1, self.trial.stop + 1) if s not in self.reported][:1]
