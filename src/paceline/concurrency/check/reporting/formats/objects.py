"""All findings as one JSON object."""

from __future__ import annotations

import json
from typing import Any

from paceline.concurrency.check.run import Report


def as_object(report: Report) -> dict[str, Any]:
    """The report with the counts of files and lines."""
    return {
        "findings": [finding.as_dict() for finding in report.findings],
        "files": report.files,
        "lines": report.lines,
        "known": report.known,
        "skipped": [skipped._asdict() for skipped in report.skipped],
        "failed": [failed._asdict() for failed in report.failed],
        "over_budget": [over._asdict() for over in [*report.unwalked, *report.cut]],
    }


def as_json(report: Report) -> str:
    """The report as text."""
    return json.dumps(as_object(report), indent=1)
