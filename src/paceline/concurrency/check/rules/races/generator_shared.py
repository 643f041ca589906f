"""A generator from which several threads take items."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.shared_state import accesses_of_class, accesses_of_globals
from paceline.concurrency.check.threads.sharing import may_coincide


def find(facts: Facts) -> Iterator[Witness]:
    """Report `next()` of a generator that an attribute or a global holds, in functions that several threads run."""
    if not facts.has_threads:
        return
    for cls in facts.module.classes.values():
        for name, accesses in accesses_of_class(cls, facts).items():
            if any(_is_generator(value, fn, facts) for value, fn in cls.values.get(name, ())):
                yield from _of_one(accesses, facts)
    top = facts.module.top
    for name, accesses in accesses_of_globals(facts).items():
        if _is_generator(top.bound.get(name), top, facts):
            yield from _of_one(accesses, facts)


def _is_generator(value: ast.expr | None, fn: Function, facts: Facts) -> bool:
    """Whether a value is a generator of Python code."""
    if isinstance(value, ast.GeneratorExp):
        return True
    callee = facts.module.callee(value, fn) if isinstance(value, ast.Call) else None
    return (
        callee is not None and callee.generator and not callee.asynchronous and not callee.decorated("contextmanager")
    )


def _of_one(accesses: list[Access], facts: Facts) -> Iterator[Witness]:
    takes = [a for a in accesses if _takes(a.node) and not a.locks]
    for access in takes:
        other = next((o for o in takes if may_coincide(access, o, facts)), None)
        if other is not None:
            yield Witness(access.node, access.fn, "of-one", access=access, other=other)
            return


def _takes(node: ast.AST) -> bool:
    call = parent(node)
    if isinstance(call, ast.Call) and node in call.args:
        return short_name(call.func) == "next"
    return isinstance(call, ast.Attribute) and call.attr in ("send", "__next__")
