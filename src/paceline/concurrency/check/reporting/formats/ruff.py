"""The JSON of `ruff check --output-format json`, for editors and tools that read ruff's diagnostics."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.run import Report


def ruff(report: Report) -> str:
    """The findings as an array, empty where there are none."""
    return json.dumps([_diagnostic(finding) for finding in report.findings], indent=2)


def _diagnostic(finding: Finding) -> dict[str, object]:
    place = {"row": max(finding.line, 1), "column": max(finding.column, 1)}
    return {
        "cell": None,
        "code": finding.rule,
        "end_location": place,
        "filename": str(Path(finding.path).absolute()),
        "fix": None,
        "location": place,
        "message": f"{finding.message}\n{finding.explanation()}",
        "noqa_row": place["row"],
        "url": None,
    }
