"""Waits for a thread that first needs a lock which the waiting thread holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, short_name
from paceline.concurrency.check.threads.shared_state import accesses_of_class

Steps = tuple[tuple[Function, ast.expr], ...]
STARTS = ("create_task", "ensure_future", "start_soon")
#: Functions that wait for the coroutines and tasks that they are given.
GATHERS = ("gather", "wait", "shield")


def wait_under_lock(facts: Facts) -> Iterator[Witness]:
    """Report `while self.queue: sleep(1)` under the lock that others need to change what the loop asks for."""
    for fn in facts.module.functions:
        yield from _polls(fn, facts)


def _polls(fn: Function, facts: Facts) -> Iterator[Witness]:
    for loop in fn.loops:
        sleeps = isinstance(loop, ast.While) and [
            c for c in fn.calls if short_name(c.func) == "sleep" and enclosing(c, ast.While, ast.For) is loop
        ]
        locks = facts.held_at(loop.body[0], fn) if sleeps and isinstance(loop, ast.While) else frozenset()
        if not locks or not isinstance(loop, ast.While) or fn.cls is None or not sleeps:
            continue
        # A loop that releases the lock meanwhile lets the others change what it asks for.
        if any(m.kind == "free" and m.line >= loop.lineno for m in facts.walker.effects(fn)):
            continue
        attributes = {
            n.attr for n in ast.walk(loop.test) if isinstance(n, ast.Attribute) and dotted(n.value) == fn.self_name
        }
        for name in sorted(attributes):
            changes = [a for a in accesses_of_class(fn.cls, facts).get(name, ()) if a.changes and a.fn is not fn]
            other = next((a for a in changes if a.locks & locks), None)
            if other is not None:
                yield Witness(sleeps[0], fn, "poll", other=other, lock=min(other.locks & locks), loop=loop)
                return
