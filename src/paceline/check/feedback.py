"""Verdicts on findings, true or false, and how they change the confidence of the next run's findings.

A verdict is a line: a fingerprint, `true` or `false`, and the rule, which is needed once the finding no longer exists;
what follows `#` is a comment.

    from the first one   a count per rule: its own confidence counts as if it had been seen WEIGHT times, so a few
                         verdicts move it and many decide (the mean of a beta distribution)
    with ENOUGH          verdicts on existing findings, at least FEWEST of either kind, a ranker is fitted to them; it
                         replaces the counts where it predicts held-out verdicts better than they do
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
    """One line of the file of verdicts."""

    fingerprint: str
    true: bool
    rule: str


class Label(NamedTuple):
    """An existing finding and its verdict."""

    finding: Finding
    true: bool


Judge = Callable[[Finding], float]  # the probability that a finding is true


def read_verdicts(path: Path) -> list[Verdict]:
    """Read a file of verdicts, with the line number of any mistake."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"the verdicts in {path} cannot be read: {error.strerror}") from None
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
    """The findings with the confidence that follows from the verdicts, the most likely ones first."""
    existing = {finding.fingerprint: finding for finding in findings}
    gone = [v for v in verdicts if v.fingerprint not in existing]
    labels = [
        Label(existing[verdict.fingerprint], verdict.true) for verdict in verdicts if verdict.fingerprint in existing
    ]
    true = sum(label.true for label in labels)
    enough = len(labels) >= ENOUGH and FEWEST <= true <= len(labels) - FEWEST
    refit = enough and log_loss(labels, by_ranker) < log_loss(labels, lambda known: by_rule(known, gone))
    judge = by_ranker(labels) if refit else by_rule(labels, gone)
    for finding, confidence in [(finding, judge(finding)) for finding in findings]:
        finding.confidence = confidence
    return sorted(findings, key=lambda finding: -finding.confidence)


def by_rule(labels: Sequence[Label], gone: Sequence[Verdict] = ()) -> Judge:
    """Judge a finding by its rule's count of true and false verdicts."""
    true: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for rule, truth in [*((label.finding.rule, label.true) for label in labels), *((m.rule, m.true) for m in gone)]:
        seen[rule] += 1
        true[rule] += truth
    return lambda finding: (finding.confidence * WEIGHT + true[finding.rule]) / (WEIGHT + seen[finding.rule])


def by_ranker(labels: Sequence[Label]) -> Judge:
    """Judge a finding by a ranker fitted to these verdicts."""
    weights = fit([features(label.finding) for label in labels], [label.true for label in labels])
    return lambda finding: score(weights, features(finding))


def log_loss(labels: Sequence[Label], make: Callable[[Sequence[Label]], Judge]) -> float:
    """The mean log loss of predicting each fold's verdicts from those of the other folds."""
    total = 0.0
    for fold in range(FOLDS):
        judge = make([label for number, label in enumerate(labels) if number % FOLDS != fold])
        for label in labels[fold::FOLDS]:
            probability = judge(label.finding)
            total -= math.log(max(1e-6, probability if label.true else 1 - probability))
    return total / len(labels)
