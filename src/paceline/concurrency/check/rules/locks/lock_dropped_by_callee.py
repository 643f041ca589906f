"""A lock that a callee releases in the middle of its caller's critical section."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts


def find(facts: Facts) -> Iterator[Witness]:
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
                yield Witness(
                    free.node, fn, lock=lock, again=again, caller=caller, event=event, lock_held=lock_held, free=free
                )
                break
