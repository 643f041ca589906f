"""A trial as its function sees it: the configuration, and where results are reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from paceline.algorithms.tuning import uniform
from paceline.errors import TrialFailed, TrialStopped, TuningError
from paceline.planning.tuner.space import Choice, Configuration, Float, Int, Parameter
from paceline.planning.tuner.state_file import read_state, state_file, write_state

#: Sends (step, value) to the study, and returns whether the trial is to stop.
Reporter = Callable[[int, float], bool]


@dataclass(frozen=True)
class Terms:
    """What is alike in all trials of a study."""

    seed: int = 0
    states: Path | None = None  # where states between legs lie, if trials have several


TERMS = Terms()


class Trial:
    """One configuration. Use it as a mapping, `trial["lr"]`, or by `suggest_float("lr", 1e-4, 1.0, log=True)`.

    Attributes:
        number: Counts the trials of a study from 0.
        start, stop: The steps of the leg that is to be trained: from one of them to the other.
    """

    def __init__(
        self,
        number: int,
        configuration: Configuration,
        start: int,
        stop: int,
        terms: Terms = TERMS,
        reporter: Reporter = lambda step, value: False,
        source: int | None = None,
    ) -> None:
        self.number, self.configuration, self.start, self.stop = number, configuration, start, stop
        self.terms = terms
        #: The trial whose state at `start` this leg begins from.
        self.source = number if source is None else source
        self._reporter = reporter
        #: Values of names that the space does not have, which were drawn when they were asked for.
        self.suggested: Configuration = {}
        #: The last step that was reported, its value, and whether the study has stopped the trial.
        self.step, self.value, self.stopped = start, math.nan, False

    def __getitem__(self, name: str) -> Any:
        try:
            return self.configuration[name]
        except KeyError:
            raise TuningError(
                f"trial {self.number} has no {name!r}; it has {', '.join(self.configuration) or 'nothing'}. A "
                "conditional parameter is there only under its condition: use get(name)"
            ) from None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a parameter, or the default where the configuration does not have it."""
        return self.configuration.get(name, default)

    def keys(self) -> Sequence[str]:
        return list(self.configuration)

    # --- values by name, as in Optuna; of a name that the space lacks, the value is drawn ---

    def suggest_float(
        self, name: str, low: float, high: float, *, log: bool = False, step: float | None = None
    ) -> float:
        """Return a real number from `low` to `high`."""
        return float(self._suggest(name, Float(low, high, log, step)))

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False, step: int = 1) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return int(self._suggest(name, Int(low, high, log, step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of these values."""
        return self._suggest(name, Choice(choices))

    def _suggest(self, name: str, parameter: Parameter) -> Any:
        if name in self.configuration:
            return self.configuration[name]
        if name not in self.suggested:
            if fault := parameter.faults():
                raise TuningError(f"{name} is suggested with {fault}")
            self.suggested[name] = self._drawn(name, parameter)
        return self.suggested[name]

    def _drawn(self, name: str, parameter: Parameter) -> Any:
        """Return a value of a parameter that the configuration does not have."""
        return parameter.value(uniform(self.terms.seed, self.number, crc32(name.encode()), 7))

    # --- results ---

    def report(self, value: float, step: int) -> None:
        """Report the value of the objective after so many steps, at least one more than before."""
        value = float(value)
        if step <= self.step and step > self.start:
            raise TuningError(f"trial {self.number} reported step {step} after step {self.step}; steps grow from 1")
        if not math.isfinite(value):
            raise TrialFailed(f"the value of step {step} is {value}")
        self.step, self.value = step, value
        if step > self.start:  # what came before was reported by an earlier leg
            self.stopped = self._reporter(step, value)

    def should_prune(self) -> bool:
        """Return whether the study has stopped this trial; its function is to return then, or to raise."""
        return self.stopped

    def raise_if_stopped(self) -> None:
        """Leave the trial's function if the study has stopped the trial."""
        if self.stopped:
            raise TrialStopped(f"trial {self.number} is stopped after step {self.step}")

    # --- the state of a trial that goes on in a later leg ---

    def save(self, state: Any, step: int | None = None) -> None:
        """Save the state after the leg, for the next one to go on from; nothing if there will be none.

        It consists of tensors, NumPy arrays, numbers, texts, bytes, None, and lists, tuples and dictionaries of these.
        """
        if self.terms.states is None:
            return
        write_state(state_file(self.terms.states, self.number, self.stop if step is None else step), state)

    def load(self) -> Any:
        """Return the state that the leg goes on from, or None at the beginning of a trial."""
        if self.terms.states is None or not self.start:
            return None
        file = state_file(self.terms.states, self.source, self.start)
        return read_state(file) if file.is_file() else None
