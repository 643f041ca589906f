"""Jobs of trials: a plain job with values of a space, a function that suggests its own, and the best as a job file."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.errors import JobError, TuningError, suggest
from paceline.planning.tuner.space import Choice, Configuration, Parameter, Space
from paceline.planning.tuner.trial import Trial
from paceline.training.jobs.job import Job
from paceline.training.jobs.loading import load_maker
from paceline.training.jobs.pickling import announce_code, pack, unpack

FIELDS = ("accumulate_grad_batches", "batch_size", "compute", "epochs", "gradient_clip_norm", "precision", "seed")
DROPOUT = "dropout"


class VariedJob:
    """Makes the job of a trial from a job and the values of a configuration."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, trial: Trial) -> Job:
        return configured(self.job, trial.configuration)

    def check(self, names: Iterable[str]) -> None:
        """Refuse names that would change nothing."""
        settings = [*FIELDS, DROPOUT, *_settings(self.job)]
        for name in names:
            if name not in settings:
                raise TuningError(
                    f"the space's {name!r} is neither a setting of the job's optimizer nor a field of the job; "
                    f"{suggest(name, settings)}. For anything else let the job file say `def job(trial): ...`"
                )


def configured(job: Job, configuration: Configuration) -> Job:
    """Return the job with the values of a configuration."""
    fields = {name: value for name, value in configuration.items() if name in FIELDS}
    settings = {n: v for n, v in configuration.items() if n not in FIELDS and n != DROPOUT}
    if settings:
        fields["optimizer"] = WithSettings(job.optimizer, settings)
    if DROPOUT in configuration:
        fields["model"] = WithDropout(job.model, configuration[DROPOUT])
    return job.with_(**fields)


class WithSettings:
    """An optimizer factory whose optimizers have some settings changed, in all groups."""

    def __init__(self, make: Callable[..., torch.optim.Optimizer], settings: dict[str, Any]) -> None:
        self.make, self.settings = make, settings
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(make)  # by which a job sees whether it takes the module

    def __call__(self, parameters: Any) -> torch.optim.Optimizer:
        optimizer = self.make(parameters)
        for name, value in self.settings.items():
            if name not in optimizer.defaults:
                raise JobError(f"{type(optimizer).__name__} has no {name!r}; {suggest(name, optimizer.defaults)}")
            for group in optimizer.param_groups:
                group[name] = value
        return optimizer


class WithDropout:
    """A model factory whose models have another dropout rate, in all layers."""

    def __init__(self, model: nn.Module | Callable[[], nn.Module], rate: float) -> None:
        self.model, self.rate = model, rate

    def __call__(self) -> nn.Module:
        module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        for part in module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = self.rate
        return module


def _settings(job: Job) -> list[str]:
    """Return the settings that the job's optimizer has."""
    with contextlib.suppress(Exception):  # it needs its own model's parameters
        return list(job.optimizer([nn.Parameter(torch.zeros(1))]).defaults)
    return list(job.make_optimizer(module := job.make_model(), list(module.parameters())).defaults)


# The space that a function of a trial suggests, as objectives of Optuna do: found by calling the function.
#     base        every choice has its first value, every number its middle
#     variations  one choice has another value, once for each value: what is asked for only then exists only then
#
# So a function whose choices have 2, 3 and 4 values is called 1 + 1 + 2 + 3 times. A name whose range is not always the
# same is left out of the space; its value is drawn when the function asks for it.

# A function with a parameter for each name of the space, as a function of a trial: `def job(lr, width=32)`.

KEYWORDS = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


class NamedArguments:
    """Makes the job of a trial by a function that is given the values of the configuration by name."""

    def __init__(self, make: Callable[..., Job]) -> None:
        self.make = make

    def __call__(self, trial: Trial) -> Job:
        return self.make(**trial.configuration)

    def check(self, names: Iterable[str]) -> None:
        """Refuse names that the function has no parameter for, and parameters that get no value."""
        space_names, parameters = list(names), inspect.signature(self.make).parameters
        keywords = [name for name, each in parameters.items() if each.kind in KEYWORDS]
        takes_any = any(each.kind == each.VAR_KEYWORD for each in parameters.values())
        if unknown := [name for name in space_names if name not in keywords and not takes_any]:
            raise TuningError(
                f"the job's function has no parameter for the space's {unknown[0]!r}; {suggest(unknown[0], keywords)}"
            )
        for name in keywords:
            if name not in space_names and parameters[name].default is inspect.Parameter.empty:
                raise TuningError(f"the job's function needs {name!r}, which the space does not have")


def takes_names(make: Any, names: Iterable[str]) -> bool:
    """Whether a function has a parameter for any name of a space, or takes any, and so is not a function of a trial."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False
    kinds = {each.kind for each in parameters.values()}
    return kinds == {inspect.Parameter.VAR_KEYWORD} or any(name in parameters for name in names)


MOST = 200  # calls of the function

Asked = dict[str, Parameter]


class Asking(Trial):
    """A trial that notes what it is asked for, in order."""

    def __init__(self, fixed: Configuration) -> None:
        super().__init__(0, dict(fixed), 0, 1)
        self.asked: Asked = {}

    def _suggest(self, name: str, parameter: Parameter) -> Any:
        self.asked.setdefault(name, parameter)
        return super()._suggest(name, parameter)

    def _drawn(self, name: str, parameter: Parameter) -> Any:
        return parameter.value(0.0 if isinstance(parameter, Choice) else 0.5)


def suggested_space(make: Callable[[Trial], Any]) -> Space:
    """Return the space of what `make` suggests; it is empty if the function suggests nothing."""
    base = _asked(make, {})
    parameters = dict(base)
    waiting: list[tuple[Configuration, Asked]] = [({}, base)]
    visited, changing, calls = set[str](), set[str](), 1
    while waiting:
        fixed, suggestions = waiting.pop(0)
        for name, choice in suggestions.items():
            if name in visited or not isinstance(choice, Choice) or choice.faults():
                continue
            visited.add(name)
            if (calls := calls + len(choice.choices) - 1) > MOST:
                raise TuningError(f"what the function suggests has more than {MOST} choices; give space= instead")
            runs = {choice.choices[0]: suggestions}
            for value in choice.choices[1:]:
                runs[value] = _asked(make, {**fixed, name: value})
                waiting.append(({**fixed, name: value}, runs[value]))
            changing |= _join(parameters, name, runs)
    return Space({name: parameter for name, parameter in parameters.items() if name not in changing})


def _asked(make: Callable[[Trial], Any], fixed: Configuration) -> Asked:
    """Return what the function asks for where some choices have these values."""
    trial = Asking(fixed)
    with contextlib.suppress(Exception):  # what cannot be made with these values is said when a trial has them
        make(trial)
    return trial.asked


def _join(parameters: Asked, parent: str, runs: dict[Any, Asked]) -> set[str]:
    """Add what is asked for under each value of a choice, with its condition; return names whose range changes."""
    changing = set()
    for name in dict.fromkeys(name for parameters in runs.values() for name in parameters):
        having = [value for value, settings in runs.items() if name in settings]
        same = runs[having[0]][name]
        if any(runs[value][name] != same for value in having):
            changing.add(name)
        parameter = parameters.get(name, same)
        if len(having) < len(runs):
            parameter = replace(parameter, when={**parameter.when, parent: having[0] if len(having) == 1 else having})
        parameters[name] = parameter
    return changing


# The best configuration as a job file, which `paceline train` takes.

SMALL = 64 << 20  # bytes of a pickled job up to which it is kept beside the file
TEXT = '''\
"""The best configuration that a tuning found{about}. Train it: paceline train {name}"""

from pathlib import Path

from paceline.planning.tuner.varied import tuned_job

configuration = {configuration!r}

job = tuned_job({job}, configuration, {rest})
'''


def tuned_job(
    where: str | Path,
    configuration: Configuration,
    epochs: int | None = None,
    data_dir: str | None = None,
    compute: str | None = None,
    job_args: str | None = None,
) -> Job:
    """Return the job of a configuration: `where` names it as on the command line, or is a file that a tuning wrote."""
    make: Callable[[Trial], Job]
    if isinstance(where, Path):
        if not where.is_file():
            raise TuningError(f"{where}, which a tuning wrote beside this file, is not there")
        announce_code(where)
        make = unpack(where.read_bytes())
    else:
        make = maker_of(load_maker(where, data_dir, job_args), configuration)
    job = make(Trial(0, dict(configuration), 0, 1))
    changes = {"epochs": epochs, "compute": compute}
    return job.with_(**{name: value for name, value in changes.items() if value is not None})


def maker_of(factory: Any, names: Iterable[str]) -> Callable[[Trial], Job]:
    """Return a function of a trial: as it is, of a plain job, or of a function that takes the names of the space."""
    if isinstance(factory, Job):
        return VariedJob(factory)
    make: Callable[[Trial], Job] = NamedArguments(factory) if takes_names(factory, names) else factory
    return make


def write_best(
    folder: Path,
    make: Any,
    origin: str,
    configuration: Configuration,
    epochs: int,
    about: str,
    rest: dict[str, Any],
) -> Path | None:
    """Write best.py into a tuning's folder; None if its job comes from no file and is too large to be kept."""
    job = repr(origin)
    if not origin:
        pickle_file = folder / "job.pickle"
        try:
            packed = pack(make)
        except Exception:
            return None
        if len(packed) > SMALL:
            return None
        pickle_file.write_bytes(packed)
        job = "Path(__file__).with_name('job.pickle')"
    file = folder / "best.py"
    changes = {"epochs": epochs, **rest}
    text = TEXT.format(
        about=f" ({about})",
        name=file.name,
        configuration=configuration,
        job=job,
        rest=", ".join(f"{name}={value!r}" for name, value in changes.items() if value is not None),
    )
    file.write_text(text if not origin else text.replace("from pathlib import Path\n\n", ""))
    return file
