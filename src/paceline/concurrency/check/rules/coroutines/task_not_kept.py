"""A task of asyncio that nothing refers to.

The event loop keeps only a weak reference to a task. A task whose result is thrown away may be collected before it is
done, its exception is never seen, nothing waits for it at the end of the program, and what follows may run before it.
Keep the task in a set and remove it when it is done, await it, or use a `TaskGroup`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import parent

STARTS = ("create_task", "ensure_future")


def find(facts: Facts) -> Iterator[Finding]:
    """Report calls of create_task and ensure_future that are statements of their own."""
    for fn in facts.module.functions:
        for call in fn.calls:
            if short_name(call.func) in STARTS and isinstance(parent(call), ast.Expr) and _of_asyncio(call, facts):
                yield _report(call, fn)


def _of_asyncio(call: ast.Call, facts: Facts) -> bool:
    """Whether asyncio or one of its loops starts the task: a task group keeps its tasks itself."""
    name = facts.module.canonical(call.func)
    if name in ("asyncio.create_task", "asyncio.ensure_future"):
        return True
    owner = dotted(call.func.value).lower() if isinstance(call.func, ast.Attribute) else ""
    return bool(call.args) and owner.removesuffix("()").rpartition(".")[2].strip("_").endswith("loop")


def _report(call: ast.Call, fn: Function) -> Finding:
    coroutine = call.args[0] if call.args else call
    what = text_of(coroutine) or "the coroutine"
    return finding(
        call,
        fn,
        f"the task of {what} is not kept: it may be collected before it is done, and nothing waits for it or sees its "
        "exception",
        [
            Step("task A", call.lineno, f"{fn.qualname} starts {what} and continues"),
            Step("the loop", call.lineno, "has only a weak reference to the task"),
            Step("task A", call.lineno, f"ends, or relies on what {what} has not done yet"),
        ],
        remedy="keep the task (`tasks.add(task); task.add_done_callback(tasks.discard)`), await it, or use a TaskGroup",
        about=what,
        confidence=0.55,
    )


RULE = Rule(
    "PC308",
    "task-not-kept",
    "a task of asyncio that nothing refers to",
    find,
    bad="""
        import asyncio

        class Server:
            async def stop(self):
                asyncio.create_task(self.notify())

            async def notify(self):
                await asyncio.sleep(1)
    """,
    good="""
        import asyncio

        class Server:
            def __init__(self):
                self.tasks = set()

            async def stop(self):
                task = asyncio.create_task(self.notify())
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

            async def notify(self):
                await asyncio.sleep(1)
    """,
    needs=STARTS,
)
