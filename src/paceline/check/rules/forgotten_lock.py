"""A change of shared state without the lock that all other changes hold.

Where an attribute is changed under one and the same lock in most places, and in one place without it, the lock was most
likely forgotten. Assigning a plain value (a flag, None) is reported only where another method decides under the lock by
the old value (`if self.running: raise`), since otherwise the last assignment wins.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.accesses import Access
from paceline.check.declarations import Class
from paceline.check.findings import Finding, Step
from paceline.check.names import enclosing, short_name
from paceline.check.rules.rule import Rule, finding
from paceline.check.shared_state import BEGINNINGS, accesses_of_class, is_teardown, own_locks
from paceline.check.sharing import filled_if_missing
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    """Report changes without the lock, where most changes of the same attribute hold it."""
    for cls in facts.module.classes.values():
        for accesses in accesses_of_class(cls, facts).values():
            yield from _changes(accesses, cls)


def _changes(accesses: list[Access], cls: Class) -> Iterator[Finding]:
    filled = {id(a.node) for a, _ in filled_if_missing(accesses)}  # reported as PC401
    changes = [a for a in accesses if a.kind in ("grow", "shrink") and id(a.node) not in filled]
    found = _bare(changes, cls)
    if found is None and (decided := _decided_under_lock(accesses)):
        found = _bare([*decided, *(a for a in accesses if a.kind in ("write", "none") and not a.locks)], cls)
    if found is not None:
        access, guarded, lock = found
        most = 2 * sum(bool(a.locks) for a in changes) >= len(changes) + 2
        yield _report(access, guarded, lock, 0.6 if most else 0.5)


def _bare(changes: list[Access], cls: Class) -> tuple[Access, Access, str] | None:
    """A change without a lock, one with the lock that all guarded changes share, and that lock."""
    bare = [a for a in changes if not a.locks and not _excused(a)]
    guarded = [a for a in changes if a.locks and a.fn.name not in BEGINNINGS]
    alone = len(guarded) == 1 and guarded[0].fn.name.startswith("_")
    if not bare or not guarded or alone or len(bare) > len(guarded):
        return None
    common = own_locks(frozenset.intersection(*(a.locks for a in guarded)), cls)
    return (bare[0], guarded[0], min(common)) if common else None


def _excused(access: Access) -> bool:
    """Whether the caller may hold the lock, or no other thread runs yet or any more."""
    name = access.fn.name
    hidden = name.startswith("_") and not name.startswith("__")
    renews = any(short_name(v.func).endswith("Lock") for _, v in access.fn.assigns for v in _calls(v))
    starts = any(short_name(c.func) == "start" and c.lineno > access.line for c in access.fn.calls)
    return hidden or renews or starts or name.endswith("locked") or is_teardown(access.fn)


def _calls(value: ast.expr) -> list[ast.Call]:
    """The calls that an assigned value is made of, where it is one or a tuple of several."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    return [part for part in parts if isinstance(part, ast.Call)]


def _decided_under_lock(accesses: list[Access]) -> list[Access]:
    """Plain assignments that follow a test of the same attribute under the same lock: `if not x: x = True`."""
    tests = [a for a in accesses if a.kind == "read" and a.locks and _decides(a)]
    return [
        a
        for a in accesses
        if a.kind in ("write", "none") and any(t.fn is a.fn and t.locks & a.locks and t.line <= a.line for t in tests)
    ]


def _decides(access: Access) -> bool:
    """Whether this is in the test of an `if` that does not wait for a change."""
    test = enclosing(access.node, ast.If)
    inside = isinstance(test, ast.If) and any(n is access.node for n in ast.walk(test.test))
    return inside and not any(isinstance(n, ast.Call) and short_name(n.func) == "wait" for n in ast.walk(test))  # type: ignore[arg-type]


def _report(access: Access, guarded: Access, lock: str, confidence: float) -> Finding:
    return finding(
        access.node,
        access.fn,
        f"{access.thing} is changed here without {lock}, which all other changes of it hold (line {guarded.line})",
        [
            Step("thread A", guarded.line, f"{guarded.fn.qualname} changes {access.thing} under {lock}"),
            Step(
                "thread B",
                access.line,
                f"{access.fn.qualname} changes it at the same time, since it does not hold {lock}",
            ),
        ],
        f"hold {lock} here too",
        access.thing,
        confidence,
    )


RULE = Rule(
    "PC403",
    "forgotten-lock",
    "a change of shared state without the lock that all others hold",
    find,
    bad="""
        import threading

        class Registry:
            def __init__(self):
                self._lock = threading.Lock()
                self._names = {}

            def add(self, name, value):
                with self._lock:
                    self._names[name] = value

            def remove(self, name):
                with self._lock:
                    self._names.pop(name, None)

            def rename(self, old, new):
                self._names[new] = old
    """,
    good="""
        import threading

        class Registry:
            def __init__(self):
                self._lock = threading.Lock()
                self._names = {}

            def add(self, name, value):
                with self._lock:
                    self._names[name] = value

            def remove(self, name):
                with self._lock:
                    self._names.pop(name, None)

            def rename(self, old, new):
                with self._lock:
                    self._names[new] = old
    """,
    needs=("ock", "utex", "ondition"),
)
