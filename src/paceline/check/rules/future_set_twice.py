"""A future that is completed without asking whether its waiter has given up.

A coroutine that waits with a timeout, or whose task is cancelled, cancels the future it waits for. The callback that
answers later calls `set_result` on a future that is done, and gets `InvalidStateError` in the middle of its loop: the
messages after it are lost. Ask `future.done()` first. Between the two, nothing else runs in asyncio.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declarations import Function
from paceline.check.effects import text_of
from paceline.check.findings import Finding, Step
from paceline.check.names import dotted, enclosing, short_name
from paceline.check.rules.rule import Rule, finding
from paceline.check.shared_state import is_caught
from paceline.check.summaries import Facts

SETS = ("set_result", "set_exception")
ASKS = ("done", "cancelled")
TAKES = ("pop", "get", "popleft")
GIVES_UP = {"wait_for", "timeout", "cancel", "wait", "move_on_after", "fail_after"}


def find(facts: Facts) -> Iterator[Finding]:
    """Report set_result and set_exception of futures that wait in a container, without a check."""
    module = facts.module
    if "asyncio" not in {origin.partition(".")[0] for origin in module.imports.values()}:
        return
    for fn in module.functions:
        reported: set[str] = set()
        for call in fn.calls:
            if short_name(call.func) not in SETS or not isinstance(call.func, ast.Attribute):
                continue
            name = dotted(call.func.value)
            if name in reported or not _waits(call.func.value, fn) or _asked(name, call, fn):
                continue
            if not is_caught(call, "InvalidStateError") and _given_up(facts):
                reported.add(name)
                yield _report(call, fn, name)


def _waits(node: ast.expr, fn: Function) -> bool:
    """Whether a future comes out of a container or attribute of the object, where its waiter has left it."""
    value = fn.bound.get(node.id) if isinstance(node, ast.Name) else node
    if isinstance(value, ast.Call):
        return short_name(value.func) in TAKES and dotted(value.func).startswith(f"{fn.self_name}.") and bool(fn.cls)
    if isinstance(value, ast.Subscript):
        return dotted(value.value).startswith(f"{fn.self_name}.") and bool(fn.cls)
    looped = fn.looped.get(node.id) if isinstance(node, ast.Name) else None
    return looped is not None and dotted(looped).startswith(f"{fn.self_name}.") and bool(fn.cls)


def _asked(name: str, call: ast.Call, fn: Function) -> bool:
    """Whether the function asks before the call whether the future is done."""
    asked = any(
        short_name(c.func) in ASKS and dotted(getattr(c.func, "value", c.func)) == name and c.lineno <= call.lineno
        for c in fn.calls
    )
    return asked or _suppressed(call)


def _suppressed(call: ast.Call) -> bool:
    around = enclosing(call, ast.With)
    return isinstance(around, ast.With) and any("suppress" in dotted(i.context_expr) for i in around.items)


def _given_up(facts: Facts) -> bool:
    """Whether this file makes futures of a loop, and waits with a timeout or cancels anything."""
    called = {short_name(c.func) for fn in facts.module.functions for c in fn.calls}
    return bool(called & {"create_future", "Future"}) and bool(called & GIVES_UP)


def _report(call: ast.Call, fn: Function, name: str) -> Finding:
    return finding(
        call,
        fn,
        f"{text_of(call)} does not ask whether {name} is done: its waiter may have timed out or been cancelled, and "
        "then this raises InvalidStateError",
        [
            Step("task A", call.lineno, f"waits for {name}, gives up, and so cancels it"),
            Step("task B", call.lineno, f"{fn.qualname} calls {text_of(call)}: InvalidStateError"),
        ],
        f"`if not {name}.done():` before it",
        name,
        0.5,
    )


RULE = Rule(
    "PC309",
    "future-set-twice",
    "a future completed without asking whether its waiter has given up",
    find,
    bad="""
        import asyncio

        class Client:
            def __init__(self):
                self.waiting = {}

            async def ask(self, key):
                self.waiting[key] = asyncio.get_running_loop().create_future()
                return await asyncio.wait_for(self.waiting[key], 5)

            def answered(self, key, value):
                future = self.waiting.pop(key)
                future.set_result(value)
    """,
    good="""
        import asyncio

        class Client:
            def __init__(self):
                self.waiting = {}

            async def ask(self, key):
                self.waiting[key] = asyncio.get_running_loop().create_future()
                return await asyncio.wait_for(self.waiting[key], 5)

            def answered(self, key, value):
                future = self.waiting.pop(key)
                if not future.done():
                    future.set_result(value)
    """,
    needs=SETS,
)
