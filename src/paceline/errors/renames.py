"""Names of arguments that have changed, or that another library has for the same thing.

An old name keeps working, and gives a warning that names the new one. A name of another library, or a mistyped one, is
refused with the name that was meant. Type checkers and editors know the new names only.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ParamSpec, TypeVar

from paceline.errors.exceptions import PacelineDeprecationWarning

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
Names = Mapping[str, str]

JOB_FIELDS = {
    "accumulate": "accumulate_grad_batches",
    "clip_norm": "gradient_clip_norm",
    "loader_workers": "num_workers",
    "schedule": "lr_scheduler",
    "transform": "batch_transform",
    "weight": "loss_denominator",
}
#: Old values of a field, and their new ones.
JOB_VALUES = {"precision": {"float32": "32-true", "bfloat16": "bf16-mixed"}}
#: Arguments of functions.
RENAMED_ARGUMENTS = {
    "train": {"deadline": "timeout", "updates": "max_updates"},
    "parallel": {"deadline": "timeout"},
    "tune": {"budget": "n_trials", "trials": "executor"},
}
#: Options of the command line; of every command, and of single ones.
OPTIONS = {"--deadline": "--timeout", "--updates": "--max-updates"}
COMMAND_OPTIONS = {"tune": {"--budget": "--n-trials", "--trials": "--n-trials"}}


def accepts_old_names(renamed: Names) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that it takes its renamed arguments by their old names, too."""
    return lambda function: _accepting(function, renamed, {}, function.__name__)


def gathers_arguments(into: str, kind: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that takes an object of a dataclass, so that it takes its fields as arguments, too."""
    names = [each.name for each in dataclasses.fields(kind)]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            fields = {name: kwargs.pop(name) for name in names if name in kwargs}
            for name in fields:
                if into in kwargs:
                    raise TypeError(f"{function.__name__}() got {name}= and {into}=, which has it; give {into}= only")
                warn_renamed(f"{name}= of {function.__name__}()", f"{into}={kind.__name__}({name}=)")
            return function(*args, **kwargs, **({into: kind(**fields)} if fields else {}))

        return call

    return decorate


def renames_fields(renamed: Names, values: Mapping[str, Names]) -> Callable[[C], C]:
    """Decorate a dataclass so that its fields can be given, read and unpickled by their old names, too."""

    def decorate(kind: C) -> C:
        def read(self: object, name: str) -> object:
            if name not in renamed:
                raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=self)
            warn_renamed(f"{kind.__name__}.{name}", f"{kind.__name__}.{renamed[name]}")
            return getattr(self, renamed[name])

        def unpickle(self: object, state: Mapping[str, object]) -> None:
            fields = {renamed.get(name, name): value for name, value in state.items()}
            for field, changed in values.items():
                fields[field] = changed.get(str(fields.get(field)), fields.get(field))
            vars(self).update(fields)

        for name, function in (
            ("__init__", _accepting(kind.__init__, renamed, values, kind.__name__)),  # type: ignore[misc]
            ("__getattr__", read),
            ("__setstate__", unpickle),
        ):
            setattr(kind, name, function)
        return kind

    return decorate


def warn_renamed(old: str, new: str) -> None:
    """Warn of an old name, at the line outside this package that uses it."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "paceline":
        depth, frame = depth + 1, frame.f_back
    warnings.warn(f"{old} is called {new} now", PacelineDeprecationWarning, stacklevel=depth + 1)


def _accepting(function: Callable[P, R], renamed: Names, values: Mapping[str, Names], name: str) -> Callable[P, R]:
    parameters = inspect.signature(function).parameters.values()
    parameter_names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD and each.name != "self"]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = _by_new_names(kwargs, renamed, name)
        for field, changed in values.items():
            if (old := str(arguments.get(field))) in changed:
                warn_renamed(f"{field}={old!r}", repr(changed[old]))
                arguments[field] = changed[old]
        if not takes_any and (unknown := next((each for each in arguments if each not in parameter_names), None)):
            raise TypeError(f"{name}() has no argument {unknown!r}; {meant(unknown, parameter_names)}")
        return function(*args, **arguments)  # type: ignore[arg-type]

    return call


def _by_new_names(given: Mapping[str, object], renamed: Names, name: str) -> dict[str, object]:
    """Return the arguments under their new names; `TypeError` if one is given under both."""
    current: dict[str, object] = {}
    for old, value in given.items():
        new = renamed.get(old, old)
        if new != old:
            if new in given:
                raise TypeError(f"{name}() got {old}= and {new}=, which is its new name; give {new}= only")
            warn_renamed(f"{old}= of {name}()", f"{new}=")
        current[new] = value
    return current


# The ends of messages about names that do not exist.

#: Names that PyTorch's scripts, Lightning, Accelerate and Transformers have for fields of a job.
FAMILIAR = {
    "criterion": "loss",
    "dataloader": "data",
    "dataset": "data",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "gradient_clip_val": "gradient_clip_norm",
    "learning_rate": "optimizer",
    "loss_fn": "loss",
    "lr": "optimizer",
    "max_epochs": "epochs",
    "max_grad_norm": "gradient_clip_norm",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "scheduler": "lr_scheduler",
    "train_data": "data",
    "train_dataset": "data",
    "eval_dataset": "test",
    "test_data": "test",
    "val_data": "test",
    "validation_data": "test",
}


#: Options that other programs have for what Paceline sets elsewhere.
FAMILIAR_OPTIONS = {
    "--gpus": "give --workers and --device cuda",
    "--learning-rate": "the learning rate is the optimizer's: change the job file, or its [job.optimizer] in TOML",
    "--lr": "the learning rate is the optimizer's: change the job file, or its [job.optimizer] in TOML",
    "--max-epochs": "that is --epochs here",
    "--max-steps": "that is --max-updates here",
    "--nproc-per-node": "give --workers: Paceline starts the processes itself",
    "--precision": 'it is the job\'s: change the job file, or its [job] in TOML, as in precision = "bf16-mixed"',
    "--num-workers": "give --workers for processes that train, or num_workers= in the job for those that load samples",
}

#: Commands that other programs have, or that people try first, and those that are meant.
FAMILIAR_COMMANDS = {
    "analyze": "paceline check PATH",
    "benchmark": "paceline compare JOB",
    "dashboard": "paceline report --live RUN",
    "debug": "paceline watch -- COMMAND",
    "fit": "paceline train JOB",
    "fuzz": "paceline explore FILE",
    "launch": "paceline train JOB",
    "lint": "paceline check PATH",
    "list": "paceline runs",
    "ls": "paceline runs",
    "monitor": "paceline watch -- COMMAND, or paceline report --live RUN",
    "optimize": "paceline tune JOB",
    "plan": "paceline choose JOB, or paceline plans for a list of plans",
    "resume": "paceline train --resume RUN",
    "run": "paceline train JOB",
    "search": "paceline tune JOB",
    "start": "paceline train JOB",
    "sweep": "paceline tune JOB",
    "ui": "paceline report --live RUN",
}


def suggest(given: object, allowed: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the nearest allowed one, then all of them."""
    names = sorted(allowed)
    word, lower = str(given).lower(), {name.lower(): name for name in names}
    near = difflib.get_close_matches(word, lower, n=1) or [name for name in lower if word and name.startswith(word)]
    return f"{f'did you mean {lower[near[0]]!r}? Allowed' if near else 'allowed'}: {', '.join(names) or 'none'}"


def meant(unknown: str, known: Collection[str]) -> str:
    """Return the end of a message about an argument that does not exist."""
    if FAMILIAR.get(unknown) in known:
        return f"that is {FAMILIAR[unknown]}= here"
    return suggest(unknown, known)
