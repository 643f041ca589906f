"""A thread that joins itself.

A thread that stops its own object by a method which joins that very thread would wait for its own end; `join()` raises
RuntimeError instead, in the middle of the clean-up. So does a task that shuts its own executor down. Such a method asks
first which thread it runs in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.flow.effects import text_of
from paceline.check.reporting.findings import Finding
from paceline.check.rules.rule import Rule, finding, resource_of
from paceline.check.summaries import Facts, Wait, call_steps
from paceline.check.syntax.declarations import Function
from paceline.check.syntax.names import keyword, short_name

ASKS = {"current_thread", "currentThread", "get_ident", "ident"}


def find(facts: Facts) -> Iterator[Finding]:
    """Report joins of the only thread that runs a function, and of executors, reached from that function or task."""
    for fn in facts.module.functions:
        for call in fn.calls:
            pool = resource_of(call, ("submit",), fn, facts)
            task = facts.module.function_named(call.args[0], fn) if pool is not None and call.args else None
            for wait in facts.waits(task).values() if task is not None and pool is not None else ():
                ended = wait.effect.resource
                where, node = wait.steps[-1]
                if ended is not None and ended.kind == "Executor" and ended.id == pool.id and not _asks(wait):  # type: ignore[union-attr]
                    yield _report(task, wait, node, where)  # type: ignore[arg-type]
    for root in facts.roots:
        if root.kind != "thread" or root.several:
            continue
        for wait in facts.waits(root.function).values():
            fn, node = wait.steps[-1]
            found = wait.effect.resource
            if (
                found is None
                or found.kind != "Thread"
                or _asks(wait)
                or short_name(getattr(node, "func", node)) != "join"
            ):
                continue
            made = next((c for f in facts.module.functions for c in f.calls if c.lineno == found.line), None)
            target = keyword(made, "target", 1) if made is not None else None
            makers = [f for f in facts.module.functions if made is not None and any(c is made for c in f.calls)]
            if target is not None and any(facts.module.function_named(target, f) is root.function for f in makers):
                yield _report(root.function, wait, node, fn)


def _asks(wait: Wait) -> bool:
    """Whether something on the way asks which thread it runs in."""
    named = any(n.attr in ASKS for f, _ in wait.steps for n in f.attributes)
    return named or any(short_name(c.func) in ASKS for f, _ in wait.steps for c in f.calls)


def _report(target: Function, wait: Wait, node: ast.expr, fn: Function) -> Finding:
    return finding(
        node,
        fn,
        f"{text_of(node)} is reached from {target.qualname}, which runs in that thread: it would wait for its own end, "
        "and raises RuntimeError",
        call_steps("thread B", wait.steps, "joins the thread that it runs in"),
        "join only if `threading.current_thread() is not` the thread",
        target.qualname,
        0.75,
    )


RULE = Rule(
    "PC214",
    "joins-itself",
    "a thread that joins itself",
    find,
    bad="""
        import threading

        class Worker:
            def __init__(self, work):
                self.work = work
                self.thread = threading.Thread(target=self.run)
                self.thread.start()

            def run(self):
                self.work()
                self.stop()

            def stop(self):
                self.thread.join()
    """,
    good="""
        import threading

        class Worker:
            def __init__(self, work):
                self.work = work
                self.thread = threading.Thread(target=self.run)
                self.thread.start()

            def run(self):
                self.work()
                self.stop()

            def stop(self):
                if threading.current_thread() is not self.thread:
                    self.thread.join()
    """,
    needs=("join", "shutdown"),
)
