"""Verdicts on findings, true or false, and how they change the confidence of the next run's findings.

A verdict is a line: a fingerprint, `true` or `false`, and the rule, which is needed once the finding no longer exists;
what follows `#` is a comment. Comments in the source give verdicts too (see `comments`). The shipped model of what is
worth a look is refitted to the verdicts (see `ranker`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.check.ranking.ranker import Weights, features, fit, probability, shipped
from paceline.concurrency.check.reporting.findings import Finding
from paceline.errors import UsageError

CERTAIN = "PC0"  # what could not be read, and comments that suppress nothing


class Verdict(NamedTuple):
    """One line of the file of verdicts."""

    fingerprint: str
    true: bool
    rule: str


def read_verdicts(path: Path) -> list[Verdict]:
    """Read a file of verdicts, with the line number of any mistake."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
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


def marked(findings: Sequence[Finding]) -> list[Verdict]:
    """The verdicts that comments in the source give."""
    return [Verdict(f.fingerprint, f.verdict, f.rule) for f in findings if f.verdict is not None]


def weigh(findings: Sequence[Finding], verdicts: Sequence[Verdict] = ()) -> None:
    """Set for every finding how likely it is worth a look, its confidence, and how likely it is a bug."""
    rows = [features(finding) for finding in findings]
    worth, bugs = (refitted(findings, verdicts, prior) if verdicts else prior for prior in (shipped(), shipped("bug")))
    for finding, row in zip(findings, rows, strict=True):
        if not finding.rule.startswith(CERTAIN):
            finding.confidence, finding.bug = probability(worth, row), probability(bugs, row)


def refitted(findings: Sequence[Finding], verdicts: Sequence[Verdict], prior: Weights) -> Weights:
    """The shipped weights, moved by verdicts; of a finding that no longer exists only the rule is known."""
    existing = {finding.fingerprint: finding for finding in findings}
    rows = [
        features(existing[verdict.fingerprint])
        if verdict.fingerprint in existing
        else {"always": 1.0, f"rule {verdict.rule}": 1.0, f"family {verdict.rule[:3]}": 1.0}
        for verdict in verdicts
    ]
    return fit(rows, [verdict.true for verdict in verdicts], prior)
