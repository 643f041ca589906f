"""Output formats of a report: text for people (full or concise), JSON, SARIF 2.1.0, GitHub annotations, ruff's JSON."""

from __future__ import annotations

from collections.abc import Callable

from paceline.concurrency.check.reporting.formats.github import github
from paceline.concurrency.check.reporting.formats.objects import as_json
from paceline.concurrency.check.reporting.formats.ruff import ruff
from paceline.concurrency.check.reporting.formats.sarif import sarif
from paceline.concurrency.check.reporting.formats.text import concise, text
from paceline.concurrency.check.run import Report

FORMATS: dict[str, Callable[[Report], str]] = {
    "text": text,
    "concise": concise,
    "json": as_json,
    "sarif": sarif,
    "github": github,
    "ruff": ruff,
}
