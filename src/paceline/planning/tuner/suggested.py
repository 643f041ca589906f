"""The space that a function of a trial suggests, as objectives of Optuna do: found by calling the function.

    base        every choice has its first value, every number its middle
    variations  one choice has another value, once for each value: what is asked for only then exists only then

So a function whose choices have 2, 3 and 4 values is called 1 + 1 + 2 + 3 times. A name whose range is not always the
same is left out of the space; its value is drawn when the function asks for it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from paceline.errors import TuningError, suggest
from paceline.planning.tuner.space import Choice, Configuration, Parameter, Space
from paceline.planning.tuner.trial import Trial
from paceline.training.jobs.job import Job

# --- A function with a parameter for each name of the space, as a function of a trial: `def job(lr, width=32)` --------

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
    for name in dict.fromkeys(name for asked in runs.values() for name in asked):
        having = [value for value, asked in runs.items() if name in asked]
        same = runs[having[0]][name]
        if any(runs[value][name] != same for value in having):
            changing.add(name)
        parameter = parameters.get(name, same)
        if len(having) < len(runs):
            parameter = replace(parameter, when={**parameter.when, parent: having[0] if len(having) == 1 else having})
        parameters[name] = parameter
    return changing
