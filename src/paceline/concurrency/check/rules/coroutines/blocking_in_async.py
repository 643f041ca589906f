"""A blocking call inside a coroutine.

`time.sleep()`, `requests.get()` and `subprocess.run()` stop the event loop for as long as they take, also where a
function that the coroutine calls does it: no other task runs meanwhile, no timeout fires, no connection is answered.
What blocks is listed in check/libraries, to which a project can add its own functions.

`queue.get()`, `thread.join()`, `event.wait()` or `future.result()` of the threading world block the whole event loop:
nothing else runs, not even the task that would put the item or set the event. If that is a task of the same loop, the
program hangs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts, call_steps
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import parent

KINDS = (
    "Thread",
    "Process",
    "Queue",
    "ProcessQueue",
    "SimpleQueue",
    "Event",
    "ProcessEvent",
    "Barrier",
    "Future",
    "Executor",
    "Pool",
)


def find(facts: Facts) -> Iterator[Finding]:
    """Report blocking calls in coroutines and callbacks of the loop, and endless waits for resources of threads."""
    for fn in facts.module.functions:
        if not facts.on_loop(fn):
            continue
        yield from _blocking(fn, facts)
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
                f"{text_of(effect.node)} in {place(fn)} blocks the event loop while it waits for {effect.waits_for}: "
                "if that needs a task of the same loop, it never happens",
                [
                    Step("the loop", effect.line, f"runs {fn.qualname}, which waits for {effect.waits_for}"),
                    Step("other tasks", effect.line, "cannot run, since their loop is blocked"),
                ],
                remedy="wait in a thread (await asyncio.to_thread or loop.run_in_executor), or use the asyncio "
                "counterpart",
                about=resource.id,
                confidence=0.75,
            )


def place(fn: Function) -> str:
    """What the loop runs, in words."""
    return "a coroutine" if fn.asynchronous else "a callback of the loop"


def _blocking(fn: Function, facts: Facts) -> Iterator[Finding]:
    """Calls of libraries that block, in a coroutine or in the functions that it calls."""
    reported: set[str] = set()
    for effect in facts.walker.effects(fn):
        if effect.kind != "call" or isinstance(parent(effect.node), ast.Await):
            continue
        for what, call in facts.blocks_through(effect, fn).items():
            if what in reported:
                continue
            reported.add(what)
            by = "" if len(call.steps) == 1 else f", which calls {what},"
            yield finding(
                effect.node,
                fn,
                f"{text_of(effect.node)}{by} in {place(fn)} blocks the event loop: it {call.waits}, and no other task "
                "runs until then",
                [
                    *call_steps("the loop", call.steps, f"calls {what}, which {call.waits}"),
                    Step("other tasks", effect.line, "cannot run, since their loop is blocked"),
                ],
                remedy=f"use the counterpart for asyncio, or `await asyncio.to_thread({text_of(effect.node)[:-2]}, "
                "...)`",
                about=what,
                confidence=0.45 if call.waits == "waits for the user" else 0.8 if len(call.steps) == 1 else 0.65,
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
    "a call inside a coroutine that blocks the event loop",
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
