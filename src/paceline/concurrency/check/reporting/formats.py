"""Output formats of a report: text for people (full or concise), JSON, SARIF 2.1.0, GitHub annotations, ruff's JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.run import Report

# SARIF 2.1.0: each finding with one code flow per thread or rank, in the order of its story.

PRIORITY = {"high": 90.0, "medium": 50.0, "low": 10.0}  # on SARIF's scale of 0 to 100
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(report: Report) -> str:
    """The report as a SARIF log with one run."""
    rules = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.why.strip()},
            "defaultConfiguration": {"level": "warning"},
        }
        for rule in RULES.values()
    ]
    return log(rules, [_result(f) for f in report.findings], _invocation(report))


def log(rules: list[dict[str, Any]], results: list[dict[str, Any]], invocation: dict[str, Any]) -> str:
    """A SARIF log with one run."""
    driver = {
        "name": "paceline",
        "version": _version(),
        "informationUri": "https://pypi.org/project/paceline/",
        "rules": rules,
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _invocation(report: Report) -> dict[str, Any]:
    """Whether every file was checked, and which were not."""
    notes = [("error", f"the checker failed: {why}", path) for path, why in report.failed]
    notes += [("note", f"not checked: {why}", path) for path, why in report.skipped]
    notes += [("note", f"not checked: {why}", path) for path, why in report.unwalked]
    notes += [("note", f"checked in part: {why}", path) for path, why in report.cut]
    shown = [
        {"level": level, "message": {"text": text}, "locations": [location(path, 1, 1)]} for level, text, path in notes
    ]
    return {"executionSuccessful": not report.failed, "toolExecutionNotifications": shown}


def _version() -> str:
    try:
        return metadata.version("paceline")
    except metadata.PackageNotFoundError:
        return "0"


def _result(finding: Finding) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": "warning" if finding.rank == "low" else "error",
        "message": {"text": f"{finding.message}\n{finding.explanation()}"},
        "locations": [location(finding.path, finding.line, finding.column)],
        "partialFingerprints": {"paceline/v1": finding.fingerprint},
        "rank": PRIORITY[finding.rank],
        "properties": {"function": finding.function, "rank": finding.rank},
    }
    if finding.proof is not None:
        result["properties"]["explored"] = finding.proof._asdict()
        result["rank"] = 100.0 if finding.proof.verdict == "confirmed" else result["rank"]
    if finding.further:
        places = enumerate(finding.further, start=1)
        result["relatedLocations"] = [location(f.path, f.line, f.column, f.message) | {"id": n} for n, f in places]
    if finding.story:
        steps = [(step.who, finding.path, step.line, step.what) for step in finding.story]
        result["codeFlows"] = [{"message": {"text": finding.remedy}, "threadFlows": flows(steps)}]
    return result


def flows(steps: Iterable[tuple[str, str, int, str]]) -> list[dict[str, Any]]:
    """One flow for each thread or rank: who does what, at which line of which file."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for order, (who, path, line, what) in enumerate(steps, start=1):
        place = location(path, line, 1, f"{who}: {what}")
        by_name.setdefault(who, []).append({"executionOrder": order, "location": place})
    return [{"id": who, "message": {"text": who}, "locations": places} for who, places in by_name.items()]


def location(path: str, line: int, column: int, text: str = "") -> dict[str, Any]:
    """A place in a file."""
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": path.replace(" ", "%20")},
            "region": {"startLine": max(line, 1), "startColumn": max(column, 1)},
        }
    }
    if text:
        location["message"] = {"text": text}
    return location


# The JSON of `ruff check --output-format json`, for editors and tools that read ruff's diagnostics.


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


# Annotations for a GitHub workflow: one line per finding on standard output.


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


# All findings as one JSON object.


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


# Text for people: one line per finding in the format of ruff, alone or followed by its story and its fingerprint.


def text(report: Report) -> str:
    """The findings, separated by blank lines."""
    blocks = []
    for finding in report.findings:
        mark = f"(rank {finding.rank}, fingerprint {finding.fingerprint})"
        blocks.append(f"{_head(finding)}\n{textwrap.indent(finding.explanation(), '  ')}\n    {mark}")
    return "\n\n".join(blocks)


def concise(report: Report) -> str:
    """One line for each finding, as editors and scripts read it."""
    return "\n".join("; ".join(filter(None, (_head(f), f.elsewhere))) for f in report.findings)


def _head(finding: Finding) -> str:
    return f"{finding.path}:{finding.line}:{finding.column}: {finding.rule} {finding.message}"


FORMATS: dict[str, Callable[[Report], str]] = {
    "text": text,
    "concise": concise,
    "json": as_json,
    "sarif": sarif,
    "github": github,
    "ruff": ruff,
}
