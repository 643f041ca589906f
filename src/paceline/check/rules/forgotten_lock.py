"""A change of shared state without the lock that all other changes hold.

Where an attribute is changed under one and the same lock in at least two places, and in one place without it, the lock
was most likely forgotten. Assigning a plain value (a flag, None) is not reported, since the last assignment wins.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.check.accesses import Access
from paceline.check.declarations import Class
from paceline.check.findings import Finding, Step
from paceline.check.rules.rule import Rule, finding
from paceline.check.shared_state import accesses_of_class, is_teardown, own_locks
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    """Report changes without the lock, where most changes of the same attribute hold it."""
    for cls in facts.module.classes.values():
        for accesses in accesses_of_class(cls, facts).values():
            yield from _changes(accesses, cls)


def _changes(accesses: list[Access], cls: Class) -> Iterator[Finding]:
    changes = [a for a in accesses if a.kind in ("grow", "shrink")]
    bare = [a for a in changes if not a.locks]
    guarded = [a for a in changes if a.locks]
    if not bare or len(guarded) < 2 or len(bare) >= len(guarded):
        return
    common = own_locks(frozenset.intersection(*(a.locks for a in guarded)), cls)
    access = bare[0]
    if (
        common
        and not access.fn.name.startswith("_")
        and not access.fn.name.endswith("locked")
        and not is_teardown(access.fn)
    ):
        yield _report(access, guarded[0], min(common))


def _report(access: Access, guarded: Access, lock: str) -> Finding:
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
        0.6,
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
