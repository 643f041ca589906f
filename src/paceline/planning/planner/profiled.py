"""The seconds of the parts of a step where a few real steps of this very model were measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.planning.planner import fitting
from paceline.planning.planner.card import Card, Overhead
from paceline.planning.planner.costs import Costs, LayerSeconds
from paceline.planning.planner.facts import Facts
from paceline.planning.planner.memory import formula, replica_bytes, samples_of
from paceline.planning.planner.methods import overhead_of
from paceline.planning.planner.model_cost import ModelCost
from paceline.plans.methods.prediction import Guess
from paceline.plans.plan import Plan

PROFILED = 0.15  # error of a part that was measured with this very model
SCALES = 0.3, 4.0  # of memory measured over predicted; workers of a few KiB are not measured well


@dataclass(frozen=True)
class Profile:
    """Real steps of a model by workers that never communicate."""

    busy: int
    threads: int
    samples: int
    #: Seconds of each gradient.
    compute: tuple[float, ...]
    #: Seconds of each update.
    update: tuple[float, ...]
    #: Seconds of Python between them.
    between: float
    #: The most bytes of a worker; 0 where the kernel does not say.
    memory: int = 0


@dataclass
class Profiled:
    """Predicts by real steps of the model; what was not measured is scaled from them by the calibrated prediction."""

    base: Costs
    profiles: Sequence[Profile]
    #: Of plans that were measured with this model.
    overheads: list[Overhead] = field(default_factory=list)
    #: Bytes of a worker measured over predicted, by its kind (`memory.formula`) and its samples.
    heaps: dict[str, dict[int, float]] = field(default_factory=dict)
    level: str = "profiled"

    @property
    def card(self) -> Card:
        return self.base.card

    def cost(self, samples: int) -> ModelCost:
        return self.base.cost(samples)

    @property
    def tensors(self) -> int:
        return self.base.tensors

    def compute(self, samples: int, busy: int, threads: int) -> Guess:
        near = self._near(busy, threads)
        if not near:
            return self.base.compute(samples, busy, threads)
        turns = self._turns(busy, threads, near[0])
        exact = [p for p in near if p.samples == samples]
        if exact:
            return Guess(mean_without_outliers(exact[0].compute) * turns, PROFILED if turns == 1 else 2 * PROFILED)
        points = sorted((p.samples, mean_without_outliers(p.compute)) for p in near)
        if len(points) > 1 and points[0][0] < samples < points[-1][0]:
            return Guess(_between(points, samples) * turns, 1.5 * PROFILED)
        nearest = min(near, key=lambda p: abs(math.log(p.samples / samples)))
        nearest_seconds = self.base.compute(nearest.samples, nearest.busy, nearest.threads).seconds
        target_seconds = self.base.compute(samples, nearest.busy, nearest.threads).seconds
        return Guess(
            mean_without_outliers(nearest.compute) * target_seconds / max(nearest_seconds, 1e-9) * turns, 2 * PROFILED
        )

    def update(self, busy: int, threads: int) -> Guess:
        near = self._near(busy, threads)
        if not near:
            return self.base.update(busy, threads)
        turns = self._turns(busy, threads, near[0])
        return Guess(_mean([mean_without_outliers(p.update) for p in near]) * turns, PROFILED)

    def layers(self, samples: int, busy: int, threads: int) -> Mapping[str, LayerSeconds]:
        return self.base.layers(samples, busy, threads)

    def jitter(self, busy: int, threads: int) -> tuple[float, ...]:
        near = self._near(busy, threads)
        pooled = [t / q for p in near for q in [_median(p.compute)] for t in p.compute]
        return fitting.quantiles(pooled) if len(pooled) >= 20 else self.base.jitter(busy, threads)

    def heap(self, samples: int, how: str) -> float:
        if anchored := self.heaps.get(how):
            return anchored[min(anchored, key=lambda known: abs(math.log(known / samples)))]
        if how == "stages":
            return self.base.heap(samples, how)
        measured = [p for p in self.profiles if p.memory and p.threads == 1]
        if not measured:
            return self.base.heap(samples, how)
        nearest = min(abs(math.log(p.samples / samples)) for p in measured)
        ratios = [
            p.memory / replica_bytes(self.cost(p.samples), "alone")
            for p in measured
            if abs(math.log(p.samples / samples)) == nearest
        ]
        return min(SCALES[1], max(SCALES[0], _mean(ratios)))

    def between(self, kind: str, workers: int, threads: int = 1) -> float:
        alone = [p.between for p in self._near(1, threads)]
        more = max(0.0, self.base.between(kind, workers) - self.card.between)
        return (_mean(alone) + more) if alone else self.base.between(kind, workers)

    def overhead(self, family: str, workers: int) -> Overhead:
        overheads = [o for o in self.overheads if (o.workers > self.card.cores) == (workers > self.card.cores)]
        return Overhead.nearest(overheads, family, workers) or self.base.overhead(family, workers)

    def _near(self, busy: int, threads: int) -> list[Profile]:
        """The profiles of as many busy workers, or of as many as there are cores where there are more."""
        most = max(1, self.card.cores // threads)
        same = [p for p in self.profiles if p.threads == threads]
        exact = [p for p in same if p.busy == min(busy, most)]
        if exact or not same:
            return exact
        nearest = min(abs(p.busy - min(busy, most)) for p in same)
        return [p for p in same if abs(p.busy - min(busy, most)) == nearest]

    def _turns(self, busy: int, threads: int, measured: Profile) -> float:
        """How many times as long a worker takes because there are fewer cores than threads."""
        cores = self.card.cores
        return max(1.0, busy * threads / cores) / max(1.0, measured.busy * measured.threads / cores)


def _between(points: Sequence[tuple[int, float]], samples: int) -> float:
    """Interpolate linearly."""
    for (low, first), (high, last) in itertools.pairwise(points):
        if low <= samples <= high:
            return first + (last - first) * (samples - low) / (high - low)
    raise AssertionError("the caller has checked that it lies between")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def mean_without_outliers(values: Sequence[float]) -> float:
    """Return the mean of the values without the largest fifth, which other programs on the machine have made."""
    ordered = sorted(values)
    return _mean(ordered[: max(1, len(ordered) - len(ordered) // 5)])


# --- What a plan that was measured with a model says of the others of its family --------------------------------------


def learn(costs: Profiled, plan: Plan, facts: Facts, seconds: float, memory: int) -> None:
    """Correct the costs by the seconds of this plan's update and the bytes of a worker, 0 where unknown."""
    costs.overheads.append(overhead_of(plan, costs, facts, seconds))
    if memory:
        samples = samples_of(plan, facts.batch)
        nbytes, kind = formula(plan, costs.cost(samples), facts.division)
        costs.heaps.setdefault(kind, {})[samples] = memory / nbytes
