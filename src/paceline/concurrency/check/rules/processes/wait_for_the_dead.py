"""A wait without a timeout for a child process that may be dead.

A process can die without sending anything: out of memory, by a signal, by an exception. A parent that then waits for
its event or its result without a timeout waits for ever. Wait with a timeout and check that the child is alive, or
wait for its `sentinel` too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted
from paceline.concurrency.check.values.bindings import start_arguments

LOOKS = ("is_alive", "exitcode", "sentinel", "sentinels")


def find(facts: Facts) -> Iterator[Finding]:
    """Report waits for what a child process must send, in functions that never check the child."""
    module = facts.module
    shared: dict[str, ast.Call] = {}
    for fn in module.functions:
        for call in fn.calls:
            if module.constructed_kind(call, fn) == "Process":
                for value in start_arguments(call, fn):
                    resource = module.resource(value, fn)
                    if resource is not None and resource.kind in ("ProcessEvent", "ProcessQueue"):
                        shared[resource.id] = call
    if not shared:
        return
    for fn in module.functions:
        if any(tag.startswith("process:") for tag in facts.reached.get(id(fn), ())):
            continue
        if any(a.attr in LOOKS for a in fn.attributes):
            continue
        reported: set[str] = set()
        for effect in facts.walker.effects(fn):
            resource = effect.resource
            if (
                effect.kind != "wait"
                or effect.timeout
                or resource is None
                or resource.id not in shared
                or resource.id in reported
            ):
                continue
            if not dotted(effect.node).endswith(("get()", "wait()")):
                continue
            reported.add(resource.id)
            yield _report(fn, effect.node, resource.id, effect.waits_for, shared[resource.id])


def _report(fn: Function, at: ast.expr, resource: str, what: str, started: ast.Call) -> Finding:
    return finding(
        at,
        fn,
        f"{text_of(at)} waits without a timeout for the process started at line {started.lineno}: if that "
        "dies, the wait never ends",
        [
            Step("the child", started.lineno, "dies: out of memory, by a signal, by an exception"),
            Step("the parent", at.lineno, f"waits for {what}, without a timeout"),
        ],
        remedy="wait with a timeout, in a loop that checks that the child is alive",
        about=resource,
        confidence=0.6,
    )


RULE = Rule(
    "PC206",
    "wait-for-the-dead",
    "a wait without a timeout for a child process that may be dead",
    find,
    bad="""
        import multiprocessing

        class Writer:
            def __init__(self, work):
                self.done = multiprocessing.Event()
                self.child = multiprocessing.Process(target=work, args=(self.done,))
                self.child.start()

            def commit(self):
                self.done.wait()
    """,
    good="""
        import multiprocessing

        class Writer:
            def __init__(self, work):
                self.done = multiprocessing.Event()
                self.child = multiprocessing.Process(target=work, args=(self.done,))
                self.child.start()

            def commit(self):
                while not self.done.wait(timeout=5):
                    if not self.child.is_alive():
                        raise RuntimeError("the writer died")
    """,
    needs=("Process",),
)
