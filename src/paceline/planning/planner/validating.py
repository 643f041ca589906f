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
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline import user_cache
from paceline.planning.planner.card import Card
from paceline.planning.planner.choosing import micro
from paceline.planning.planner.prediction import Prediction, named
from paceline.text_table import Tabled, TextTable


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
class Validation(Tabled):
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


# --- The table of validations: what was predicted and measured before, and how it widens or narrows intervals ---------
# One JSON object per line, so that tables of several machines can be put together with `cat`.

ENOUGH = 20  # checks from which on intervals follow them
LIMITS = 0.5, 5.0  # of the factor of an interval


@dataclass(frozen=True)
class Entry:
    """One check, as the table keeps it."""

    processor: str
    cores: int
    torch: str
    date: str
    job: str
    plan: str
    compute: str
    level: str
    predicted: float
    #: Half the predicted 90% interval, as a logarithm, before the table widened it.
    error: float
    measured: float


def default_file() -> Path:
    """Return where the table of this machine is kept, beside its card."""
    return user_cache.folder() / "validations.jsonl"


def entries_of(validation: Validation, card: Card, date: str, widened: float) -> list[Entry]:
    """Return the lines that a validation adds; `widened` is the factor that its intervals had."""
    return [
        Entry(
            card.processor,
            card.cores,
            card.torch,
            date,
            validation.job,
            each.plan,
            each.compute,
            each.level,
            each.predicted,
            math.log(each.high / each.predicted) / widened,
            each.measured,
        )
        for each in validation.checks
    ]


def append(entries: Iterable[Entry], file: Path | None) -> None:
    """Add lines to the table; None stands for this machine's, which is not written where other users could."""
    lines = "".join(json.dumps(asdict(each)) + "\n" for each in entries)
    if file is None:
        user_cache.append(default_file(), lines.encode())
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as opened:
        opened.write(lines)


def read(file: Path | None) -> list[Entry]:
    """Read the table, None stands for this machine's; lines of another version are left out."""
    try:
        content = user_cache.read(default_file()) if file is None else file.read_bytes()
    except OSError:
        return []
    lines = content.decode(errors="replace").splitlines()
    entries = []
    for line in lines:
        try:
            entries.append(Entry(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return entries


def factor(entries: Sequence[Entry], card: Card, level: str) -> float:
    """Return by how much intervals are to be multiplied, so that 90% of the checks on this machine lie in them."""
    mine = [e for e in entries if (e.processor, e.cores, e.level) == (card.processor, card.cores, level)]
    if len(mine) < ENOUGH:
        return 1.0
    ratios = [abs(math.log(e.measured / e.predicted)) / max(e.error, 1e-3) for e in mine[-500:]]
    return float(min(LIMITS[1], max(LIMITS[0], np.quantile(ratios, 0.9))))


def widened(prediction: Prediction, by: float) -> Prediction:
    """Return the prediction with an interval so many times as wide."""
    return replace(prediction, error=prediction.error * by)
