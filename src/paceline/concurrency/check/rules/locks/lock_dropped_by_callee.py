"""A lock that a callee releases in the middle of its caller's critical section.

The caller holds the lock in a `with` and relies on holding it throughout; the function that it calls releases the lock
and takes it again. In between another thread may change what the caller has just checked, and an exception there makes
the caller's own release fail.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    """Report functions that release and retake a lock which a caller holds in a `with`."""
    for fn in facts.module.functions:
        for lock, free in facts.drops(fn).items():
            again = next(
                (
                    m
                    for m, _ in facts.events(fn)
                    if m.kind == "take" and m.resource and m.resource.id == lock and m.line > free.line
                ),
                None,
            )
            if again is None:
                continue
            for caller, event in facts.callers.get(id(fn), ()):
                lock_held = next((h for h in event.held if h.resource.id == lock and h.by_with), None)
                if lock_held is None:
                    continue
                yield finding(
                    free.node,
                    fn,
                    f"{lock} is released here and taken again at line {again.line}, but {caller.qualname} "
                    f"holds it around the call at line {event.effect.line}",
                    [
                        Step("thread A", lock_held.line, f"{caller.qualname} takes {lock} for a whole block"),
                        Step("thread A", event.effect.line, f"calls {text_of(event.effect.node)}"),
                        Step("thread A", free.line, f"{fn.qualname} releases {lock}"),
                        Step("thread B", lock_held.line, "takes it, and changes what thread A is working on"),
                    ],
                    remedy="do the work that needs the lock released after the block, or make the lock re-entrant and "
                    "keep it",
                    about=lock,
                    confidence=0.8,
                )
                break


RULE = Rule(
    "PC107",
    "lock-dropped-by-callee",
    "a lock that a callee releases inside its caller's block",
    find,
    bad="""
        import threading

        class Client:
            def __init__(self):
                self._lock = threading.Lock()
                self._sent = []

            def acknowledge(self, index):
                with self._lock:
                    if index < len(self._sent):
                        self._done(index)

            def _done(self, index):
                self._lock.release()
                print("done", index)
                self._lock.acquire()
                self._sent.pop(index)
    """,
    good="""
        import threading

        class Client:
            def __init__(self):
                self._lock = threading.Lock()
                self._sent = []

            def acknowledge(self, index):
                with self._lock:
                    found = index < len(self._sent)
                    if found:
                        self._sent.pop(index)
                if found:
                    print("done", index)
    """,
    needs=("release",),
)
