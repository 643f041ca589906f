"""An asyncio lock that is not awaited.

`lock.acquire()` of an `asyncio.Lock` only creates a coroutine. Without `await` the lock is not taken, no other task is
excluded, and the release that follows raises or releases the lock of another task.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.catalogue import ASYNC_LOCKS
from paceline.check.effects import text_of
from paceline.check.findings import Finding, Step
from paceline.check.names import parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    """Report acquires and waits of asyncio locks that are statements of their own."""
    for fn in facts.module.functions:
        for effect in facts.walker.effects(fn):
            resource = effect.resource
            if effect.kind not in ("take", "try", "wait") or resource is None or not resource.sure:
                continue
            if resource.kind not in ASYNC_LOCKS or not isinstance(parent(effect.node), ast.Expr):
                continue
            yield finding(
                effect.node,
                fn,
                f"{text_of(effect.node)} is not awaited: the lock is not taken, and another task enters too",
                [
                    Step("task A", effect.line, f"calls {text_of(effect.node)} without await, and goes on"),
                    Step("task B", effect.line, "does the same: both are in the critical section"),
                ],
                f"use `async with {ast.unparse(effect.node.func.value)}:`",  # type: ignore[attr-defined]
                resource.id,
                0.9,
            )


RULE = Rule(
    "PC305",
    "lock-not-awaited",
    "an asyncio lock that is not awaited",
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
    needs=("asyncio",),
)
