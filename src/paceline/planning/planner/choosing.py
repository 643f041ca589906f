"""Choosing: candidates ranked by their predictions, and why. Pure.

A plan that keeps several cores busy is chosen only if it is faster than one process with one thread by `PAYS`: a
second core that gains nothing is better left to others.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.planning.planner.prediction import Prediction
from paceline.text_table import Tabled, TextTable

# --- Which plans of a choice are measured before one is chosen, and what becomes of their predictions. Pure -----------

MOST = 9  # plans that are measured for one choice
ALIKE = 2  # of plans that differ only in their tables, as `ring` and `tree` do
DOUBT = 0.02  # of a plan whose rounds all took the same, as a logarithm
MEASURED = "measured"


def finalists(predictions: Sequence[Prediction], most: int) -> list[Prediction]:
    """Return the plans to measure next, the fastest first, at most so many; none once the fastest was measured.

    These are the plans whose intervals reach below the fastest one's upper end, one process, and the fastest of those
    with several workers: a card that was made on a busy machine rules all of them out.
    """
    usable = sorted((p for p in predictions if not p.ruled_out), key=lambda p: p.seconds)
    if not usable or most <= 0 or (usable[0].level == MEASURED):
        return []
    kinds = Counter(_kind(p) for p in usable if p.level == MEASURED)
    team = next((p for p in usable if p.plan.workers > 1), None)
    chosen: list[Prediction] = []
    for each in usable:
        if each.level == MEASURED or len(chosen) == most or kinds[_kind(each)] >= ALIKE:
            continue
        if each.low <= usable[0].high or each.plan.workers * each.plan.threads == 1 or each is team:
            kinds[_kind(each)] += 1
            chosen.append(each)
    return chosen


def measured_as(prediction: Prediction, rounds: Sequence[float]) -> Prediction:
    """Return the prediction with what was measured in its place: the median of the rounds, and their range."""
    took = statistics.median(rounds)
    error = max(DOUBT, *(abs(math.log(each / took)) for each in rounds))
    terms = prediction.terms.scaled(took / prediction.seconds)
    return replace(prediction, level=MEASURED, terms=terms, error=error)


def corrected(predicted: Sequence[Prediction], predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return what was found; a plan that was not measured is as far off as measured ones of its kind."""
    ratios: dict[tuple[str, str, int, int], list[float]] = {}
    for before, after in zip(predicted, predictions, strict=True):
        if after.level == MEASURED:
            ratios.setdefault(_kind(after), []).append(after.seconds / before.seconds)
    return [
        replace(before, terms=before.terms.scaled(statistics.median(ratios[_kind(before)])))
        if after.level != MEASURED and not after.ruled_out and _kind(before) in ratios
        else after
        for before, after in zip(predicted, predictions, strict=True)
    ]


def _kind(prediction: Prediction) -> tuple[str, str, int, int]:
    plan = prediction.plan
    return plan.method.name, prediction.compute, plan.workers, plan.threads


PAYS = 1.05
USABLE = 0.9  # of a machine's memory
SEARCHED = 1.25  # how much faster a searched table has to be: the best of many predictions is likely too low
GOALS = ("time", "cost", "memory")
SHOWN = 12  # lines of a ranking


@dataclass(frozen=True)
class Layer:
    """One module of the model, forward and backward, with one thread."""

    name: str
    flops: float
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Choice(Tabled):
    """A ranking, the plan on top, and why."""

    goal: str
    #: What can be used, the best first.
    ranking: tuple[Prediction, ...]
    #: What cannot, with its reason.
    ruled_out: tuple[Prediction, ...]
    #: The dollars of an epoch of each, as in `ranking`; empty without prices.
    dollars: tuple[float, ...] = ()
    updates_per_epoch: int = 1
    sentences: tuple[str, ...] = ()
    command: str = ""
    #: The plans that no other one beats in time, memory and money at once.
    front: tuple[str, ...] = field(default=())
    #: The modules of the model, and what bounds them: GFLOP/s of matrix products and GB/s of one core.
    layers: tuple[Layer, ...] = ()
    roofs: tuple[float, float] | None = None

    def __repr__(self) -> str:
        best = f"{self.best.name!r}, " if self.ranking else ""
        return f"Choice({best}goal={self.goal!r}, {len(self.ranking)} plans ranked, {len(self.ruled_out)} ruled out)"

    def table(self) -> TextTable:
        """Return the first plans of the ranking, each with its prediction and what it is made of."""
        heads = ["plan", "update", "90%", "samples/s", "compute", "exchange", "waiting"]
        rows = [
            [
                each.name,
                micro(each.seconds),
                f"±{math.expm1(each.error):.0%}",
                f"{each.samples_per_second:,.0f}",
                micro(each.terms.compute),
                micro(each.terms.exchange),
                micro(each.terms.wait),
            ]
            for each in self.ranking[:SHOWN]
        ]
        if self.dollars:
            heads.append("$ an epoch")
            rows = [[*row, f"{price:.3g}"] for row, price in zip(rows, self.dollars, strict=False)]
        return TextTable(f"Predicted ({self.best.level})", tuple(heads), tuple(map(tuple, rows)))

    def notes(self) -> list[str]:
        """Return what is said below the table: what is ruled out, and why this plan is chosen."""
        return [
            *(f"ruled out: {', '.join(names)}: {why}" for why, names in self._reasons().items()),
            *([f"Pareto front of time, memory and cost: {', '.join(self.front)}"] if len(self.front) > 1 else []),
            *self.sentences,
        ]

    def _reasons(self) -> dict[str, list[str]]:
        """Return the plans that each reason rules out: a name alone where none of that name is left."""
        ranked_names = {each.plan.name for each in self.ranking}
        reasons: dict[str, list[str]] = {}
        for each in self.ruled_out:
            name = each.name if each.plan.name in ranked_names else each.plan.name
            if name not in (names := reasons.setdefault(each.ruled_out, [])):
                names.append(name)
        return reasons

    @property
    def best(self) -> Prediction:
        return self.ranking[0]

    @property
    def plan(self) -> str:
        """The chosen plan, with its options."""
        return str(self.best.plan)

    @property
    def compute(self) -> str:
        """How the chosen plan computes gradients: autograd or fused."""
        return self.best.compute

    def as_dict(self) -> dict[str, Any]:
        """The choice as `paceline choose --json` prints it."""
        rows = [each.as_dict() for each in self.ranking]
        for row, price in zip(rows, self.dollars, strict=False):
            row["dollars_per_epoch"] = price
        return {
            "goal": self.goal,
            "plan": self.plan,
            "compute": self.compute,
            "workers": self.best.plan.workers,
            "level": self.best.level,
            "seconds_per_epoch": self.best.seconds * self.updates_per_epoch,
            "command": self.command,
            "explanation": list(self.sentences),
            "front": list(self.front),
            "ranking": rows,
            "ruled_out": [
                {"plan": each.name, "why": each.ruled_out, "seconds": each.seconds} for each in self.ruled_out
            ],
        }


def choose(
    predictions: Sequence[Prediction],
    goal: str,
    memory: int,
    updates_per_epoch: int = 1,
    price: Callable[[Prediction], float] | None = None,
    each_memory: int | None = None,
) -> Choice:
    """Rank predictions by a goal.

    memory   bytes of all machines, of which a plan's workers may take 90%
    each_memory  bytes of one machine, where each worker has its own
    price    the dollars of a second of a plan, where prices are known
    """
    checked = [fits(each, memory, each_memory or memory) for each in predictions]
    usable = [each for each in checked if not each.ruled_out]

    def dollars(each: Prediction) -> float:
        return price(each) * each.seconds * updates_per_epoch if price else 0.0

    keys: dict[str, Callable[[Prediction], float]] = {
        "time": lambda p: p.seconds,
        "cost": lambda p: dollars(p) or p.seconds * p.plan.workers * p.plan.threads,
        "memory": lambda p: p.memory * p.plan.workers,
    }
    key = keys[goal]
    ranking = sorted(usable, key=lambda p: (key(p), p.plan.workers, p.name))
    if ranking and goal == "time":
        ranking = _prefer_single_process(_unless_it_is_sure(ranking))
    money = tuple(dollars(each) for each in ranking) if price else ()
    front = tuple(p.name for p in ranking if not any(_dominates(q, p, dollars) for q in ranking))
    ruled = tuple(each for each in checked if each.ruled_out)
    choice = Choice(goal, tuple(ranking), ruled, money, updates_per_epoch, front=front)
    return replace(choice, sentences=tuple(explain(choice))) if ranking else choice


def fits(each: Prediction, memory: int, machine: int) -> Prediction:
    """Rule a plan out that needs more than 90% of the memory of all machines, or of one."""
    needed = each.memory * each.plan.workers
    if each.ruled_out or (needed <= USABLE * memory and each.memory <= USABLE * machine):
        return each
    if each.memory > USABLE * machine:
        why = f"a worker needs {each.memory / 2**20:,.0f} MiB, and a machine has {machine / 2**20:,.0f}"
        return replace(each, ruled_out=why)
    return replace(each, ruled_out=f"its workers need {needed / 2**30:.1f} GiB, and there are {memory / 2**30:.1f}")


def _unless_it_is_sure(ranking: list[Prediction]) -> list[Prediction]:
    """Put the fastest other plan before a table that a search has found, unless that is faster by `SEARCHED`."""
    other = next((p for p in ranking if p.plan.name != "per_layer"), None)
    if other is not None and ranking[0].plan.name == "per_layer" and other.seconds < SEARCHED * ranking[0].seconds:
        ranking = [other, *(p for p in ranking if p is not other)]
    return ranking


def _prefer_single_process(ranking: list[Prediction]) -> list[Prediction]:
    """Put one process with one thread first where nothing that keeps more cores busy is faster by `PAYS`."""
    single = next((p for p in ranking if p.plan.workers * p.plan.threads == 1), None)
    first = ranking[0].plan
    if single is not None and first.workers * first.threads > 1 and single.seconds < PAYS * ranking[0].seconds:
        ranking = [single, *(p for p in ranking if p is not single)]
    return ranking


def _dominates(one: Prediction, other: Prediction, dollars: Callable[[Prediction], float]) -> bool:
    mine = (one.seconds, one.memory * one.plan.workers, dollars(one))
    its = (other.seconds, other.memory * other.plan.workers, dollars(other))
    return all(a <= b for a, b in zip(mine, its, strict=True)) and mine != its


# --- why ---


def explain(choice: Choice) -> list[str]:
    """Say what the choice rests on: where its time goes, what came next, and what would change it."""
    best, sentences = choice.best, []
    parts = {
        "computing": best.terms.compute,
        "the update": best.terms.update,
        "exchanging": best.terms.exchange,
        "waiting": best.terms.wait,
        "Python in between": best.terms.between,
    }
    shares = [f"{name} {value / best.seconds:.0%}" for name, value in parts.items() if value >= 0.005 * best.seconds]
    sentences.append(
        f"{best.name}: {micro(best.seconds)} for an update ({micro(best.low)} to {micro(best.high)}), of which "
        + ", ".join(shares)
    )
    singles = [p for p in choice.ranking if p.plan.workers == 1 and p is not best]
    teams = [p for p in choice.ranking if p.plan.workers > 1 and p is not best]
    if best.plan.workers > 1 and singles:
        sentences.append(f"It is {singles[0].seconds / best.seconds:.2f}x as fast as {singles[0].name}")
    if best.plan.workers == 1 and teams:
        sentences.append(why_not(best, teams[0]))
    close = [p for p in choice.ranking[1:] if p.low < best.high and max(p.plan.workers, best.plan.workers) > 1][:3]
    if close:
        names = ", ".join(p.name for p in close)
        sentences.append(f"Within the intervals these may be as fast: {names}; `paceline validate` measures them")
    return sentences


def why_not(best: Prediction, other: Prediction) -> str:
    """Say which term makes another plan slower, and from what it would pay."""
    more = {
        "exchanging": other.terms.exchange,
        "waiting": other.terms.wait,
        "Python in between": other.terms.between,
        "computing on busy cores": other.terms.compute * other.plan.workers - best.terms.compute,
    }
    name, most = max(more.items(), key=lambda item: item[1])
    text = f"{other.name} is the nearest plan of several workers, {best.seconds / other.seconds:.2f}x as fast; "
    text += f"most of what it adds is {name} ({micro(most)})"
    flip = flips(best, other)
    return text + (f". {flip}" if flip else "")


def flips(best: Prediction, other: Prediction) -> str:
    """Say how much faster an exchange would have to be for the other plan to win; empty where it could not."""
    without = other.seconds - other.terms.exchange
    if other.terms.exchange <= 0 or without >= best.seconds:
        return ""
    factor = other.terms.exchange / (best.seconds - without)
    if factor <= 1:
        return ""
    return f"It would win if exchanges were {factor:.1f} times as fast"


def micro(seconds: float) -> str:
    """Write seconds in a unit that suits them."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
