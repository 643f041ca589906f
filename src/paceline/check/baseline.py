"""A baseline: the findings of today, so that only new ones are said.

A file of fingerprints, which stay the same when lines move.
"""

from __future__ import annotations

import json
from pathlib import Path

from paceline.check.findings import Finding
from paceline.errors import UsageError


def write_baseline(path: Path, findings: list[Finding]) -> None:
    rows = [{"fingerprint": f.fingerprint, "path": f.path, "rule": f.rule, "function": f.function} for f in findings]
    path.write_text(json.dumps({"version": 1, "findings": rows}, indent=1) + "\n")


def read_baseline(path: Path) -> set[str]:
    try:
        return {row["fingerprint"] for row in json.loads(path.read_text())["findings"]}
    except OSError as error:
        raise UsageError(
            f"the baseline {path} cannot be read: {error.strerror}. Write one with --write-baseline"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is no baseline. Write one with --write-baseline") from None
