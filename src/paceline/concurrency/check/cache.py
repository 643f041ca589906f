"""A cache by content: the findings of a text are reused when the same text is checked again.

There is one file per text under `.paceline_cache`, named by the hash of the text and of the checker's own source, so a
change of either is never missed. Files are replaced and not followed: a project that is checked may hold a link there.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from paceline import user_cache
from paceline.concurrency.check.across.interface import read_interface
from paceline.concurrency.check.engine import Examined
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.narrative import Wait

FOLDER = ".paceline_cache"
_KEPT = (
    *("rule", "line", "column", "function", "message", "remedy"),
    *("confidence", "about", "ordinal", "verdict", "subject", "signs"),
)


class Cache:
    """Findings and interfaces by the content of the file that they belong to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        #: False once a write has failed, so that a read-only folder is tried only once.
        self.writes = True

    def get(self, text: str) -> Examined | None:
        """What was found in this text; None when that is not known."""
        try:
            rows, interface, cut = json.loads(user_cache.read(self.folder / _name(text)))
            return Examined([_finding(row) for row in rows], read_interface(interface), tuple(cut))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, text: str, examined: Examined) -> None:
        """Store what was found in this text, if the folder is writable."""
        if not self.writes:
            return
        findings, interface, cut = examined
        try:
            if not self.folder.is_dir():
                user_cache.write(self.folder / ".gitignore", b"*\n")
            user_cache.write(
                self.folder / _name(text), json.dumps([[_row(f) for f in findings], interface, cut]).encode()
            )
        except OSError:
            self.writes = False


def _name(text: str) -> str:
    return hashlib.sha256(_checker_source() + text.encode("utf-8", "surrogatepass")).hexdigest()[:32] + ".json"


@cache
def _checker_source() -> bytes:
    """The hash of the checker's own source, since another version may find something else."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.*")):
        if file.suffix in (".py", ".toml", ".json"):
            digest.update(file.read_bytes())
    return digest.digest()


def _row(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in _KEPT} | {"story": finding.story, "waits": finding.waits}


def _finding(row: dict[str, Any]) -> Finding:
    story, waits = [Step(*s) for s in row.pop("story")], [Wait(*w) for w in row.pop("waits")]
    return Finding(**row, story=story, waits=waits)
