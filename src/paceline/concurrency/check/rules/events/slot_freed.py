"""A semaphore that limits how tasks are started, rather than how many of them run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.names import short_name

STARTS = ("submit", "apply_async", "start")
WAITS = ("result", "join", "get", "wait", "map", "as_completed", "run")


def find(facts: Facts) -> Iterator[Witness]:
    """Report blocks of a semaphore that start a task and wait for nothing."""
    for fn in facts.module.functions:
        for block in fn.withs:
            slots = facts.module.resource(block.items[0].context_expr, fn) if isinstance(block, ast.With) else None
            if slots is None or slots.kind != "Semaphore" or not slots.sure:
                continue
            calls = [n for s in block.body for n in ast.walk(s) if isinstance(n, ast.Call)]
            start = next((c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in STARTS), None)
            if start is not None and not any(short_name(c.func) in WAITS for c in calls):
                yield Witness(start, fn, slots=slots.id)
