"""A plain job as a function of a trial: names of a space are optimizer settings, fields of the job, or dropout."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from paceline.errors import JobError, TuningError, suggest
from paceline.planning.tuner.space import Configuration
from paceline.planning.tuner.trial import Trial
from paceline.training.jobs.job import Job

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
