"""A wait of threads inside a coroutine.

`queue.get()`, `thread.join()`, `event.wait()` or `future.result()` of the threading world stop the whole event loop:
nothing else runs, not even what would put the item or set the event. When that is a task of the same loop, the
program stands still for ever.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.names import parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts

KINDS = ("Thread", "Process", "Queue", "ProcessQueue", "SimpleQueue", "Event", "ProcessEvent", "Barrier", "Future")


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        if not fn.asynchronous:
            continue
        for mark in facts.walker.marks(fn):
            resource = mark.resource
            if (
                mark.kind != "wait"
                or mark.timeout
                or resource is None
                or not resource.sure
                or resource.kind not in KINDS
            ):
                continue
            if isinstance(parent(mark.node), ast.Await) or _is_done(mark.node, fn.calls):
                continue
            yield finding(
                mark.node,
                fn,
                f"{said(mark.node)} in a coroutine stops the event loop until "
                f"{mark.waits_for.replace(' to ', ' has come to ')}: if that takes a task of this loop, it never will",
                [
                    Step("the loop", mark.line, f"runs {fn.qualname}, which waits for {mark.waits_for}"),
                    Step("the others", mark.line, "cannot run, since their loop stands still"),
                ],
                "await it in a thread (asyncio.to_thread, loop.run_in_executor), or use asyncio's own",
                resource.id,
                0.75,
            )


def _is_done(node: ast.expr, calls: list[ast.Call]) -> bool:
    """A result that is asked for after it is known to be there."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = ast.unparse(node.func.value)
    return any(
        isinstance(c.func, ast.Attribute) and c.func.attr == "done" and ast.unparse(c.func.value) == name for c in calls
    )


RULE = Rule(
    "PC301",
    "blocking-in-async",
    "a wait of threads inside a coroutine",
    find,
    bad="""
        import queue

        items = queue.Queue()

        async def consume():
            while True:
                item = items.get()
                await item.run()
    """,
    good="""
        import asyncio

        items = asyncio.Queue()

        async def consume():
            while True:
                item = await items.get()
                await item.run()
    """,
    needs=("async ",),
)
