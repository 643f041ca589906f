"""Places and names of a merged tree, and those of its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from paceline.concurrency.check.reporting.findings import Finding, Step

T = TypeVar("T")
STRIDE = 1_000_000  # more lines than a file has
_MARK = re.compile(r"ˑ\d+ˑ")
_LINE = re.compile(r"\b(at |from )?(line )?(?<!\d)([1-9]\d{6,7})(?!\d)")


def marked(name: str, number: int) -> str:
    """A name of the file of this number that an earlier file has too. A leading underscore stays in front."""
    bare = name.lstrip("_")
    return f"{name[: len(name) - len(bare)]}ˑ{number}ˑ{bare}"


def file_number(line: int) -> int:
    """The number of the file that a line of a tree is of; 0 where the tree is one file."""
    return line // STRIDE


def same_file(line: int, other: int) -> bool:
    """Whether two lines of a tree are of one file."""
    return file_number(line) == file_number(other)


def of_own_file(candidates: Iterable[T], line: int, line_of: Callable[[T], int]) -> list[T]:
    """The candidates of the file of a line; all of them where it has none.

    What a file says by itself it says in a larger program, too: another file with the same name makes it no less clear.
    """
    everywhere = list(candidates)
    return [each for each in everywhere if same_file(line_of(each), line)] or everywhere


def place(line: int, paths: Sequence[str]) -> tuple[str, int]:
    """The file and the line of it that a line of the merged tree is."""
    number, line = divmod(line, STRIDE)
    return paths[max(1, number) - 1], max(1, line)


def divided(findings: Iterable[Finding], paths: Sequence[str]) -> dict[str, list[Finding]]:
    """The findings of a merged tree by file, as about that file."""
    by_path: dict[str, list[Finding]] = {path: [] for path in paths}
    for finding in findings:
        path, finding.line = place(finding.line, paths)
        for name in ("function", "message", "remedy", "about", "subject"):
            setattr(finding, name, _plain(getattr(finding, name), paths, path))
        finding.story = [_step(step, paths, path) for step in finding.story]
        finding.waits = [type(w)(*(_plain(part, paths, path) for part in w)) for w in finding.waits]
        by_path[path].append(finding)
    return by_path


def _step(step: Step, paths: Sequence[str], home: str) -> Step:
    path, line = place(step.line, paths)
    what = _plain(step.what, paths, path)
    return Step(step.who, line, what if path == home else f"{what} ({path})")


def _plain(text: str, paths: Sequence[str], home: str) -> str:
    """A text without marks, and with the file of every line that is of another one."""

    def told(match: re.Match[str]) -> str:
        path, line = place(int(match[3]), paths)
        before = match[1] or ""
        return f"{before}{match[2] or ''}{line}" if path == home else f"{before}{path}:{line}"

    return _LINE.sub(told, _MARK.sub("", text))
