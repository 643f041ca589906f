"""A collective of the default group in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts


def find(facts: Facts) -> Iterator[Witness]:
    """Report collectives of the default group in a thread, if there are others outside it."""
    module, sequences = facts.module, facts.sequences
    if not facts.has_threads:
        return
    everywhere = [
        (fn, c) for fn in module.functions for call in fn.calls if (c := sequences.collective(call, fn)) and not c.group
    ]
    outside = next(((fn, c) for fn, c in everywhere if not facts.threads_of(fn)), None)
    if outside is None:
        return
    for fn, collective in everywhere:
        if facts.threads_of(fn) and not any(other is fn for other, event in facts.callers.get(id(fn), ())):
            yield Witness(collective.call, fn, outside=outside)
            return
