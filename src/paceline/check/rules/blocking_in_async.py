"""A blocking wait of threads inside a coroutine.

`queue.get()`, `thread.join()`, `event.wait()` or `future.result()` of the threading world block the whole event loop:
nothing else runs, not even the task that would put the item or set the event. If that is a task of the same loop, the
program hangs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.effects import text_of
from paceline.check.findings import Finding, Step
from paceline.check.names import parent
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts

KINDS = ("Thread", "Process", "Queue", "ProcessQueue", "SimpleQueue", "Event", "ProcessEvent", "Barrier", "Future")


def find(facts: Facts) -> Iterator[Finding]:
    """Report waits without a timeout for resources of threads, in coroutines."""
    for fn in facts.module.functions:
        if not fn.asynchronous:
            continue
        for effect in facts.walker.effects(fn):
            resource = effect.resource
            if (
                effect.kind != "wait"
                or effect.timeout
                or resource is None
                or not resource.sure
                or resource.kind not in KINDS
            ):
                continue
            if isinstance(parent(effect.node), ast.Await) or _is_done(effect.node, fn.calls):
                continue
            yield finding(
                effect.node,
                fn,
                f"{text_of(effect.node)} in a coroutine blocks the event loop while it waits for {effect.waits_for}: "
                "if that needs a task of the same loop, it never happens",
                [
                    Step("the loop", effect.line, f"runs {fn.qualname}, which waits for {effect.waits_for}"),
                    Step("other tasks", effect.line, "cannot run, since their loop is blocked"),
                ],
                "wait in a thread (await asyncio.to_thread or loop.run_in_executor), or use the asyncio counterpart",
                resource.id,
                0.75,
            )


def _is_done(node: ast.expr, calls: list[ast.Call]) -> bool:
    """Whether the function asks `done()` of the same future, so that the result is there."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = ast.unparse(node.func.value)
    return any(
        isinstance(c.func, ast.Attribute) and c.func.attr == "done" and ast.unparse(c.func.value) == name for c in calls
    )


RULE = Rule(
    "PC301",
    "blocking-in-async",
    "a blocking wait of threads inside a coroutine",
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
