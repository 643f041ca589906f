"""A rule: what it looks for, why, an example of it and of its remedy, and the function that finds it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.summaries import Facts
from paceline.narrative import Wait


class Rule(NamedTuple):
    code: str
    name: str
    summary: str  # one line, for tables
    find: Callable[[Facts], Iterator[Finding]]
    bad: str
    good: str
    needs: tuple[str, ...] = ()  # words of which a file must have one, or the rule does not look
    confidence: float = 0.8
    default: bool = True


def finding(
    at: ast.AST,
    fn: Function,
    message: str,
    story: list[Step],
    remedy: str,
    about: str,
    confidence: float = 0.8,
    waits: list[Wait] | None = None,
) -> Finding:
    """A finding at a place of a function; the engine adds the rule and the path."""
    return Finding(
        "",
        getattr(at, "lineno", 1),
        getattr(at, "col_offset", 0) + 1,
        fn.qualname,
        message,
        story,
        waits or [],
        remedy,
        confidence,
        about,
    )
