"""A tuning in Optuna's storage: its trials are written there as they end, and what others wrote is learned from.

The process that decides is the only one that writes; the journal stays the record from which a tuning is resumed. Each
trial has the attribute `paceline`, the tuning with the trial's number, so that none is written twice.
"""

from __future__ import annotations

import time
from typing import Any

from paceline.planning.tuner.optuna import OptunaProposals, distribution, package
from paceline.planning.tuner.space import Space
from paceline.planning.tuner.study import DONE, FAILURE, STOPPED, Study, TrialRecord

PAUSE = 1.0  # seconds between two looks for trials that have ended
ATTRIBUTE = "paceline"


class Storage:
    """A study in a storage of Optuna, given by its URL or as an object of Optuna."""

    def __init__(self, where: Any, name: str, tuning: str, space: Space, minimize: bool) -> None:
        self.package, self.tuning = package(), tuning
        direction = "minimize" if minimize else "maximize"
        self.study = self.package.create_study(storage=where, study_name=name, direction=direction, load_if_exists=True)
        self.distributions = {name: distribution(parameter) for name, parameter in space.parameters.items()}
        before = self.study.get_trials(deepcopy=False)
        self._written = {each.user_attrs.get(ATTRIBUTE) for each in before}
        self._written_at = time.monotonic()

    def teach(self, proposals: Any) -> None:
        """Tell a sampler of Optuna the trials of this study that are not of this tuning."""
        if not isinstance(proposals, OptunaProposals):
            return
        for each in self.study.get_trials(deepcopy=False, states=(self.package.trial.TrialState.COMPLETE,)):
            mine = str(each.user_attrs.get(ATTRIBUTE, "")).startswith(f"{self.tuning}/")
            if not mine and all(self._fits(name, value) for name, value in each.params.items()):
                proposals.study.add_trial(each)

    def __call__(self, study: Study, last: bool = False) -> None:
        """Write the trials that have ended since the last call, at most once a second."""
        if not last and time.monotonic() - self._written_at < PAUSE:
            return
        ended = [trial for trial in study.trials.values() if trial.status in (DONE, STOPPED, FAILURE)]
        for trial in ended:
            name = f"{self.tuning}/{trial.number}"
            if name not in self._written:
                self.study.add_trial(self._frozen(trial, name))
                self._written.add(name)
        self._written_at = time.monotonic()

    def _frozen(self, trial: TrialRecord, name: str) -> Any:
        states = self.package.trial.TrialState
        state = {DONE: states.COMPLETE, STOPPED: states.PRUNED, FAILURE: states.FAIL}[trial.status]
        parameters = {key: value for key, value in trial.configuration.items() if self._fits(key, value)}
        rest = {key: value for key, value in trial.configuration.items() if key not in parameters}
        attributes = {ATTRIBUTE: name, "seconds": trial.seconds, **rest}
        return self.package.create_trial(
            state=state,
            params=parameters,
            distributions={key: self.distributions[key] for key in parameters},
            value=trial.value if trial.status != FAILURE else None,
            intermediate_values=trial.reports,
            user_attrs=attributes | ({"reason": trial.reason} if trial.reason else {}),
        )

    def _fits(self, name: str, value: Any) -> bool:
        """Whether a value is one of the space's parameter of this name."""
        distribution = self.distributions.get(name)
        try:
            return distribution is not None and bool(distribution._contains(distribution.to_internal_repr(value)))
        except ValueError:
            return False
