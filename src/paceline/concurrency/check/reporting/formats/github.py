"""Annotations for a GitHub workflow: one line per finding on standard output."""

from __future__ import annotations

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.run import Report


def github(report: Report) -> str:
    """The findings as workflow commands."""
    return "\n".join(_line(finding) for finding in report.findings)


def _line(finding: Finding) -> str:
    level = "warning" if finding.rank == "low" else "error"
    place = f"file={_property(finding.path)},line={finding.line},col={finding.column},title={finding.rule}"
    return f"::{level} {place}::{_data(finding.message + chr(10) + finding.explanation())}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
