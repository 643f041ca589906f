"""Marks of true and false findings, and what follows for the next run.

A mark is a line: a fingerprint, `true` or `false`, and the rule, which is needed once the finding itself is gone; what
follows `#` is a remark.

    at once          a count per rule: its confidence counts as if it had been seen WEIGHT times, so that a few marks
                     move it and many decide (the mean of a beta distribution)
    with ENOUGH      marks of findings that are still there, FEWEST of either kind, a ranker is fitted to them; it takes
                     the counts' place where it tells marks it has not seen better than they do
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.check.findings import Finding
from paceline.check.ranker import features, fitted, score
from paceline.errors import UsageError

WEIGHT = 4.0
ENOUGH, FEWEST, FOLDS = 30, 8, 5


class Mark(NamedTuple):
    fingerprint: str
    true: bool
    rule: str


class Label(NamedTuple):
    """A finding that is there, and its mark."""

    finding: Finding
    true: bool


Judge = Callable[[Finding], float]  # how likely it is true


def read_marks(path: Path) -> list[Mark]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"the marks {path} cannot be read: {error.strerror}") from None
    marks: list[Mark] = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or words[1] not in ("true", "false"):
            raise UsageError(f"{path}:{number} is {line!r}. A mark is a fingerprint, `true` or `false`, and the rule")
        marks.append(Mark(words[0], words[1] == "true", words[2] if len(words) == 3 else ""))
    return marks


def ranked(findings: list[Finding], marks: list[Mark]) -> list[Finding]:
    """The findings with the confidence that follows from the marks, the likeliest first."""
    there = {finding.fingerprint: finding for finding in findings}
    gone = [mark for mark in marks if mark.fingerprint not in there]
    labels = [Label(there[mark.fingerprint], mark.true) for mark in marks if mark.fingerprint in there]
    true = sum(label.true for label in labels)
    enough = len(labels) >= ENOUGH and FEWEST <= true <= len(labels) - FEWEST
    refit = enough and surprise(labels, by_ranker) < surprise(labels, lambda known: by_rule(known, gone))
    judge = by_ranker(labels) if refit else by_rule(labels, gone)
    for finding, confidence in [(finding, judge(finding)) for finding in findings]:
        finding.confidence = confidence
    return sorted(findings, key=lambda finding: -finding.confidence)


def by_rule(labels: Sequence[Label], gone: Sequence[Mark] = ()) -> Judge:
    true: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for rule, truth in [*((label.finding.rule, label.true) for label in labels), *((m.rule, m.true) for m in gone)]:
        seen[rule] += 1
        true[rule] += truth
    return lambda finding: (finding.confidence * WEIGHT + true[finding.rule]) / (WEIGHT + seen[finding.rule])


def by_ranker(labels: Sequence[Label]) -> Judge:
    weights = fitted([features(label.finding) for label in labels], [label.true for label in labels])
    return lambda finding: score(weights, features(finding))


def surprise(labels: Sequence[Label], make: Callable[[Sequence[Label]], Judge]) -> float:
    """How badly marks are foretold from the others, in folds: the mean of -log of what was thought of the truth."""
    total = 0.0
    for fold in range(FOLDS):
        judge = make([label for number, label in enumerate(labels) if number % FOLDS != fold])
        for label in labels[fold::FOLDS]:
            thought = judge(label.finding)
            total -= math.log(max(1e-6, thought if label.true else 1 - thought))
    return total / len(labels)
