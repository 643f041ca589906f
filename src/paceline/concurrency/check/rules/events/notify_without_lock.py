"""A condition that is notified by a thread which does not hold it.

`notify()` without the condition's lock raises RuntimeError. Where the state was changed without the lock as well, a
waiter that has just checked it misses the change.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding, resource_of
from paceline.concurrency.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
    """Report notifications in public functions that hold nothing."""
    for fn in facts.module.functions:
        if fn.name.startswith("_") or "notify" in fn.name or fn.name.endswith("locked"):
            continue  # the callers may hold it
        for call in fn.calls:
            resource = resource_of(call, ("notify", "notify_all", "notifyAll"), fn, facts)
            if resource is None or resource.kind not in ("Condition", "AsyncCondition") or not resource.sure:
                continue
            called = any(event.held for _, event in facts.callers.get(id(fn), ()))
            if not facts.held_at(call, fn) and not called:
                yield finding(
                    call,
                    fn,
                    f"{text_of(call)} is called without {resource.id}, which raises RuntimeError; the waiting "
                    "threads are "
                    "not woken up",
                    [
                        Step("thread A", call.lineno, f"waits for {resource.id}"),
                        Step("thread B", call.lineno, f"{fn.qualname} notifies without holding it: RuntimeError"),
                    ],
                    remedy=f"change the state and notify under `with {text_of(call).rpartition('.')[0]}:`",
                    about=resource.id,
                    confidence=0.8,
                )


RULE = Rule(
    "PC213",
    "notify-without-lock",
    "a condition that is notified by a thread which does not hold it",
    find,
    bad="""
        import threading

        class Gate:
            def __init__(self):
                self.changed = threading.Condition()
                self.open = False

            def pass_through(self):
                with self.changed:
                    while not self.open:
                        self.changed.wait()

            def unlock(self):
                self.open = True
                self.changed.notify_all()
    """,
    good="""
        import threading

        class Gate:
            def __init__(self):
                self.changed = threading.Condition()
                self.open = False

            def pass_through(self):
                with self.changed:
                    while not self.open:
                        self.changed.wait()

            def unlock(self):
                with self.changed:
                    self.open = True
                    self.changed.notify_all()
    """,
    needs=("notify",),
)
