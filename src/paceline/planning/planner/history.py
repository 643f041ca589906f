"""The table of validations: what was predicted and measured before, and how it widens or narrows intervals.

One JSON object per line, so that tables of several machines can be put together with `cat`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from paceline import user_cache
from paceline.planning.planner.card import Card
from paceline.planning.planner.prediction import Prediction
from paceline.planning.planner.validating import Validation

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
