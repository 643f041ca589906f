"""A stranger's function that is called with a lock held.

A callback may do anything: call back into the object that holds the lock, or wait for a thread that needs it. With a
lock that is not re-entrant the first is already the end. Reported where the function called is one that was handed in
(kept in an attribute, or in a list of listeners), or where completing or cancelling a future runs its callbacks, and
where another method of the same file takes the lock.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.catalogue import CALLBACK_WORDS
from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import Mark, said
from paceline.check.names import dotted, last
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts

COMPLETES = ("set_result", "set_exception", "set_running_or_notify_cancel")


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        told: set[str] = set()
        for mark, held in facts.events(fn):
            locks = [
                h for h in held if h.resource.sure and h.resource.kind in ("Lock", "RLock") and not h.resource.many
            ]
            if not locks or mark.kind != "call" or mark.callee is not None:
                continue
            what = _stranger(mark, fn, facts)
            first = next((h for h in locks if h.resource.once or what == "the callbacks of a future"), None)
            if not what or first is None or first.resource.id in told:
                continue
            other = next(
                (f for f in facts.module.functions if f is not fn and _enters(f, first.resource.id, facts)), None
            )
            if other is None:
                continue
            told.add(first.resource.id)
            lock = first.resource
            yield finding(
                mark.node,
                fn,
                f"{said(mark.node)} runs {what} with {lock.id} held; if they come back here, or wait for a "
                "thread that does, nobody goes on",
                [
                    Step("thread A", first.line, f"{fn.qualname} takes {lock.id}"),
                    Step("thread A", mark.line, f"calls {said(mark.node)}: {what}"),
                    Step("thread A", other.line, f"they call {other.qualname}, which waits for {lock.id}"),
                ],
                "copy what is needed under the lock, and call it after the lock is released",
                lock.id,
                0.6,
            )


def _enters(fn: Function, lock: str, facts: Facts) -> bool:
    return not fn.name.startswith("_") and any(
        m.kind == "take" and m.resource is not None and m.resource.id == lock for m, _ in facts.events(fn)
    )


def _stranger(mark: Mark, fn: Function, facts: Facts) -> str:
    call = mark.node
    assert isinstance(call, ast.Call)
    name = last(call.func).lower()
    if name in COMPLETES:
        return "the callbacks of a future"
    if name == "cancel" and isinstance(call.func, ast.Attribute) and "add_done_callback" in _words(facts):
        receiver = last(call.func.value).lower()
        if receiver in ("f", "fut", "future") or "future" in receiver:
            return "the callbacks of a future"
    if name.endswith(CALLBACK_WORDS) and not _is_plain(call.func, fn):
        return "a callback"
    if isinstance(call.func, ast.Name):
        for loop in fn.loops:
            target = getattr(loop, "target", None)
            if isinstance(target, ast.Name) and target.id == call.func.id:
                over = dotted(loop.iter).lower()  # type: ignore[union-attr]
                if any(word.strip("_") in over for word in CALLBACK_WORDS):
                    return "callbacks"
    return ""


def _is_plain(function: ast.expr, fn: Function) -> bool:
    """A function of this or another module by its own name, which is no stranger's."""
    if isinstance(function, ast.Name):
        return not any(function.id in scope.parameters or function.id in scope.bound for scope in fn.scopes())
    owner = function.value if isinstance(function, ast.Attribute) else None
    return not (isinstance(owner, ast.Name) and owner.id == fn.me) or _is_method(function, fn)


def _is_method(function: ast.expr, fn: Function) -> bool:
    return fn.cls is not None and (fn.cls.method(last(function)) is not None or last(function) not in fn.cls.values)


def _words(facts: Facts) -> set[str]:
    return {a.attr for f in facts.module.functions for a in f.attributes}


RULE = Rule(
    "PC104",
    "callback-under-lock",
    "a stranger's function called with a lock held",
    find,
    bad="""
        import threading

        class Source:
            def __init__(self, callback):
                self._lock = threading.Lock()
                self._callback = callback
                self._value = None

            def get(self):
                with self._lock:
                    return self._value

            def put(self, value):
                with self._lock:
                    self._value = value
                    self._callback(value)
    """,
    good="""
        import threading

        class Source:
            def __init__(self, callback):
                self._lock = threading.Lock()
                self._callback = callback
                self._value = None

            def get(self):
                with self._lock:
                    return self._value

            def put(self, value):
                with self._lock:
                    self._value = value
                self._callback(value)
    """,
)
