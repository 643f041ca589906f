"""Makes one finding of a mistake that a file repeats: the same rule about the same object, at several places.

A lock that is taken without `finally` in twenty methods is one decision to repeat or to repair, not twenty. Every place
keeps its fingerprint, so that a comment, a baseline or a verdict about one of them says nothing of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.values.module import Module


def subject_of(finding: Finding, module: Module) -> str:
    """What a finding is about, by names that mean the same in the whole file; empty where one is known only locally."""
    owner = finding.function.partition(".")[0]
    names = [re.sub(r"^self\b", owner, name) for name in finding.about.split()]
    declared = module.classes.keys() | module.top.nested.keys() | module.top.bound.keys()
    return " ".join(names) if all(re.split(r"\W", name, maxsplit=1)[0] in declared for name in names) else ""


def one_each(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each mistake, at its first place in the file, as likely as the likeliest of its places."""
    mistakes: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        same = (finding.path, finding.rule, finding.subject or finding.fingerprint)
        mistakes.setdefault(same, []).append(finding)
    return [_joined(places) for places in mistakes.values()]


def _joined(places: list[Finding]) -> Finding:
    first, *further = sorted(places, key=lambda place: (place.line, place.column))
    confidence, bug = max(place.confidence for place in places), max(place.bug for place in places)
    return replace(first, confidence=confidence, bug=bug, further=further)
