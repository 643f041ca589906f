"""SARIF 2.1.0: each finding with one code flow per thread or rank, in the order of its story."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.run import Report

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
