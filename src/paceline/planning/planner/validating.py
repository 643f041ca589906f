"""Predicted against measured. Pure.

error            |predicted / measured - 1|, its median over plans
bias             the median of predicted / measured - 1, with its sign
rank correlation Kendall's tau: 1 where predictions put all plans in the measured order
regret           how much slower the chosen plan is than the best of those that were measured
coverage         the share of plans whose measured time lies in the predicted 90% interval
noise floor      the same plan measured twice: the median of |first / second - 1|
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.planning.planner.choosing import micro
from paceline.planning.planner.prediction import Prediction, named
from paceline.text_table import TextTable


@dataclass(frozen=True)
class Check:
    """One plan, predicted and measured, in seconds of an update."""

    plan: str
    compute: str
    level: str
    predicted: float
    low: float
    high: float
    #: The median of its rounds.
    measured: float
    #: The medians of its even and of its odd rounds: the same plan measured twice.
    halves: tuple[float, float]
    bytes_predicted: float = 0.0
    bytes_measured: float = 0.0
    memory_predicted: int = 0
    memory_measured: int = 0

    @property
    def name(self) -> str:
        return named(self.plan, self.compute)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def noise(self) -> float:
        """How much two measurements of it differ."""
        return abs(self.halves[0] / self.halves[1] - 1.0)

    @property
    def bytes(self) -> str:
        """How the bytes that were predicted compare with those that were sent."""
        if not self.bytes_measured:
            return "-"
        same = self.bytes_predicted == self.bytes_measured
        return "exact" if same else f"{self.bytes_predicted / self.bytes_measured:.3f}x"

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Validation:
    """What a check of several plans comes to."""

    job: str
    level: str
    checks: tuple[Check, ...] = field(repr=False)
    error: float
    bias: float
    rank_correlation: float
    regret: float
    coverage: float
    noise: float
    chosen: str
    best: str

    def __str__(self) -> str:
        return "\n".join([str(self.table()), *self.notes()])

    def _repr_html_(self) -> str:
        return self.table().html(self.notes())

    def table(self) -> TextTable:
        """Return predicted against measured, a row per plan, the fastest first."""
        heads = ("plan", "predicted", "measured", "error", "noise", "in 90%", "bytes")
        rows = tuple(
            (
                each.name,
                micro(each.predicted),
                micro(each.measured),
                f"{each.error:+.1%}",
                f"{each.noise:.1%}",
                "yes" if each.covered else "no",
                each.bytes,
            )
            for each in sorted(self.checks, key=lambda check: check.measured)
        )
        return TextTable(f"{self.job} ({self.level})", heads, rows)

    def notes(self) -> list[str]:
        """Return the figures of all plans together."""
        return [
            f"error {self.error:.1%} (bias {self.bias:+.1%}), noise floor {self.noise:.1%}, rank correlation "
            f"{self.rank_correlation:.2f}, coverage {self.coverage:.0%}",
            f"regret {self.regret:.1%}: predicted best {self.chosen}, measured best {self.best}",
        ]

    def as_dict(self) -> dict[str, Any]:
        """The validation as `paceline validate --json` prints it."""
        fields = asdict(self)
        for row, check in zip(fields["checks"], self.checks, strict=True):
            row |= {"error": check.error, "noise": check.noise, "covered": check.covered}
        return fields


def validation(job: str, checks: Sequence[Check], chosen: str | None = None) -> Validation:
    """Sum up checks; `chosen` is the plan that was chosen, the one predicted to be fastest if it is not given."""
    first = min(checks, key=lambda c: c.predicted)
    choice = next((c for c in checks if c.name == chosen), first)
    best = min(checks, key=lambda c: c.measured)
    return Validation(
        job,
        checks[0].level,
        tuple(checks),
        error=statistics.median(abs(c.error) for c in checks),
        bias=statistics.median(c.error for c in checks),
        rank_correlation=kendall([c.predicted for c in checks], [c.measured for c in checks]),
        regret=choice.measured / best.measured - 1.0,
        coverage=sum(c.covered for c in checks) / len(checks),
        noise=statistics.median(c.noise for c in checks),
        chosen=choice.name,
        best=best.name,
    )


def kendall(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's tau: the share of pairs in the same order less that of pairs in the opposite one."""
    pairs = list(itertools.combinations(range(len(first)), 2))
    if not pairs:
        return 1.0
    agree = sum(_sign(first[a] - first[b]) * _sign(second[a] - second[b]) for a, b in pairs)
    return agree / len(pairs)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def check(predicted: Prediction, rounds: Sequence[float], sent: float = 0.0, memory: int = 0) -> Check:
    """Make a check of a prediction and the seconds of an update in each round."""
    even, odd = list(rounds[::2]), list(rounds[1::2]) or list(rounds)
    return Check(
        str(predicted.plan),
        predicted.compute,
        predicted.level,
        predicted.seconds,
        predicted.low,
        predicted.high,
        statistics.median(rounds),
        (statistics.median(even), statistics.median(odd)),
        predicted.bytes,
        sent,
        predicted.memory,
        memory,
    )
