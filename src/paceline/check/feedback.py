"""Marks of true and false findings, and what follows for the next run.

A mark is a line: a fingerprint, `true` or `false`, and the rule, which is needed once the finding itself is gone; what
follows `#` is a remark. A rule's confidence counts as if
it had been seen `WEIGHT` times, so that a few marks move it and many decide (the mean of a beta distribution).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from paceline.check.findings import Finding
from paceline.errors import UsageError

WEIGHT = 4.0


class Mark(NamedTuple):
    fingerprint: str
    true: bool
    rule: str


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
    true: Counter[str] = Counter()
    false: Counter[str] = Counter()
    rules = {finding.fingerprint: finding.rule for finding in findings}
    for mark in marks:
        (true if mark.true else false)[mark.rule or rules.get(mark.fingerprint, "")] += 1
    for finding in findings:
        seen = true[finding.rule] + false[finding.rule]
        finding.confidence = (finding.confidence * WEIGHT + true[finding.rule]) / (WEIGHT + seen)
    return sorted(findings, key=lambda finding: -finding.confidence)
