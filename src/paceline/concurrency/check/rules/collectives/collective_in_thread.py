"""A collective of the default group in a thread of its own.

Ranks match their collectives by order. The collectives of a thread fall between those of the main thread in an order
that differs from rank to rank. A thread needs a process group of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import RANK_WORDS
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts


def find(facts: Facts) -> Iterator[Finding]:
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
            yield finding(
                collective.call,
                fn,
                f"{text_of(collective.call)} runs in a thread and {text_of(outside[1].call)} at line "
                f"{outside[1].call.lineno} outside it, both in the default group: their order differs between ranks",
                [
                    Step("rank 0", collective.call.lineno, f"its thread calls {text_of(collective.call)} first"),
                    Step("rank 1", outside[1].call.lineno, f"its main thread calls {text_of(outside[1].call)} first"),
                ],
                remedy="give the thread a process group of its own (new_group), created by all ranks before the thread "
                "starts",
                about=text_of(collective.call),
                confidence=0.6,
            )
            return


RULE = Rule(
    "PC507",
    "collective-in-thread",
    "a collective of the default group in a thread",
    find,
    bad="""
        import threading
        import torch.distributed as dist

        def report(value):
            dist.all_reduce(value)

        def train(steps, value):
            threading.Thread(target=report, args=(value,)).start()
            for step in steps:
                dist.all_reduce(step)
    """,
    good="""
        import threading
        import torch.distributed as dist

        def report(value, group):
            dist.all_reduce(value, group=group)

        def train(steps, value):
            group = dist.new_group()
            threading.Thread(target=report, args=(value, group)).start()
            for step in steps:
                dist.all_reduce(step)
    """,
    needs=RANK_WORDS,
)
