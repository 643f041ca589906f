"""A generator from which several threads take items.

A generator of Python code cannot be entered twice: a thread that calls `next()` while another one is inside gets
`ValueError: generator already executing`, or numbers are given out twice. `itertools.count()` is safe; everything else
needs a lock around `next()`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.shared_state import accesses_of_class, accesses_of_globals
from paceline.concurrency.check.threads.sharing import THREAD_WORDS, may_coincide


def find(facts: Facts) -> Iterator[Finding]:
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


def _of_one(accesses: list[Access], facts: Facts) -> Iterator[Finding]:
    takes = [a for a in accesses if _takes(a.node) and not a.locks]
    for access in takes:
        other = next((o for o in takes if may_coincide(access, o, facts)), None)
        if other is not None:
            yield finding(
                access.node,
                access.fn,
                f"{access.thing} is a generator, and {other.fn.qualname} takes from it in another thread meanwhile",
                [
                    Step("thread A", access.line, f"{access.fn.qualname} runs the code of {access.thing}"),
                    Step("thread B", other.line, "calls next() meanwhile: ValueError: generator already executing"),
                ],
                remedy="hold one lock around next(), or use itertools.count()",
                about=access.thing,
                confidence=0.7,
            )
            return


def _takes(node: ast.AST) -> bool:
    call = parent(node)
    if isinstance(call, ast.Call) and node in call.args:
        return short_name(call.func) == "next"
    return isinstance(call, ast.Attribute) and call.attr in ("send", "__next__")


RULE = Rule(
    "PC417",
    "generator-shared",
    "a generator from which several threads take items",
    find,
    bad="""
        from concurrent.futures import ThreadPoolExecutor

        def numbers():
            n = 0
            while True:
                yield n
                n += 1

        class Tracer:
            def __init__(self):
                self.ids = numbers()

            def span(self, name):
                return next(self.ids), name

            def spans(self, names):
                with ThreadPoolExecutor() as pool:
                    return [pool.submit(self.span, name) for name in names]
    """,
    good="""
        import itertools
        from concurrent.futures import ThreadPoolExecutor

        class Tracer:
            def __init__(self):
                self.ids = itertools.count()

            def span(self, name):
                return next(self.ids), name

            def spans(self, names):
                with ThreadPoolExecutor() as pool:
                    return [pool.submit(self.span, name) for name in names]
    """,
    needs=THREAD_WORDS,
)
