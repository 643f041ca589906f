"""An object of a library that one thread at a time may use, or only the thread that made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class
from paceline.concurrency.check.syntax.names import keyword
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.shared_state import accesses_of_class, is_teardown
from paceline.concurrency.check.threads.sharing import may_coincide
from paceline.concurrency.check.values.library_types import type_name


def find(facts: Facts) -> Iterator[Witness]:
    """Report such objects in attributes that a thread and another one use."""
    if not facts.has_threads:
        return
    for cls in facts.module.classes.values():
        for name, accesses in accesses_of_class(cls, facts).items():
            if any(facts.threads_of(a.fn) for a in accesses):
                yield from _of_one(name, accesses, cls, facts)


def _of_one(name: str, accesses: list[Access], cls: Class, facts: Facts) -> Iterator[Witness]:
    values = [(v, f) for v, f in cls.values.get(name, ()) if isinstance(v, ast.Call)]
    kinds = {libraries.bound(type_name(value, fn, facts.module)) for value, fn in values}
    used = [a for a in accesses if isinstance(parent(a.node), ast.Attribute) and not is_teardown(a.fn)]
    if kinds == {"maker"}:
        calls = (c for fn in facts.module.functions for c in fn.calls)
        if any(keyword(c, "check_same_thread") is not None for c in calls):
            return
        if any(facts.threads_of(fn) and fn.name != "__init__" for _, fn in values):
            return
        at = next((a for a in used if facts.threads_of(a.fn)), None)
        line = min(value.lineno for value, _ in values)
        if at is not None:
            yield Witness(
                at.node,
                at.fn,
                confidence=0.7,
                edge=at,
                what=f"was opened by another thread (line {line}), and refuses this one",
                line=line,
            )
    elif kinds == {"one"}:
        for at in used:
            other = next(
                (o for o in used if o.fn is not at.fn and not o.locks & at.locks and may_coincide(at, o, facts)), None
            )
            if other is not None and facts.threads_of(at.fn):
                yield Witness(
                    at.node,
                    at.fn,
                    confidence=0.6,
                    edge=at,
                    what=f"is used by {other.fn.qualname} in another thread at the same time",
                    line=other.line,
                )
                return
