"""An await while a thread's lock is held.

At an `await` the event loop runs other tasks in the same thread. If one of them wants the same lock, it blocks the
whole loop, including the task that would release the lock. A `threading.Lock` may guard the code between two awaits,
but never an await.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import parent
from paceline.narrative import Wait


def find(facts: Facts) -> Iterator[Finding]:
    """Report awaits in coroutines while a lock that is not asyncio's is held."""
    for fn in facts.module.functions:
        if not fn.asynchronous:
            continue
        reported: set[str] = set()
        yield from _implicit(fn, facts, reported)
        for effect, locks_held in facts.events(fn):
            at = parent(effect.node)
            if not isinstance(at, ast.Await) or effect.kind == "take":
                continue
            for lock, line, *_ in locks_held:
                if (
                    lock.kind not in ASYNC_LOCKS
                    and lock.id not in reported
                    and (lock.sure or not _async_with(line, fn))
                ):
                    reported.add(lock.id)
                    yield _report(fn, at, lock.id, line, 0.9 if lock.sure else 0.65)


def _implicit(fn: Function, facts: Facts, reported: set[str]) -> Iterator[Finding]:
    """The awaits of `async for` and `async with`, and the yields of an asynchronous generator."""
    takes = {m.resource.id: m for m, _ in facts.events(fn) if m.kind == "take" and m.resource is not None}
    inner: list[tuple[ast.stmt | ast.expr, ast.expr]] = [(n, n.iter) for n in fn.loops if isinstance(n, ast.AsyncFor)]
    inner += [(n, n.items[0].context_expr) for n in fn.withs if isinstance(n, ast.AsyncWith)]
    inner += [(y, y) for y in fn.yields]  # an asynchronous generator waits there for its consumer
    for node, at in inner if takes else ():
        for name in sorted(facts.held_at(node, fn) & set(takes) - reported):
            lock, line = takes[name].resource, takes[name].line
            if lock is not None and lock.kind not in ASYNC_LOCKS and lock.sure and line < node.lineno:
                reported.add(name)
                yield _report(fn, at, name, line, 0.9)


def _async_with(line: int, fn: Function) -> bool:
    """Whether the lock was taken by `async with` or `await`: a lock of unknown origin is then an asyncio lock."""
    if any(isinstance(w, ast.AsyncWith) and i.context_expr.lineno == line for w in fn.withs for i in w.items):
        return True
    return any(a.lineno == line for a in fn.awaits)


def _report(fn: Function, at: ast.expr, lock: str, line: int, confidence: float) -> Finding:
    return finding(
        at,
        fn,
        f"awaits while {lock} is held (since line {line}): another task that wants {lock} blocks the event "
        "loop, so the lock is never released",
        [
            Step("task A", line, f"{fn.qualname} takes {lock}"),
            Step("task A", at.lineno, "awaits: the loop runs other tasks"),
            Step("task B", line, f"waits for {lock} and blocks the whole loop"),
        ],
        remedy="use asyncio.Lock with `async with`, or release the lock before the await",
        about=lock,
        confidence=confidence,
        waits=[
            Wait("task A", f"took {lock}", "run the loop", "task B"),
            Wait("task B", "blocked the loop", f"release {lock}", "task A"),
        ],
    )


RULE = Rule(
    "PC302",
    "await-under-lock",
    "an await while a thread's lock is held",
    find,
    bad="""
        import threading

        lock = threading.Lock()

        async def refresh(cache, source):
            with lock:
                cache.value = await source.read()
    """,
    good="""
        import asyncio

        lock = asyncio.Lock()

        async def refresh(cache, source):
            async with lock:
                cache.value = await source.read()
    """,
    needs=("async ",),
)
