"""A lock that a forked child inherits in the locked state.

Code that compares `os.getpid()` with a number it kept expects to be forked. A lock that another thread holds at that
moment is held in the child too, by a thread that does not exist there. The child must create the lock again: in a
function registered with `os.register_at_fork(after_in_child=...)`, or where the new process is detected.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declarations import Class, Function
from paceline.check.findings import Finding, Step
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    """Report locks that are created once, in code that compares process ids."""
    module = facts.module
    if any(a.attr == "register_at_fork" for fn in module.functions for a in fn.attributes):
        return
    yield from _globals(facts)
    for cls in module.classes.values():
        asks = [fn for fn in cls.methods.values() if _asks(fn, facts)]
        if not asks or not any(isinstance(n, ast.Compare) and _has_pid(n) for fn in asks for n in ast.walk(fn.node)):
            continue
        for attribute, values in cls.values.items():
            made = [(m, fn) for value, fn in values if (m := module.constructed(value, fn))]
            if not made or made[0][0][0] not in ("Lock", "RLock", "Condition"):
                continue
            (_kind, call), maker = made[0]
            if (
                not module.canonical(call.func).startswith(("threading.", "_thread."))
                or len(made) > 1
                or _again(maker, cls)
            ):
                continue
            lock = f"{cls.name}.{attribute}"
            taker = next((fn for fn in cls.methods.values() if lock in facts.takes(fn)), None)
            if taker is not None:
                yield _report(call, maker, asks[0], taker, lock, facts)


def _globals(facts: Facts) -> Iterator[Finding]:
    """Global locks that a function takes which compares the process id."""
    top = facts.module.top
    for fn in facts.module.functions:
        if not _asks(fn, facts) or not any(isinstance(n, ast.Compare) and _has_pid(n) for n in ast.walk(fn.node)):
            continue
        for lock, take in facts.takes(fn).items():
            made = facts.module.constructed(top.bound[lock], top) if lock in top.bound else None
            again = any(lock in other.globals for other in facts.module.functions if other is not top)
            if made is None or again or not take.resource.sure:
                continue
            if facts.module.canonical(made[1].func).startswith(("threading.", "_thread.")):
                yield _report(made[1], top, fn, fn, lock, facts)


def _asks(fn: Function, facts: Facts) -> bool:
    """Whether a function calls os.getpid()."""
    return any(facts.module.canonical(call.func).endswith("os.getpid") for call in fn.calls)


def _has_pid(node: ast.Compare) -> bool:
    """Whether a comparison involves a process id."""
    sides = [node.left, *node.comparators]
    return any("pid" in ast.unparse(side).lower() for side in sides)


def _again(maker: Function, cls: Class) -> bool:
    """Whether the lock is created in a method that others call too, such as when a new process is detected."""
    return maker.cls is cls and any(
        isinstance(call.func, ast.Attribute) and call.func.attr == maker.name
        for fn in cls.methods.values()
        if fn.name != "__init__"
        for call in fn.calls
    )


def _report(call: ast.Call, maker: Function, asks: Function, taker: Function, lock: str, facts: Facts) -> Finding:
    take = facts.takes(taker)[lock].steps[-1][1]
    return finding(
        call,
        maker,
        f"{lock} is not created again after a fork, though {asks.qualname} expects to run in a forked process: "
        f"a child forked while the lock is held waits for ever at line {take.lineno}",
        [
            Step("thread A", take.lineno, f"{taker.qualname} takes {lock}"),
            Step("thread B", asks.line, "forks: in the child the lock is held, but there is no thread A"),
            Step("the child", take.lineno, f"{taker.qualname} waits for {lock}, which no thread of the child releases"),
        ],
        "create it again in the child: os.register_at_fork(after_in_child=...)",
        lock,
        0.8,
    )


RULE = Rule(
    "PC113",
    "lock-across-fork",
    "a lock that a forked child inherits locked",
    find,
    bad="""
        import os
        import threading

        class Monitor:
            def __init__(self):
                self._lock = threading.Lock()
                self._pid = None

            def ensure_running(self):
                if self._pid == os.getpid():
                    return
                with self._lock:
                    threading.Thread(target=print, daemon=True).start()
                    self._pid = os.getpid()
    """,
    good="""
        import os
        import threading

        class Monitor:
            def __init__(self):
                self._reset()
                os.register_at_fork(after_in_child=self._reset)

            def _reset(self):
                self._lock = threading.Lock()
                self._pid = None

            def ensure_running(self):
                if self._pid == os.getpid():
                    return
                with self._lock:
                    threading.Thread(target=print, daemon=True).start()
                    self._pid = os.getpid()
    """,
    needs=("getpid",),
)
