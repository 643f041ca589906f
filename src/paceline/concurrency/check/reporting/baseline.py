"""A baseline: a file of known findings, so that only new ones are reported.

Findings are known by their fingerprints, which stay the same when lines move.
"""

from __future__ import annotations

import json
from pathlib import Path

from paceline.concurrency.check.reporting.findings import Finding
from paceline.errors import UsageError


def write_baseline(path: Path, findings: list[Finding]) -> None:
    """Make these findings the known ones."""
    places = [place for finding in findings for place in finding.places]
    rows = [{"fingerprint": f.fingerprint, "path": f.path, "rule": f.rule, "function": f.function} for f in places]
    path.write_text(json.dumps({"version": 1, "findings": rows}, indent=1) + "\n", encoding="utf-8")


def read_baseline(path: Path) -> set[str]:
    """The fingerprints of the known findings."""
    try:
        return {row["fingerprint"] for row in json.loads(path.read_text(encoding="utf-8"))["findings"]}
    except OSError as error:
        raise UsageError(
            f"the baseline {path} cannot be read: {error.strerror}. Write one with --write-baseline"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a baseline file. Write one with --write-baseline") from None
