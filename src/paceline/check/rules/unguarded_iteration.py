"""Something gone through while another thread changes its size.

A `for` over a dictionary, set or deque raises when it changes size on the way; over a list it skips or repeats. So it
is with a view (`.items()`) that a method hands out. `list(self.d.items())` copies in one step and is safe on the
default build. Reported where the changes are made under a lock that the loop does not hold, or in a thread, or in a
callback of a weak reference, which may run in the middle of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.check.accesses import Access, catches, ends, is_shared, iterates, of_class, of_globals, own_locks
from paceline.check.declared import Class
from paceline.check.findings import Finding, Step
from paceline.check.names import last
from paceline.check.rules.rule import Rule, finding
from paceline.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    for cls in facts.module.classes.values():
        for accesses in of_class(cls, facts).values():
            yield from _of_one(accesses, facts, cls)
    for accesses in of_globals(facts).values():
        yield from _of_one(accesses, facts, None)


def _of_one(accesses: list[Access], facts: Facts, cls: Class | None) -> Iterator[Finding]:
    loops = [a for a in accesses if iterates(a) and not ends(a.fn) and not catches(a.node, "RuntimeError")]
    changes = [a for a in accesses if a.kind in ("grow", "shrink")] if loops else []
    told: set[int] = set()
    for loop in loops:
        why = _meets(loop, changes, facts, cls) if loop.fn.name not in ("__repr__", "__str__") else None
        if why is not None and id(loop.fn) not in told:
            told.add(id(loop.fn))
            yield _tell(loop, *why)


def _meets(loop: Access, changes: list[Access], facts: Facts, cls: Class | None) -> tuple[Access, str, float] | None:
    """The change that may come in between, who makes it, and how sure that is."""
    for change in changes:
        if change.fn is loop.fn:
            continue
        if (
            any(r.kind in ("del", "gc") and r.function is change.fn for r in facts.roots)
            and change.fn.name != "__del__"
        ):
            return change, "a weak reference's callback, which runs wherever an object dies,", 0.7
    guarded = [c for c in changes if c.locks]
    if guarded and len(guarded) == len(changes) and (cls is None or is_shared(cls, facts)):
        common = frozenset(own_locks(frozenset.intersection(*(c.locks for c in guarded)), cls))
        inner = loop.fn.name.startswith("_") and not loop.fn.name.startswith("__") and id(loop.fn) in facts.callers
        if common and not loop.locks & common and not inner:
            return guarded[0], f"{guarded[0].fn.qualname}, under {min(common)},", 0.65
    mine = facts.threads_of(loop.fn)
    for change in changes:
        theirs = facts.threads_of(change.fn)
        if mine and not theirs and not change.locks | loop.locks and _may_come_later(change, facts):
            return change, f"{change.fn.qualname}, outside of this thread,", 0.55
        if theirs and not mine and not change.locks & loop.locks:
            return change, f"{change.fn.qualname}, in another thread,", 0.6
    return None


def _may_come_later(change: Access, facts: Facts) -> bool:
    """A public method that does not itself start the threads: it may be called while they run."""
    name = change.fn.name
    starts = any(last(call.func) == "start" for call in change.fn.calls)
    return not name.startswith("_") and not starts and not ends(change.fn) and change.fn is not facts.module.top


def _tell(loop: Access, change: Access, who: str, confidence: float) -> Finding:
    return finding(
        loop.node,
        loop.fn,
        f"{loop.thing} is gone through here, while {who} changes its size (line {change.line})",
        [
            Step("thread A", loop.line, f"{loop.fn.qualname} goes through {loop.thing}"),
            Step("thread B", change.line, f"{change.fn.qualname} adds or removes an item"),
            Step("thread A", loop.line, "RuntimeError: changed size during iteration"),
        ],
        "go through a copy, list(...), taken under the lock",
        loop.thing,
        confidence,
    )


RULE = Rule(
    "PC404",
    "unguarded-iteration",
    "something gone through while another thread changes its size",
    find,
    bad="""
        import threading

        class Cache:
            def __init__(self):
                self._lock = threading.Lock()
                self._data = {}

            def put(self, key, value):
                with self._lock:
                    self._data[key] = value

            def total(self):
                return sum(value for value in self._data.values())
    """,
    good="""
        import threading

        class Cache:
            def __init__(self):
                self._lock = threading.Lock()
                self._data = {}

            def put(self, key, value):
                with self._lock:
                    self._data[key] = value

            def total(self):
                with self._lock:
                    return sum(value for value in self._data.values())
    """,
    needs=("ock", "utex", "hread", "weakref", "gc.callbacks"),
)
