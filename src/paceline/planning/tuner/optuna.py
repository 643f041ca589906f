"""Optuna's samplers as proposals.

Optuna is asked and told (`study.ask`, `study.tell`) in the process that decides, on a study in memory, so that no
worker waits for a database. Conditional parameters follow a sampler's joint proposals by being suggested one after
another.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paceline.algorithms.tuning import FAILED, Coordinates
from paceline.errors import TuningError
from paceline.planning.tuner.space import Configuration, Float, Int, Parameter, Space, exists
from paceline.planning.tuner.study import DONE, FAILURE, STOPPED, Study, TrialRecord

if TYPE_CHECKING:
    import optuna


#: Optuna's samplers by name: one line about each, and its class.
SAMPLERS: dict[str, tuple[str, str]] = {
    "tpe": ("Optuna's tree-structured Parzen estimator", "TPESampler"),
    "gp": ("Optuna's Bayesian optimisation by Gaussian processes; needs PyTorch and SciPy", "GPSampler"),
    "cmaes": ("Optuna's CMA-ES; needs the package cmaes", "CmaEsSampler"),
    "nsgaii": ("Optuna's genetic algorithm NSGA-II", "NSGAIISampler"),
    "qmc": ("Optuna's quasi-random points", "QMCSampler"),
}
PATIENCE = 1000  # proposals that the constraints refuse, one after another, before they are taken to be impossible


def package() -> Any:
    """Import Optuna, or say how to install it."""
    try:
        import optuna
    except ImportError:
        raise TuningError("this search is Optuna's, which is not installed: pip install 'paceline[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def sampler_named(sampler: Any, seed: int = 0) -> Any:
    """Return a sampler of Optuna by its name, or as it was given."""
    optuna = package()
    if isinstance(sampler, optuna.samplers.BaseSampler):
        return sampler
    if sampler not in SAMPLERS:
        raise TuningError(f"search={sampler!r:.60} is neither the name of a search nor a sampler of Optuna")
    return getattr(optuna.samplers, SAMPLERS[sampler][1])(seed=seed % 2**32)


class OptunaProposals:
    """Asks a sampler of Optuna for configurations and tells it their losses."""

    learns = True

    def __init__(self, sampler: optuna.samplers.BaseSampler, space: Space, minimize: bool, study: Any = None) -> None:
        self.package, self.space, self.minimize = package(), space, minimize
        direction = "minimize" if minimize else "maximize"
        self.study = study or self.package.create_study(sampler=sampler, direction=direction)
        #: Optuna's own trials that are under way, by number of ours.
        self.asked: dict[int, Any] = {}

    def configuration(self, trial: int) -> Configuration:
        for _ in range(PATIENCE):
            optuna_trial = self.study.ask()
            configuration: Configuration = {}
            for name, parameter in self.space.parameters.items():
                if exists(parameter.when, configuration):
                    configuration[name] = suggest_with(optuna_trial, name, parameter)
            if self.space.allows(configuration):
                self.asked[trial] = optuna_trial
                return configuration
            self.study.tell(optuna_trial, state=self.package.trial.TrialState.FAIL)
        raise TuningError(f"the constraints allowed none of {PATIENCE} configurations; loosen them")

    def at(self, coordinates: Coordinates) -> Configuration | None:
        return self.space.configuration(coordinates)

    def preview(self, trial: int) -> Configuration | None:
        return None  # a sampler that was asked has to be told

    def recall(self, trial: int, configuration: Configuration) -> None:
        self.study.enqueue_trial(configuration)
        self.configuration(trial)

    def record_loss(self, trial: int, loss: float, reports: dict[int, float]) -> None:
        optuna_trial = self.asked.pop(trial)
        for step, value in reports.items():
            optuna_trial.report(value, step)
        states = self.package.trial.TrialState
        if loss == FAILED:
            self.study.tell(optuna_trial, state=states.FAIL)
        else:
            self.study.tell(optuna_trial, loss if self.minimize else -loss)


def suggest_with(trial: Any, name: str, parameter: Parameter) -> Any:
    """Suggest a parameter of a space by a trial of Optuna."""
    if isinstance(parameter, Float):
        return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    if isinstance(parameter, Int):
        return trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    return trial.suggest_categorical(name, list(parameter.choices))


def distribution(parameter: Parameter) -> Any:
    """Return a parameter as Optuna's distribution."""
    distributions = package().distributions
    if isinstance(parameter, Float):
        return distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    if isinstance(parameter, Int):
        return distributions.IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    return distributions.CategoricalDistribution(list(parameter.choices))


# A tuning in Optuna's storage: its trials are written there as they end, and what others wrote is learned from.
# The process that decides is the only one that writes; the journal stays the record from which a tuning is resumed.
# Each trial has the attribute `paceline`, the tuning with the trial's number, so that none is written twice.

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
