"""Schedulers: each trial to its end, until it falls behind the median, or as far as it is among the best."""

from __future__ import annotations

from bisect import bisect, insort
from statistics import median

from paceline.algorithms.tuning import FAILED, TrialSegment, rungs

# First in, first out: every trial is trained to the end.


class Fifo:
    """Trains `trials` configurations for `max_t` steps each."""

    resumes = False
    heeds: frozenset[int] | None = frozenset()

    def __init__(self, trials: int, max_t: int) -> None:
        self.trials, self.max_t = trials, max_t
        #: Trials that have begun.
        self.begun = 0

    def next(self) -> TrialSegment | None:
        if self.begun >= self.trials:
            return None
        self.begun += 1
        return TrialSegment(self.begun - 1, 0, self.max_t)

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        pass


class MedianStopping:
    """The median stopping rule.

    Golovin et al., "Google Vizier: a service for black-box optimization", KDD 2017. At a step t, a trial is stopped if

        its best loss until t  >  the median of the other trials' running averages of their losses until t.

    It makes no assumption on the form of learning curves. Trials younger than `grace_period` steps, and those that
    fewer than `min_trials` others can be compared with, go on.

    Stops a trial whose best loss is worse than the median of the others' averages.
    """

    resumes = False
    heeds: frozenset[int] | None = None

    def __init__(self, trials: int, max_t: int, grace_period: int = 1, min_trials: int = 3) -> None:
        self.trials, self.max_t = Fifo(trials, max_t), max_t
        self.grace_period, self.min_trials = grace_period, min_trials
        #: The losses of each trial, by step.
        self.losses: dict[int, dict[int, float]] = {}

    def next(self) -> TrialSegment | None:
        return self.trials.next()

    def report(self, trial: int, step: int, loss: float) -> bool:
        mine = self.losses.setdefault(trial, {})
        mine[step] = loss
        others = [
            self._average(losses, step) for other, losses in self.losses.items() if other != trial and step in losses
        ]
        if step < self.grace_period or step >= self.max_t or len(others) < self.min_trials:
            return False
        return min(mine.values()) > median(others)

    @staticmethod
    def _average(losses: dict[int, float], until: int) -> float:
        history = [loss for step, loss in losses.items() if step <= until]
        return sum(history) / len(history)

    def end(self, trial: int, step: int, loss: float) -> None:
        pass


class SuccessiveHalving:
    """Successive halving: all trials are trained a little, the best part of them longer, and so on.

    Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016. All
    trials are trained for `grace_period` steps; when the last of them has ended, the best 1 / reduction_factor go on
    from where they were to reduction_factor times as many steps, until `max_t`. Trials that lost are not trained again.
    Not to be confused with ASHA, which does not wait for a rung to be complete.

    One bracket; its trials have the numbers from `first` on.
    """

    resumes = True
    heeds: frozenset[int] | None = frozenset()

    def __init__(
        self, trials: int, max_t: int, grace_period: int = 1, reduction_factor: int = 3, first: int = 0
    ) -> None:
        self.reduction_factor, self.max_t = reduction_factor, max_t
        self.steps = [*rungs(grace_period, max_t, reduction_factor), max_t]
        #: The rung that trials are trained to now, as a place in `steps`.
        self.rung = 0
        #: Trials of this rung that have not begun, and the losses of those that have ended.
        self.waiting = list(range(first, first + trials))
        self.ended: dict[int, float] = {}
        #: Trials of this rung: those that wait, are under way, or have ended.
        self.size = trials

    def next(self) -> TrialSegment | None:
        if not self.waiting:
            return None
        start = self.steps[self.rung - 1] if self.rung else 0
        return TrialSegment(self.waiting.pop(0), start, self.steps[self.rung])

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        self.ended[trial] = loss
        self._promote()

    def _promote(self) -> None:
        """Begin the next rung, if this one is complete."""
        if len(self.ended) < self.size or self.rung + 1 == len(self.steps):
            return
        best = sorted((loss, trial) for trial, loss in self.ended.items() if loss != FAILED)
        keep = max(1, self.size // self.reduction_factor)
        self.waiting = sorted(trial for _, trial in best[:keep])
        self.size, self.ended, self.rung = len(self.waiting), {}, self.rung + 1


class Hyperband:
    """Hyperband: brackets of successive halving that begin with different numbers of trials and steps.

    Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization", JMLR 2018. With R = max_t,
    eta = reduction_factor and s_max = floor(log_eta(R)), bracket s = s_max, ..., 0 begins with

        n = ceil((s_max + 1) / (s + 1) * eta^s)  trials of  R / eta^s  steps.

    So a configuration that learns slowly, which a bracket with many short trials would drop, has its chance in another
    one. The number of trials follows from max_t. A bracket need not be over for the next one to begin.

    All brackets of one round.
    """

    resumes = True
    heeds: frozenset[int] | None = frozenset()

    def __init__(self, max_t: int, reduction_factor: int = 3) -> None:
        self.max_t = max_t
        self.brackets = list[SuccessiveHalving]()
        #: The bracket of each trial.
        self.bracket_of = list[SuccessiveHalving]()
        s_max = 0
        while reduction_factor ** (s_max + 1) <= max_t:
            s_max += 1
        for s in range(s_max, -1, -1):
            trials = -(-(s_max + 1) * reduction_factor**s // (s + 1))
            least = max(1, max_t // reduction_factor**s)
            bracket = SuccessiveHalving(trials, max_t, least, reduction_factor, first=len(self.bracket_of))
            self.brackets.append(bracket)
            self.bracket_of += [bracket] * trials

    def next(self) -> TrialSegment | None:
        return next((leg for bracket in self.brackets if (leg := bracket.next()) is not None), None)

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        self.bracket_of[trial].end(trial, step, loss)


class Asha:
    """ASHA: asynchronous successive halving.

    Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020, algorithm 2. Trials are compared at

        grace_period x reduction_factor^k  steps,  k = 0, 1, ...

    which are the rungs. A worker that is free continues a trial that is among the best 1 / reduction_factor of those
    that have ended a rung so far, on the highest rung that has one; otherwise it begins a new trial. So no worker waits
    for a rung to be complete, as it does in successive halving. When no trial is left to begin, the best one of the
    highest rung is trained to the end.

    Continues trials that are among the best 1 / reduction_factor of a rung.
    """

    resumes = True
    heeds: frozenset[int] | None = frozenset()

    def __init__(self, trials: int, max_t: int, grace_period: int = 1, reduction_factor: int = 4) -> None:
        self.trials, self.max_t, self.reduction_factor = trials, max_t, reduction_factor
        self.steps = [*rungs(grace_period, max_t, reduction_factor), max_t]
        #: (loss, trial) of those that have ended each rung below the last: those that wait, and those that went on.
        self.waiting: list[list[tuple[float, int]]] = [[] for _ in self.steps[1:]]
        self.gone: list[list[tuple[float, int]]] = [[] for _ in self.steps[1:]]
        #: Trials that have begun, and the rung that each of those under way is trained to.
        self.begun = 0
        self.running: dict[int, int] = {}

    def next(self) -> TrialSegment | None:
        for rung in reversed(range(len(self.waiting))):
            if self._continues(rung):
                return self._promote(rung)
        if self.begun < self.trials:
            self.begun += 1
            self.running[self.begun - 1] = 0
            return TrialSegment(self.begun - 1, 0, self.steps[0])
        highest = max((rung for rung, ended in enumerate(self.waiting) if ended), default=None)
        if highest is None or self.running or any(self.gone[highest:]):
            return None
        return self._promote(highest)

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        rung = self.running.pop(trial)
        if loss != FAILED and rung < len(self.waiting):
            insort(self.waiting[rung], (loss, trial))

    def _continues(self, rung: int) -> bool:
        """Whether the best trial that waits at a rung is among the best of all that have come to it."""
        waiting, promoted = self.waiting[rung], self.gone[rung]
        if not waiting:
            return False
        return bisect(promoted, waiting[0]) < (len(waiting) + len(promoted)) // self.reduction_factor

    def _promote(self, rung: int) -> TrialSegment:
        best = self.waiting[rung].pop(0)
        insort(self.gone[rung], best)
        self.running[best[1]] = rung + 1
        return TrialSegment(best[1], self.steps[rung], self.steps[rung + 1])


class AshaStopping:
    """ASHA in its stopping form, for trials that cannot be continued later.

    Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020. Trials are compared at rungs,

        grace_period x reduction_factor^k  steps,  k = 0, 1, ...

    A trial that comes to a rung goes on if its loss is among the best 1 / reduction_factor of all that have come to
    this rung so far, itself included (at least one), and is stopped otherwise. No trial waits for another one. This is
    what Ray Tune and Optuna have; it trains more than the paper's form (asha.py), since the first ones that come to a
    rung go on.

    Stops trials that are not among the best 1 / reduction_factor at a rung.
    """

    resumes = False

    def __init__(self, trials: int, max_t: int, grace_period: int = 1, reduction_factor: int = 4) -> None:
        self.trials, self.max_t = Fifo(trials, max_t), max_t
        self.reduction_factor = reduction_factor
        #: The losses that came to each rung, by its step.
        self.rungs: dict[int, list[float]] = {step: [] for step in rungs(grace_period, max_t, reduction_factor)}
        self.heeds: frozenset[int] | None = frozenset(self.rungs)

    def next(self) -> TrialSegment | None:
        return self.trials.next()

    def report(self, trial: int, step: int, loss: float) -> bool:
        if step not in self.rungs:
            return False
        losses = self.rungs[step]
        losses.append(loss)
        best = max(1, len(losses) // self.reduction_factor)
        return sum(other < loss for other in losses) >= best

    def end(self, trial: int, step: int, loss: float) -> None:
        pass
