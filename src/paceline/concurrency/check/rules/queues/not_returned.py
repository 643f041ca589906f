"""An object that is borrowed from a queue, and not put back when the work with it raises.

A queue of connections lends one to each thread: `get()`, work, `put()`. If the work raises, the connection is not put
back; after as many failures as there are connections every `get()` waits for ever. Put it back in a `finally`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.duties import Duty, Skipped, one_of
from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import awaited
from paceline.concurrency.check.threads.roots import in_loop


def find(facts: Facts) -> Iterator[Finding]:
    """Report objects that a function takes from a queue and puts back, though not if it raises in between."""
    for fn in facts.module.functions:
        for target, expression in fn.assigns:
            value = awaited(expression)
            if not isinstance(value, ast.Call) or not isinstance(target, ast.Name) or in_loop(value, fn):
                continue
            queue = queue_of(value, ("get",), fn, facts)
            back = [c for c in fn.calls if queue and _puts(c, queue, target.id, fn, facts) and c.lineno > value.lineno]
            if not back or has_timeout(value, "get"):
                continue
            duty = Duty(fn, one_of(back))
            starts = duty.steps(one_of([value]))
            ways = sorted(duty.left_after(starts), key=lambda s: s.node.line)
            for skipped in [s for s in ways if s.raised][:1]:
                yield _report(fn, value, back[0], skipped, queue)


def _puts(call: ast.Call, queue: str, name: str, fn: Function, facts: Facts) -> bool:
    argument = call.args[0] if call.args else None
    return isinstance(argument, ast.Name) and argument.id == name and queue_of(call, PUTS, fn, facts) == queue


def _report(fn: Function, take: ast.Call, back: ast.Call, skipped: Skipped, queue: str) -> Finding:
    line = skipped.node.line
    return finding(
        skipped.node.syntax or take,
        fn,
        f"what {text_of(take)} took from {queue} (line {take.lineno}) is put back at line {back.lineno}, but not if "
        f"this raises: once all are lost, {text_of(take)} waits for ever",
        [
            Step("thread A", take.lineno, f"{fn.qualname} takes the last object of {queue}"),
            Step("thread A", line, "raises, and does not put it back"),
            Step("thread B", take.lineno, "waits for an object for ever"),
        ],
        remedy="put it back in a `finally`",
        about=queue,
        confidence=0.7,
    )


RULE = Rule(
    "PC233",
    "not-returned",
    "an object borrowed from a queue, and not put back when the work with it raises",
    find,
    bad="""
        import queue

        class Pool:
            def __init__(self, connections):
                self.idle = queue.Queue()
                for connection in connections:
                    self.idle.put(connection)

            def query(self, text):
                connection = self.idle.get()
                rows = connection.execute(text)
                self.idle.put(connection)
                return rows
    """,
    good="""
        import queue

        class Pool:
            def __init__(self, connections):
                self.idle = queue.Queue()
                for connection in connections:
                    self.idle.put(connection)

            def query(self, text):
                connection = self.idle.get()
                try:
                    return connection.execute(text)
                finally:
                    self.idle.put(connection)
    """,
    needs=("Queue",),
)
