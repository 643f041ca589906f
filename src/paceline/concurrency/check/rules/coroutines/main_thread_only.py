"""What works in the main thread only, called in another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.threads.shared_state import is_caught

HANDLERS = ("signal.signal", "signal.set_wakeup_fd")
MAKES_LOOP = ("set_event_loop", "new_event_loop")


def find(facts: Facts) -> Iterator[Witness]:
    """Report such calls in functions that only threads run."""
    for fn in facts.module.functions:
        for call in fn.calls if not any(scope.name.startswith("test") for scope in fn.scopes()) else ():
            what = _fails(call, fn, facts)
            if what and _only_in_threads(fn, facts):
                yield Witness(
                    call,
                    fn,
                    what=what,
                    remedy="call it in the main thread, before the thread is started"
                    if "Value" in what
                    else "use asyncio.run(), or asyncio.run_coroutine_threadsafe() with the loop of the main thread",
                )
                break


def _fails(call: ast.Call, fn: Function, facts: Facts) -> str:
    """How a call fails outside of the main thread; empty where it does not."""
    name = facts.module.canonical(call.func)
    if name in HANDLERS:
        return "" if is_caught(call, "ValueError") else "raises a ValueError"
    if name != "asyncio.get_event_loop" or fn.asynchronous or is_caught(call, "RuntimeError"):
        return ""
    has_loop = any(
        short_name(c.func) in MAKES_LOOP for f in facts.module.functions for c in f.calls if facts.threads_of(f)
    )
    return "" if has_loop else "raises a RuntimeError"


def _only_in_threads(fn: Function, facts: Facts) -> bool:
    """Whether a function is only started as a thread, or only called by such functions."""
    started = [r for r in facts.roots if r.kind == "thread" and r.function is fn and not r.several]
    callers = facts.callers.get(id(fn), [])
    if started or any(r.function is fn and r.kind == "thread" for r in facts.roots):
        return not callers and _seen_to_start(fn, facts)
    private = fn.name.startswith("_") and fn.name not in facts.used_as_values
    return (
        private and bool(callers) and all(_only_in_threads(caller, facts) for caller, _ in callers if caller is not fn)
    )


def _seen_to_start(fn: Function, facts: Facts) -> bool:
    """Whether this file itself starts the thread, so that the function is not one that a library calls."""
    return any(
        r.function is fn and any(c.lineno == r.line for f in facts.module.functions for c in f.calls)
        for r in facts.roots
        if r.kind == "thread"
    )
