"""An object that is borrowed from a queue, and not put back when the work with it raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.duties import Duty, one_of
from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import awaited
from paceline.concurrency.check.threads.roots import in_loop


def find(facts: Facts) -> Iterator[Witness]:
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
                yield Witness(skipped.node.syntax or value, fn, take=value, queue=queue, back=back[0], skipped=skipped)


def _puts(call: ast.Call, queue: str, name: str, fn: Function, facts: Facts) -> bool:
    argument = call.args[0] if call.args else None
    return isinstance(argument, ast.Name) and argument.id == name and queue_of(call, PUTS, fn, facts) == queue
