"""A child process that waits for a thread which only its parent has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.names import short_name


def find(facts: Facts) -> Iterator[Witness]:
    """Report waits of a child process for what only a thread of its parent does, where processes are forked."""
    if facts.has_threads and not any(isinstance(n, ast.Constant) and n.value == "spawn" for n in _given(facts)):
        yield from _waits(facts)


def _given(facts: Facts) -> Iterator[ast.expr]:
    """The arguments of all calls."""
    for fn in facts.module.functions:
        for call in fn.calls:
            yield from call.args


def _waits(facts: Facts) -> Iterator[Witness]:
    """A wait of a child for what a thread does that was started in the parent, and that the child does not have."""
    for root in (r for r in facts.roots if r.kind == "process"):
        tag = f"process:{root.function.qualname}"
        for wait in facts.waits(root.function).values():
            thing, (fn, node) = wait.effect.resource, wait.steps[-1]
            does = {"Queue": "task_done", "Event": "set"}.get(thing.kind) if thing is not None else None
            if does is None or (does == "task_done" and short_name(getattr(node, "func", node)) != "join"):
                continue
            waiters = [
                f
                for f in facts.module.functions
                for c in f.calls
                if (r := resource_of(c, (does,), f, facts)) is not None and r.id == thing.id  # type: ignore[union-attr]
            ]
            threads = [r for r in facts.roots if r.kind == "thread" and r.function in waiters]
            makers = [f for t in threads for f in facts.module.functions if any(c.lineno == t.line for c in f.calls)]
            if len(threads) >= len(waiters) > 0 and not any(tag in facts.reached.get(id(m), ()) for m in makers):
                yield Witness(node, fn, thread=threads[0].function, line=threads[0].line, thing=thing.id)  # type: ignore[union-attr]
