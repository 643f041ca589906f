"""A small ranker: how likely a finding is true, from features of the finding alone (no file names, no history).

It is a logistic regression in plain Python with a ridge penalty, fitted to the user's own verdicts once there are
enough (see `feedback`). Weights learned from other projects are not shipped: they did not beat the plain order there
(benchmarks/checker).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.check.findings import Finding

FAMILIES = ("PC1", "PC2", "PC3", "PC4", "PC5")
RIDGE, ROUNDS, RATE = 1.0, 300, 0.5


def features(found: Finding) -> list[float]:
    """The inputs of the ranker, each of the order of one."""
    lines = [found.line, *(step.line for step in found.story)]
    return [
        found.confidence,
        len(found.story) / 4,
        sum(" calls " in step.what for step in found.story),
        math.log1p(max(lines) - min(lines)) / 4,
        float(bool(found.waits)),
        float(found.function.rpartition(".")[2].startswith("_")),
        float(found.function == "<module>"),
        float("exception" in found.message),
        *(float(found.rule.startswith(family)) for family in FAMILIES),
    ]


def fit(rows: Sequence[Sequence[float]], truths: Sequence[bool]) -> list[float]:
    """Fit weights by gradient descent, with the bias as the last one; both classes have the same total weight."""
    share = {True: 0.5 / max(1, sum(truths)), False: 0.5 / max(1, len(truths) - sum(truths))}
    weights = [0.0] * (len(rows[0]) + 1)
    for _ in range(ROUNDS):
        slope = [RIDGE * w / len(rows) for w in weights[:-1]] + [0.0]
        for row, true in zip(rows, truths, strict=True):
            miss = (score(weights, row) - true) * share[true]
            for place, value in enumerate(row):
                slope[place] += miss * value
            slope[-1] += miss
        weights = [w - RATE * s for w, s in zip(weights, slope, strict=True)]
    return weights


def score(weights: Sequence[float], row: Sequence[float]) -> float:
    """The probability that a finding with these features is true."""
    total = weights[-1] + sum(w * value for w, value in zip(weights, row, strict=False))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))
