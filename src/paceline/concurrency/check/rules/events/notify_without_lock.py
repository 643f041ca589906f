"""A condition that is notified by a thread which does not hold it."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts


def find(facts: Facts) -> Iterator[Witness]:
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
                yield Witness(call, fn, resource=resource, condition=text_of(call).rpartition(".")[0])
