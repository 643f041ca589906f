"""A child process that waits for a thread which only its parent has.

A fork copies the thread that forks, and no other. A module that starts a worker thread when it is imported, or an
object that has one, is useless in a child: a `queue.join()` or `event.wait()` there waits for a thread that does not
exist. Start the thread on first use in each process, or again in `os.register_at_fork`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name


def find(facts: Facts) -> Iterator[Finding]:
    """Report waits of a child process for what only a thread of its parent does, where processes are forked."""
    if facts.has_threads and not any(isinstance(n, ast.Constant) and n.value == "spawn" for n in _given(facts)):
        yield from _waits(facts)


def _given(facts: Facts) -> Iterator[ast.expr]:
    """The arguments of all calls."""
    for fn in facts.module.functions:
        for call in fn.calls:
            yield from call.args


def _waits(facts: Facts) -> Iterator[Finding]:
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
                yield _report(fn, node, thing.id, threads[0].function, threads[0].line)  # type: ignore[union-attr]


def _report(fn: Function, node: ast.expr, thing: str, thread: Function, line: int) -> Finding:
    return finding(
        node,
        fn,
        f"a child process waits here for {thread.qualname}, a thread of its parent (line {line}): a fork copies no "
        "other thread, and the wait never ends",
        [
            Step("the parent", line, f"starts the thread that runs {thread.qualname}"),
            Step("the parent", line, "forks: the child has none of its threads"),
            Step("the child", node.lineno, f"waits for {thing} for ever"),
        ],
        remedy="start the thread in the child: on first use, or in os.register_at_fork()",
        about=thing,
        confidence=0.7,
    )


RULE = Rule(
    "PC238",
    "left-behind",
    "a child process that waits for a thread which only its parent has",
    find,
    bad="""
        import multiprocessing
        import queue
        import threading

        events = queue.Queue()

        def send():
            while True:
                print(events.get())
                events.task_done()

        threading.Thread(target=send, daemon=True).start()

        def work(n):
            events.put(n)
            events.join()

        def run():
            for n in range(4):
                multiprocessing.Process(target=work, args=(n,)).start()
    """,
    good="""
        import multiprocessing
        import queue
        import threading

        events = queue.Queue()

        def send():
            while True:
                print(events.get())
                events.task_done()

        def work(n):
            threading.Thread(target=send, daemon=True).start()
            events.put(n)
            events.join()

        def run():
            for n in range(4):
                multiprocessing.Process(target=work, args=(n,)).start()
    """,
    needs=("Process",),
)
