"""Population-based training: members that do badly take over parameters and configuration of those that do well.

Jaderberg et al., "Population based training of neural networks", 2017. All members of a population are trained for
`perturbation_interval` steps. Then each of the worst `quantile` of them

    exploits    continues from the parameters and the optimizer's state of a member of the best `quantile`, and
    explores    with that member's configuration, changed: each coordinate is drawn anew with probability
                `resample_probability`, and otherwise moved by `perturbation` in either direction.

A configuration thus becomes a schedule. The paper's members are compared as they come; here they are compared when all
have come to a step, so that what is decided does not depend on which member was faster.
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.algorithms.tuning import FAILED, Coordinates, Sampler, TrialSegment, uniform


class Breeding(NamedTuple):
    """How members that do badly are changed."""

    quantile: float = 0.25
    resample_probability: float = 0.25
    perturbation: float = 0.1


class PopulationBasedTraining:
    """A population of trials that is trained to `max_t` steps."""

    resumes = True
    heeds: frozenset[int] | None = frozenset()

    def __init__(
        self,
        sampler: Sampler,
        trials: int,
        max_t: int,
        perturbation_interval: int = 1,
        seed: int = 0,
        breeding: Breeding | None = None,
    ) -> None:
        self.max_t, self.interval, self.seed, self.breeding = max_t, perturbation_interval, seed, breeding or Breeding()
        self.sampler = sampler
        #: The configuration of each member now; None as long as it is the sampler's.
        self.members: list[Coordinates | None] = [None] * trials
        self.start = 0
        self.waiting = [TrialSegment(trial, 0, min(perturbation_interval, max_t)) for trial in range(trials)]
        self.ended: dict[int, float] = {}
        self.size = trials

    def next(self) -> TrialSegment | None:
        return self.waiting.pop(0) if self.waiting else None

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        self.ended[trial] = loss
        self._breed()

    def _breed(self) -> None:
        """Begin the next interval, if all members have ended this one."""
        if len(self.ended) < self.size:
            return
        self.start = min(self.start + self.interval, self.max_t)
        stop = min(self.start + self.interval, self.max_t)
        ranked = [trial for _, trial in sorted((loss, trial) for trial, loss in self.ended.items())]
        alive = [trial for trial in ranked if self.ended[trial] != FAILED]
        self.ended = {}
        if self.start == self.max_t or not alive:
            return
        count = min(max(1, int(len(ranked) * self.breeding.quantile)), len(ranked) // 2)
        best = alive[: max(1, count)]
        worst = [trial for trial in ranked[len(ranked) - count :] if trial not in best]
        worst += [trial for trial in ranked if trial not in alive and trial not in worst]
        self.waiting = [
            self._exploit(trial, best, stop) if trial in worst else TrialSegment(trial, self.start, stop)
            for trial in sorted(ranked)
        ]

    def _exploit(self, trial: int, best: list[int], stop: int) -> TrialSegment:
        source = best[int(uniform(self.seed, trial, self.start) * len(best))]
        before = self.members[source] or self.sampler.coordinates(source) or ()
        changed = tuple(self._explore(value, trial, place) for place, value in enumerate(before))
        self.members[trial] = changed
        return TrialSegment(trial, self.start, stop, source, changed)

    def _explore(self, value: float, trial: int, place: int) -> float:
        fate = uniform(self.seed, trial, self.start, place, 1)
        draw, move = uniform(self.seed, trial, self.start, place, 2), self.breeding.perturbation
        if fate < self.breeding.resample_probability:
            return draw
        return min(1.0, max(0.0, value + (move if draw < 0.5 else -move)))
