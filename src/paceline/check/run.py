"""Checks files and folders, with cache, baseline, feedback and minimum confidence."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline.check.baseline import read_baseline
from paceline.check.cache import Cache
from paceline.check.engine import UNREADABLE, check_text
from paceline.check.feedback import rank, read_verdicts
from paceline.check.findings import Finding
from paceline.check.options import EXCLUDED_FOLDERS, Options
from paceline.check.source import Unreadable, read
from paceline.errors import UsageError


@dataclass
class Report:
    """The findings of a run of the checker, and what it has read."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    known: int = 0  # findings left out because the baseline has them

    def summary(self) -> str:
        """One line for people."""
        found = f"{len(self.findings)} found" if self.findings else "nothing found"
        known = f", {self.known} known from the baseline" if self.known else ""
        return f"{found} in {self.files} files, {self.lines:,} lines{known}"


def check_paths(paths: Iterable[Path], options: Options) -> Report:
    """Check every Python file under these paths."""
    report = Report()
    cache = Cache(Path.cwd()) if options.cache else None
    known = read_baseline(Path(options.baseline)) if options.baseline else set()
    found: list[Finding] = []
    for file in files_under(paths, options.exclude):
        report.files += 1
        found += [finding for finding in _check(file, cache, report) if options.includes(finding.rule)]
    if options.feedback:
        found = rank(found, read_verdicts(Path(options.feedback)))
    found = [finding for finding in found if finding.confidence >= options.min_confidence]
    report.findings = [finding for finding in found if finding.fingerprint not in known]
    report.known = len(found) - len(report.findings)
    return report


def _check(file: Path, cache: Cache | None, report: Report) -> list[Finding]:
    """The findings of one file, from the cache where possible."""
    path = _display_path(file)
    try:
        text = read(file)
    except Unreadable as error:
        return [Finding(UNREADABLE, 1, 1, "<module>", str(error), path=path)]
    report.lines += text.count("\n") + 1
    found = cache.get(text) if cache is not None else None
    if found is None:
        found = check_text(path, text)
        if cache is not None:
            cache.put(text, found)
    for finding in found:
        finding.path = path
    return found


def _display_path(file: Path) -> str:
    """The path relative to the current folder where possible, so that fingerprints are the same on every machine."""
    try:
        return file.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return file.as_posix()


def files_under(paths: Iterable[Path], exclude: tuple[str, ...] = ()) -> Iterator[Path]:
    """Every Python file, each once, in a fixed order; a file that is given by name needs no .py ending."""
    seen: set[str] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist. Give files or folders to check, such as `paceline check src`")
        for file in [path] if path.is_file() else _walk(path, exclude):
            if (key := os.path.realpath(file)) not in seen:
                seen.add(key)
                yield file


def _walk(folder: Path, exclude: tuple[str, ...]) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in EXCLUDED_FOLDERS and not _excluded(Path(at, f), exclude))
        for name in sorted(files):
            if name.endswith(".py") and not _excluded(Path(at, name), exclude):
                yield Path(at, name)


def _excluded(path: Path, exclude: tuple[str, ...]) -> bool:
    text = path.as_posix()
    return any(
        fnmatch.fnmatch(text, p) or fnmatch.fnmatch(path.name, p) or f"/{text}".endswith(f"/{p}") for p in exclude
    )
