"""Marks of true and false findings, and what follows for the next run.

A verdict is a line: a fingerprint, `true` or `false`, and the rule, which is needed once the finding itself is gone; what
follows `#` is a remark.

    at once          a count per rule: its confidence counts as if it had been seen WEIGHT times, so that a few verdicts
                     move it and many decide (the mean of a beta distribution)
    with ENOUGH      verdicts of findings that are still there, FEWEST of either kind, a ranker is fit to them; it takes
                     the counts' place where it tells verdicts it has not seen better than they do
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.check.findings import Finding
from paceline.check.ranker import features, fit, score
from paceline.errors import UsageError

WEIGHT = 4.0
ENOUGH, FEWEST, FOLDS = 30, 8, 5


class Verdict(NamedTuple):
    fingerprint: str
    true: bool
    rule: str


class Label(NamedTuple):
    """A finding that is there, and its verdict."""

    finding: Finding
    true: bool


Judge = Callable[[Finding], float]  # how likely it is true


def read_verdicts(path: Path) -> list[Verdict]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"the verdicts {path} cannot be read: {error.strerror}") from None
    verdicts: list[Verdict] = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or words[1] not in ("true", "false"):
            raise UsageError(
                f"{path}:{number} is {line!r}. A verdict is a fingerprint, `true` or `false`, and the rule"
            )
        verdicts.append(Verdict(words[0], words[1] == "true", words[2] if len(words) == 3 else ""))
    return verdicts


def rank(findings: list[Finding], verdicts: list[Verdict]) -> list[Finding]:
    """The findings with the confidence that follows from the verdicts, the likeliest first."""
    there = {finding.fingerprint: finding for finding in findings}
    gone = [verdict for verdict in verdicts if verdict.fingerprint not in there]
    labels = [Label(there[verdict.fingerprint], verdict.true) for verdict in verdicts if verdict.fingerprint in there]
    true = sum(label.true for label in labels)
    enough = len(labels) >= ENOUGH and FEWEST <= true <= len(labels) - FEWEST
    refit = enough and log_loss(labels, by_ranker) < log_loss(labels, lambda known: by_rule(known, gone))
    judge = by_ranker(labels) if refit else by_rule(labels, gone)
    for finding, confidence in [(finding, judge(finding)) for finding in findings]:
        finding.confidence = confidence
    return sorted(findings, key=lambda finding: -finding.confidence)


def by_rule(labels: Sequence[Label], gone: Sequence[Verdict] = ()) -> Judge:
    true: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for rule, truth in [*((label.finding.rule, label.true) for label in labels), *((m.rule, m.true) for m in gone)]:
        seen[rule] += 1
        true[rule] += truth
    return lambda finding: (finding.confidence * WEIGHT + true[finding.rule]) / (WEIGHT + seen[finding.rule])


def by_ranker(labels: Sequence[Label]) -> Judge:
    weights = fit([features(label.finding) for label in labels], [label.true for label in labels])
    return lambda finding: score(weights, features(finding))


def log_loss(labels: Sequence[Label], make: Callable[[Sequence[Label]], Judge]) -> float:
    """How badly verdicts are foretold from the others, in folds: the mean of -log of what was thought of the truth."""
    total = 0.0
    for fold in range(FOLDS):
        judge = make([label for number, label in enumerate(labels) if number % FOLDS != fold])
        for label in labels[fold::FOLDS]:
            thought = judge(label.finding)
            total -= math.log(max(1e-6, thought if label.true else 1 - thought))
    return total / len(labels)
