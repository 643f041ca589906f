"""An await with a thread's lock held.

At an `await` the loop runs other tasks, in the same thread. One of them that wants the same lock stops the loop, and
with it the task that would release it. A `threading.Lock` may guard a step between two awaits, never an await.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.catalogue import ASYNC_LOCKS
from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.names import parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts
from paceline.narrative import Wait


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        if not fn.asynchronous:
            continue
        told: set[str] = set()
        for mark, held in facts.events(fn):
            at = parent(mark.node)
            if not isinstance(at, ast.Await) or mark.kind == "take":
                continue
            for lock, line, *_ in held:
                if lock.kind not in ASYNC_LOCKS and lock.id not in told and (lock.sure or not _async_with(line, fn)):
                    told.add(lock.id)
                    yield _tell(fn, at, lock.id, line, 0.9 if lock.sure else 0.65)


def _async_with(line: int, fn: Function) -> bool:
    """Taken by `async with` or `await`: a lock of unknown make is then one of asyncio."""
    if any(isinstance(w, ast.AsyncWith) and i.context_expr.lineno == line for w in fn.withs for i in w.items):
        return True
    return any(a.lineno == line for a in fn.awaits)


def _tell(fn: Function, at: ast.Await, lock: str, line: int, confidence: float) -> Finding:
    return finding(
        at,
        fn,
        f"awaits with {lock} held since line {line}: another task of this loop that wants {lock} stops the "
        "loop, and nobody releases it",
        [
            Step("task A", line, f"{fn.qualname} takes {lock}"),
            Step("task A", at.lineno, "awaits: the loop goes on with others"),
            Step("task B", line, f"waits for {lock}, and the whole loop with it"),
        ],
        "use asyncio.Lock with `async with`, or release the lock before the await",
        lock,
        confidence,
        [
            Wait("task A", f"took {lock}", "run the loop", "task B"),
            Wait("task B", "stopped the loop", f"release {lock}", "task A"),
        ],
    )


RULE = Rule(
    "PC302",
    "await-under-lock",
    "an await with a thread's lock held",
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
    needs=("await",),
)
