"""The searches by name, as in "asha:max_t=27,reduction_factor=3,sampler=sobol"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.algorithms.tuning import Grid, Random, Sampler, Scheduler, Sobol
from paceline.algorithms.tuning.pbt import Breeding, PopulationBasedTraining
from paceline.algorithms.tuning.schedulers import Asha, AshaStopping, Fifo, Hyperband, MedianStopping, SuccessiveHalving
from paceline.errors import TuningError, suggest
from paceline.planning.tuner.optuna import SAMPLERS as OPTUNA
from paceline.planning.tuner.optuna import OptunaProposals, sampler_named
from paceline.planning.tuner.space import Space
from paceline.planning.tuner.study import Drawn, Proposals

TRIALS = 32  # of a search without an end of its own, if no number is given
STAGES = 16  # of max_t, the first of which is ASHA's grace period: earlier, learning rates have not shown their order
SAMPLERS = ("grid", "random", "sobol", *OPTUNA)


class SchedulerTerms(NamedTuple):
    """What a scheduler is made for."""

    trials: int
    max_t: int
    seed: int
    proposals: Proposals
    #: Whether a trial can go on later from where it was.
    continues: bool


@dataclass(frozen=True)
class Recipe:
    """A named search: one line about it, what makes its scheduler, its options with their defaults."""

    about: str
    scheduler: Callable[..., Scheduler]
    options: dict[str, int | float] = field(default_factory=dict)
    sampler: str = "random"
    counts: bool = False  # whether it decides itself how many trials there are


def _fifo(terms: SchedulerTerms) -> Scheduler:
    return Fifo(terms.trials, terms.max_t)


def _asha(terms: SchedulerTerms, grace_period: int = 0, reduction_factor: int = 4) -> Scheduler:
    grace_period = grace_period or -(-terms.max_t // STAGES)
    form = Asha if terms.continues else AshaStopping
    return form(terms.trials, terms.max_t, grace_period, reduction_factor)


def _pbt(terms: SchedulerTerms, perturbation_interval: int = 1, **breeding: float) -> Scheduler:
    if not isinstance(terms.proposals, Drawn):
        raise TuningError("search pbt changes configurations itself; take sampler=random, sobol or grid with it")
    interval, change = perturbation_interval, Breeding(**breeding)
    return PopulationBasedTraining(terms.proposals, terms.trials, terms.max_t, interval, terms.seed, change)


HALVING: dict[str, int | float] = {"grace_period": 1, "reduction_factor": 3}

SEARCHES: dict[str, Recipe] = {
    "grid": Recipe("every combination of values, each exactly once", _fifo, sampler="grid"),
    "random": Recipe("configurations drawn at random, each trained to the end", _fifo),
    "sobol": Recipe("configurations that fill the space evenly, each trained to the end", _fifo, sampler="sobol"),
    "asha": Recipe(
        "continues trials that are among the best at a rung; no trial waits for another",
        _asha,
        {"grace_period": 0, "reduction_factor": 4},
    ),
    "successive_halving": Recipe(
        "trains all a little, the best part longer, and so on",
        lambda terms, **options: SuccessiveHalving(terms.trials, terms.max_t, **options),
        HALVING,
    ),
    "hyperband": Recipe(
        "brackets of successive halving; their number of trials follows from max_t",
        lambda terms, **options: Hyperband(terms.max_t, **options),
        {"reduction_factor": 3},
        counts=True,
    ),
    "median_stopping": Recipe(
        "stops a trial whose best is worse than the median of the others' averages",
        lambda terms, **options: MedianStopping(terms.trials, terms.max_t, **options),
        {"grace_period": 1, "min_trials": 3},
    ),
    "pbt": Recipe(
        "a population whose worst members continue from the best, with a changed configuration",
        _pbt,
        {"perturbation_interval": 1, "quantile": 0.25, "resample_probability": 0.25, "perturbation": 0.1},
    ),
    **{name: Recipe(about, _fifo, sampler=name) for name, (about, _) in OPTUNA.items()},
}


@dataclass(frozen=True)
class Search:
    """A search that was asked for: its recipe with its options, before the space and the number of trials are known."""

    name: str
    sampler: str
    options: dict[str, int | float]
    #: The steps of a trial that is trained to the end; None: those of the job.
    max_t: int | None = None
    #: A sampler of Optuna that was handed over as an object.
    own: Any = None

    @staticmethod
    def parse(search: Any) -> Search:
        """Make a search from its name and options; a sampler of Optuna is taken as it is."""
        if isinstance(search, Search):
            return search
        if not isinstance(search, str):
            return Search("random", type(search).__name__, {}, own=sampler_named(search))
        name, _, tail = search.strip().partition(":")
        if name not in SEARCHES:
            raise TuningError(f"there is no search {name!r}; {suggest(name, SEARCHES)}")
        recipe = SEARCHES[name]
        options, sampler, max_t = dict[str, int | float](), recipe.sampler, None
        for part in filter(None, tail.split(",")):
            key, _, text = part.partition("=")
            if key == "sampler":
                sampler = text
            elif key == "max_t":
                max_t = _number(name, key, text, 1)
            elif key in recipe.options:
                options[key] = _number(name, key, text, recipe.options[key])
            else:
                raise TuningError(
                    f"search {name} has no option {key!r}; {suggest(key, [*recipe.options, 'max_t', 'sampler'])}"
                )
        if sampler not in SAMPLERS:
            raise TuningError(f"search {name}: there is no sampler {sampler!r}; {suggest(sampler, SAMPLERS)}")
        if options.get("reduction_factor", 2) < 2:
            raise TuningError(
                f"search {name}: reduction_factor={options['reduction_factor']} keeps all; give 2 or more"
            )
        return Search(name, sampler, options, int(max_t) if max_t else None)

    @property
    def counts(self) -> bool:
        return SEARCHES[self.name].counts

    def __str__(self) -> str:
        options: dict[str, Any] = {**({"max_t": self.max_t} if self.max_t else {}), **self.options}
        if self.sampler != SEARCHES[self.name].sampler:
            options["sampler"] = self.sampler
        tail = ",".join(f"{key}={value}" for key, value in options.items())
        return f"{self.name}:{tail}" if tail else self.name

    def open(
        self, space: Space, n_trials: int | None, max_t: int, seed: int, minimize: bool, continues: bool = True
    ) -> tuple[Proposals, Scheduler, int]:
        """Return what proposes configurations, what schedules them, and how many trials there will be."""
        proposals = self._proposals(space, seed, minimize)
        if self.counts and (n_trials is not None or self.sampler == "grid"):
            raise TuningError(
                f"search {self.name} decides itself how many trials there are: give max_t, and no n_trials"
            )
        trials = TRIALS if n_trials is None else n_trials
        if self.sampler == "grid":
            assert isinstance(proposals, Drawn)
            trials = len(proposals) if n_trials is None else min(n_trials, len(proposals))
            if not trials:
                raise TuningError("the constraints allow no configuration of the grid; loosen them")
        scheduler = SEARCHES[self.name].scheduler(
            SchedulerTerms(trials, max_t, seed, proposals, continues), **self.options
        )
        return proposals, scheduler, len(scheduler.bracket_of) if isinstance(scheduler, Hyperband) else trials

    def _proposals(self, space: Space, seed: int, minimize: bool) -> Proposals:
        if self.own is not None or self.sampler in OPTUNA:
            sampler = self.own if self.own is not None else sampler_named(self.sampler, seed)
            return OptunaProposals(sampler, space, minimize)
        sampler = _sampler(self.sampler, space, seed)
        return Drawn(sampler, space, distinct=self.sampler == "grid")


def _sampler(name: str, space: Space, seed: int) -> Sampler:
    if name == "grid":
        return Grid(space.grid())
    dimensions = len(space.parameters)
    return Random(dimensions, seed) if name == "random" or not dimensions else Sobol(_points(dimensions, seed))


def _points(dimensions: int, seed: int) -> Callable[[int], Sequence[Sequence[float]]]:
    def points(count: int) -> Sequence[Sequence[float]]:
        try:
            from scipy.stats import qmc
        except ImportError:
            raise TuningError("sampler sobol needs SciPy: pip install 'paceline[tune]'") from None
        draws: Sequence[Sequence[float]] = qmc.Sobol(dimensions, seed=seed).random(count).tolist()
        return draws

    return points


def _number(search: str, key: str, text: str, default: int | float) -> int | float:
    """Parse an option; whole, if its default is."""
    try:
        number = int(text) if isinstance(default, int) else float(text)
    except ValueError:
        number = -1
    if number <= 0 or not math.isfinite(number):
        what = "whole number" if isinstance(default, int) else "number"
        raise TuningError(f"search {search}: {key}={text!r} is not a {what} above 0")
    return number
