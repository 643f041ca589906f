"""A function with a parameter for each name of the space, as a function of a trial: `def job(lr, width=32)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from paceline.errors import TuningError, suggest
from paceline.planning.tuner.trial import Trial
from paceline.training.jobs.job import Job

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
