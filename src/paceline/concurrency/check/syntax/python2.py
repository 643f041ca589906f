"""Rewrites Python 2 statements as Python 3, line by line, so that old files can be checked too.

Only what the Python 3 parser rejects is rewritten: `except X, e`, `raise X, y`, `print x`, `exec x in y`, `0777`,
`ur""`, `<>` and backquotes, and names called `async`, which became a keyword in Python 3.7. Lines keep their numbers.
"""

from __future__ import annotations

import ast
import re

ATTEMPTS = 60  # lines that are rewritten at most

_CHANGES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"\blambda\s+\([^()]*\)\s*:"), r"lambda _given:"),
    (re.compile(r"^(\s*def\s+\w+\s*\(.*?)\([^()]*\)(?=\s*[,)])"), r"\1_given"),
    (re.compile(r"^(\s*except\s+)(\([^()]*\)|[^,:#]+?)\s*,\s*([\w.]+|\([^()]*\))\s*:"), r"\1\2 as _caught:"),
    # a statement that continues in the next line: what matters is where it leads, and what it calls
    (re.compile(r"^(\s*)raise\s+([\w.]+)\s*,\s*(.*[\\(,%])$"), r"\1return \2, \3"),
    (re.compile(r"^(\s*)print\s+(?:>>\s*)?(?!\()(.*[\\(,%])$"), r"\1_ = \2"),
    (re.compile(r"^(\s*)(.*:\s*)?raise\s+([\w.]+(?:\[\w+\])?)\s*,\s*([^,]+?)(\s*,.*)?$"), r"\1\2raise \3(\4)"),
    (re.compile(r"^(\s*)(.*:\s*)?print\s*>>\s*([^,]+),?\s*(.*?),?\s*$"), r"\1\2print(\4)"),
    (re.compile(r"^(\s*)(.*:\s*)?print\s+(?!\()(.*?),?\s*$"), r"\1\2print(\3)"),
    (re.compile(r"^(\s*)print\s*(\(.*\)\s*%.*)$"), r"\1print(\2)"),
    (re.compile(r"^(\s*)exec\s+(.+?)\s+in\s+(.+?)\s*$"), r"\1exec(\2)"),
    (re.compile(r"^(\s*)exec\s+(?!\()(.+?)\s*$"), r"\1exec(\2)"),
    (re.compile(r"(?<![\w.])0([0-7]+)(?![\w.])"), r"0o\1"),
    (re.compile(r"(?<![\w.])(\d+)[lL]\b"), r"\1"),
    (re.compile(r"\b[uU][rR](?=['\"])"), r"r"),
    (re.compile(r"<>"), r"!="),
    (re.compile(r"`([^`]+)`"), r"repr(\1)"),
]
_CAUGHT = _CHANGES[2]
_NAMED_ASYNC = re.compile(r"\basync\b(?!\s+(?:def|for|with)\b)")


def as_python3(text: str, line: int) -> str:
    """The text with each line that the parser rejects rewritten, as long as that helps."""
    lines = text.replace("\t", "        ").split("\n")
    for number, content in enumerate(lines):
        lines[number] = _NAMED_ASYNC.sub("async_", _CAUGHT[0].sub(_CAUGHT[1], content))
    for _ in range(ATTEMPTS):
        try:
            ast.parse("\n".join(lines))
            break
        except SyntaxError as error:
            number = (error.lineno or line) - 1
        except (ValueError, RecursionError, MemoryError):
            break
        if number >= len(lines) or not _rewrite(lines, number):
            break
    return "\n".join(lines)


def _rewrite(lines: list[str], number: int) -> bool:
    """Apply the first substitution that changes the line; whether there was one."""
    for pattern, better in _CHANGES:
        changed = pattern.sub(better, lines[number])
        if changed != lines[number]:
            lines[number] = changed
            return True
    return False
