"""What a rule is: its code and name, the function that finds it, and an example with its remedy.

The docstring of a rule's file explains what goes wrong and why; it becomes the documentation of the rule.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from paceline.concurrency.check.libraries.catalogue import QUEUES
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.names import dotted
from paceline.narrative import Wait


class Rule(NamedTuple):
    """One rule of the checker."""

    code: str
    name: str
    summary: str  # one line, for tables
    find: Callable[[Facts], Iterator[Finding]]
    bad: str
    good: str
    needs: tuple[str, ...] = ()  # a file without any of these words is skipped


def resource_of(call: ast.Call, methods: tuple[str, ...], fn: Function, facts: Facts) -> Resource | None:
    """The lock, event, thread or other resource of which a call is one of these methods."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr in methods
    return facts.module.resource(call.func.value, fn) if named else None  # type: ignore[attr-defined]


def queue_of(call: ast.Call, methods: tuple[str, ...], fn: Function, facts: Facts, bounded: bool = False) -> str:
    """The queue of which a call is such a method; empty where it is none, or one of several."""
    queue = resource_of(call, methods, fn, facts)
    if queue is None or queue.kind not in {*QUEUES, "SimpleQueue"} or queue.one_of_several:
        return ""
    return queue.id if queue.bounded or not bounded else ""


def blocks_that_make(kind: str, fn: Function, facts: Facts) -> Iterator[tuple[ast.With | ast.AsyncWith, str]]:
    """The `with` blocks of a function that make a pool or an executor, each with the name that they give it."""
    for block in fn.withs:
        for item in block.items:
            construction = facts.module.constructed(item.context_expr, fn)
            name = dotted(item.optional_vars) if item.optional_vars is not None else ""
            if name and construction is not None and construction[0] == kind:
                yield block, name


def finding(
    at: ast.AST,
    fn: Function,
    message: str,
    story: list[Step],
    *,
    remedy: str,
    about: str,
    confidence: float = 0.8,
    waits: list[Wait] | None = None,
) -> Finding:
    """A finding at an expression of a function; the engine adds the rule and the path."""
    at = at.context_expr if isinstance(at, ast.withitem) else at
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
