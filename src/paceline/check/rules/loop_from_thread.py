"""The event loop touched from another thread.

Apart from `call_soon_threadsafe` and `run_coroutine_threadsafe`, nothing of asyncio may be used from another thread
than the loop's. A callback put there by `call_soon`, an `asyncio.Event` set, an item put into an `asyncio.Queue` does
not wake the loop: it may sleep on for ever.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.names import last
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts

OF_LOOP = ("call_soon", "call_later", "call_at")
OWN_LOOP = ("new_event_loop", "run_until_complete", "run_forever", "run", "set_event_loop")


def find(facts: Facts) -> Iterator[Finding]:
    for root in facts.roots:
        fn = root.function
        if root.kind != "thread" or fn.asynchronous or any(last(c.func) in OWN_LOOP for c in fn.calls):
            continue
        for call in fn.calls:
            what = _touches(call, fn, facts)
            if what:
                yield finding(
                    call,
                    fn,
                    f"{said(call)} {what} from the thread started at line {root.line}: the loop is not woken, "
                    "and may sleep on for ever",
                    [
                        Step("the loop", root.line, "sleeps until something is due"),
                        Step("thread B", call.lineno, f"calls {said(call)}, which does not wake it"),
                    ],
                    "use loop.call_soon_threadsafe(...) or asyncio.run_coroutine_threadsafe(...)",
                    said(call),
                    0.8,
                )
                break


def _touches(call: ast.Call, fn: Function, facts: Facts) -> str:
    if not isinstance(call.func, ast.Attribute):
        return ""
    name, owner = call.func.attr, last(call.func.value).lower()
    if name in OF_LOOP and "loop" in owner:
        return "puts a callback into the loop"
    if name == "create_task" and ("loop" in owner or owner == "asyncio"):
        return "makes a task"
    found = facts.module.resource(call.func.value, fn)
    if found is not None and found.sure:
        if found.kind == "AsyncEvent" and name == "set":
            return "sets an event of the loop"
        if found.kind == "AsyncQueue" and name == "put_nowait":
            return "puts an item into a queue of the loop"
    return ""


RULE = Rule(
    "PC304",
    "loop-from-thread",
    "the event loop touched from another thread",
    find,
    bad="""
        import asyncio
        import threading

        class Bridge:
            def __init__(self):
                self.items = asyncio.Queue()
                threading.Thread(target=self._read).start()

            def _read(self):
                for line in open("/dev/stdin"):
                    self.items.put_nowait(line)
    """,
    good="""
        import asyncio
        import threading

        class Bridge:
            def __init__(self, loop):
                self.loop = loop
                self.items = asyncio.Queue()
                threading.Thread(target=self._read).start()

            def _read(self):
                for line in open("/dev/stdin"):
                    self.loop.call_soon_threadsafe(self.items.put_nowait, line)
    """,
    needs=("asyncio",),
)
