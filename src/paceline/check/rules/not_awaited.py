"""A lock of asyncio that is not awaited.

`lock.acquire()` of an `asyncio.Lock` only makes a coroutine. Without `await` nothing is taken, nobody is kept out, and
the release that follows raises, or undoes somebody else's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.catalogue import ASYNC_LOCKS
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.names import parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        for mark in facts.walker.marks(fn):
            resource = mark.resource
            if mark.kind not in ("take", "try", "wait") or resource is None or not resource.sure:
                continue
            if resource.kind not in ASYNC_LOCKS or not isinstance(parent(mark.node), ast.Expr):
                continue
            yield finding(
                mark.node,
                fn,
                f"{said(mark.node)} is not awaited: it takes nothing, and the next task goes in too",
                [
                    Step("task A", mark.line, f"calls {said(mark.node)} without await, and goes on"),
                    Step("task B", mark.line, "does the same: both are inside"),
                ],
                f"`async with {ast.unparse(mark.node.func.value)}:`",  # type: ignore[attr-defined]
                resource.id,
                0.9,
            )


RULE = Rule(
    "PC305",
    "lock-not-awaited",
    "a lock of asyncio that is not awaited",
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
