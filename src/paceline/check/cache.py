"""A cache by content: what was found in a text is found in it again.

A file per text under `.paceline_cache`, named by the hash of the text and of the checker's own source, so that
neither a change of a file nor of a rule is ever missed.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from paceline.check.findings import Finding, Step
from paceline.narrative import Wait

FOLDER = ".paceline_cache"


class Cache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self.writes = True

    def get(self, text: str) -> list[Finding] | None:
        try:
            return [_from(row) for row in json.loads((self.folder / _name(text)).read_text())]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, text: str, findings: list[Finding]) -> None:
        if not self.writes:
            return
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / ".gitignore").write_text("*\n")
            (self.folder / _name(text)).write_text(json.dumps([_to(f) for f in findings]))
        except OSError:
            self.writes = False  # a read-only folder: go on without


def _name(text: str) -> str:
    return hashlib.sha256(_ourselves() + text.encode("utf-8", "surrogatepass")).hexdigest()[:32] + ".json"


@cache
def _ourselves() -> bytes:
    """The hash of the checker's own source: another version finds other things."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def _to(finding: Finding) -> dict[str, Any]:
    names = ("rule", "line", "column", "function", "message", "remedy", "confidence", "about", "ordinal")
    return {name: getattr(finding, name) for name in names} | {"story": finding.story, "waits": finding.waits}


def _from(row: dict[str, Any]) -> Finding:
    story, waits = [Step(*s) for s in row.pop("story")], [Wait(*w) for w in row.pop("waits")]
    return Finding(**row, story=story, waits=waits)
