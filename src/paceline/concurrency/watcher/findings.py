"""What `paceline check` says of the lines at which a program hangs, and what the hang says to the checker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.run import check_paths
from paceline.concurrency.watcher.report import Confirmed, Report
from paceline.concurrency.watcher.samples import Frame

FILE = "findings.json"  # of a snapshot
_RANKS = re.compile(r"of (\d+) ranks\b")
#: The watcher is no judge of style: it quotes what the checker says at any confidence, and keeps no cache of it.
_OPTIONS = Options(min_confidence=0.0, cache=False, jobs=1)


def with_findings(report: Report) -> Report:
    """Return a report with the checker's findings about its lines, where their source is at hand."""
    lines = {(frame.file, frame.line) for frame in _frames(report)}
    files = sorted({file for file, _ in lines if file.endswith(".py") and Path(file).is_file()})
    findings = [
        Confirmed(place.path, place.line, place.rule, place.message, place.fingerprint)
        for file in files
        for finding in check_paths([Path(file)], _OPTIONS).findings
        for place in finding.places
        if any((file, line) in lines for line in _lines(place)) and _fits(place.message, report.ranks)
    ]
    return replace(report, findings=tuple(dict.fromkeys(findings)))


def _fits(message: str, ranks: int) -> bool:
    """Whether a finding is about a job of as many ranks as hang: the checker tries several numbers of them."""
    tried = _RANKS.match(message)
    return tried is None or not ranks or int(tried[1]) == ranks


def save_findings(report: Report, folder: Path) -> None:
    """Keep the checker's findings in a snapshot, which is opened where the source may not be at hand."""
    (folder / FILE).write_text(json.dumps([each._asdict() for each in report.findings], indent=1))


def with_saved_findings(report: Report, folder: Path) -> Report:
    """Return a report with the findings that a snapshot keeps."""
    file = folder / FILE
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return replace(report, findings=tuple(Confirmed(**each) for each in rows))


def add_verdicts(report: Report, feedback: Path) -> int:
    """Append to a file of verdicts that the findings of a report are true; return how many were not there yet."""
    verdicts = feedback.read_text(encoding="utf-8") if feedback.is_file() else ""
    hung = datetime.fromtimestamp(report.span.since).strftime("%Y-%m-%d %H:%M:%S")
    new = [each for each in report.findings if f"{each.fingerprint} true" not in verdicts]
    with feedback.open("a", encoding="utf-8") as file:
        file.writelines(f"{each.fingerprint} true {each.rule}  # hung at {hung}, line {each.line}\n" for each in new)
    return len(new)


def _frames(report: Report) -> Iterator[Frame]:
    """Iterate over the lines of the cause: what the checker says of a victim's explains nothing."""
    for process in (each for each in report.processes if each.role == "cause"):
        frames = [process.at, *(thread.at for thread in process.threads)]
        yield from (frame for frame in frames if frame is not None)


def _lines(finding: Finding) -> tuple[int, ...]:
    return (finding.line, *(step.line for step in finding.story))
