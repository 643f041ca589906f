"""An asyncio lock that is not awaited.

`lock.acquire()` of an `asyncio.Lock` only creates a coroutine. Without `await` the lock is not taken, no other task is
excluded, and the release that follows raises or releases the lock of another task.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import parent


def find(facts: Facts) -> Iterator[Finding]:
    """Report acquires and waits of asyncio locks, and calls of coroutines, that are statements of their own."""
    for fn in facts.module.functions:
        for effect in facts.walker.effects(fn):
            resource, callee = effect.resource, effect.callee
            alone = isinstance(parent(effect.node), ast.Expr) and callee is not None and not effect.perhaps
            named = callee is not None and callee.name == short_name(_called(effect.node))
            if alone and named and callee is not None and callee.only_awaited:
                yield _never_run(fn, effect.node, callee)
            if effect.kind not in ("take", "try", "wait") or resource is None or not resource.sure:
                continue
            if resource.kind not in ASYNC_LOCKS or not isinstance(parent(effect.node), ast.Expr):
                continue
            yield finding(
                effect.node,
                fn,
                f"{text_of(effect.node)} is not awaited: the lock is not taken, and another task enters too",
                [
                    Step("task A", effect.line, f"calls {text_of(effect.node)} without await, and continues"),
                    Step("task B", effect.line, "does the same: both are in the critical section"),
                ],
                remedy=f"use `async with {ast.unparse(effect.node.func.value)}:`",  # type: ignore[attr-defined]
                about=resource.id,
                confidence=0.9,
            )


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _never_run(fn: Function, call: ast.expr, callee: Function) -> Finding:
    return finding(
        call,
        fn,
        f"{text_of(call)} is not awaited: {callee.qualname} never runs, and what comes after does not wait for it",
        [
            Step("task A", call.lineno, f"{fn.qualname} calls {text_of(call)} without await, and continues"),
            Step("task A", callee.line, f"nothing of {callee.qualname} is run"),
        ],
        remedy=f"`await {text_of(call)[:-2]}(...)`, or keep a task made of it",
        about=callee.qualname,
        confidence=0.85,
    )


RULE = Rule(
    "PC305",
    "lock-not-awaited",
    "an asyncio lock or a coroutine that is not awaited",
    find,
    bad="""
        import asyncio

        lock = asyncio.Lock()

        async def step(work):
            lock.acquire()
            try:
                await work()
            finally:
                lock.release()
    """,
    good="""
        import asyncio

        lock = asyncio.Lock()

        async def step(work):
            async with lock:
                await work()
    """,
    needs=("async def", "asyncio"),
)
