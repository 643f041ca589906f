"""A signal handler that takes a lock, prints or logs.

Python runs a signal handler in the main thread between any two bytecode instructions: also while that thread holds the
lock that the handler wants, or is writing to the same buffered stream, which then raises `reentrant call`. A handler
that sets a flag, writes to a descriptor with `os.write`, or ends the process is safe.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts, call_steps
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name

Steps = tuple[tuple[Function, ast.expr], ...]
DEPTH = 3
ENDS = ("exit", "_exit", "abort", "kill", "terminate")
LOGS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")


def find(facts: Facts) -> Iterator[Finding]:
    """Report locks, queues, prints and logging in functions that handle signals."""
    for root in facts.roots:
        if root.kind != "signal":
            continue
        for take in facts.takes(root.function).values():
            if take.resource.non_reentrant and take.resource.sure:
                where, node = take.steps[-1]
                lock = take.resource.id
                yield finding(
                    node,
                    where,
                    f"{lock} is taken in a signal handler: if the main thread holds it when the signal arrives, it "
                    "waits for itself",
                    [
                        Step("main thread", take.resource.line or root.line, f"holds {lock} when the signal arrives"),
                        *call_steps("main thread", take.steps, f"waits for {lock}, which its own thread holds"),
                    ],
                    remedy="let the handler set a flag or write a byte, and do the work in the main loop",
                    about=lock,
                    confidence=0.85,
                )
        yield from _queues(root.function, facts)
        if not _ends(root.function):
            yield from _writes(root.function, (), facts, set())


def _queues(fn: Function, facts: Facts) -> Iterator[Finding]:
    """Uses of a queue.Queue in the handler."""
    for call in fn.calls:
        if short_name(call.func) not in ("put", "get", "put_nowait", "get_nowait") or not isinstance(
            call.func, ast.Attribute
        ):
            continue
        resource = facts.module.resource(call.func.value, fn)
        if resource is not None and resource.kind == "Queue" and resource.sure:
            yield finding(
                call,
                fn,
                f"{text_of(call)} in a signal handler: the queue has an internal lock, which the main thread "
                "may hold when the signal arrives",
                [
                    Step(
                        "main thread",
                        resource.line or call.lineno,
                        f"is inside a method of {resource.id} when the signal arrives",
                    ),
                    Step(
                        "main thread",
                        call.lineno,
                        f"{fn.qualname} waits for the lock of the queue, which its own thread holds",
                    ),
                ],
                remedy="use queue.SimpleQueue, or write a byte to a descriptor that the main loop reads",
                about=resource.id,
                confidence=0.8,
            )


def _ends(fn: Function) -> bool:
    """Whether the handler ends the process or raises, so that no interrupted code continues."""
    final = fn.body[-1] if fn.body else None
    if isinstance(final, ast.Raise):
        return True
    return isinstance(final, ast.Expr) and isinstance(final.value, ast.Call) and short_name(final.value.func) in ENDS


def _writes(fn: Function, way: Steps, facts: Facts, visited: set[int]) -> Iterator[Finding]:
    """The first write to a buffered stream, in the handler or its callees."""
    if len(way) >= DEPTH or id(fn) in visited:
        return
    visited.add(id(fn))
    for call in fn.calls:
        name = dotted(call.func)
        buffered = name in ("sys.stdout.write", "sys.stderr.write", "sys.stdout.flush", "sys.stderr.flush")
        if (
            name == "print"
            or buffered
            or (
                short_name(call.func) in LOGS
                and name.split(".")[0].lower() in ("logging", "log", "logger", "_log", "_logger")
            )
        ):
            steps = (*way, (fn, call))
            yield finding(
                call,
                fn,
                f"{text_of(call)} in a signal handler: if the signal arrives while the main thread is writing to "
                "the same stream, it raises or waits for itself",
                [
                    Step("main thread", call.lineno, "is writing to the stream when the signal arrives"),
                    *call_steps("main thread", steps, f"writes to the same stream by {text_of(call)}"),
                ],
                remedy="set a flag and print in the main loop, or write to the descriptor with os.write",
                about=text_of(call),
                confidence=0.55,
            )
            return
    for effect in facts.runs(fn):
        assert effect.callee is not None
        yield from _writes(effect.callee, (*way, (fn, effect.node)), facts, visited)


RULE = Rule(
    "PC112",
    "signal-handler",
    "a signal handler that takes a lock, prints or logs",
    find,
    bad="""
        import signal

        stopping = False

        def stop(number, frame):
            global stopping
            print("stopping after this batch")
            stopping = True

        signal.signal(signal.SIGTERM, stop)
    """,
    good="""
        import os
        import signal

        stopping = False

        def stop(number, frame):
            global stopping
            os.write(2, b"stopping after this batch")
            stopping = True

        signal.signal(signal.SIGTERM, stop)
    """,
    needs=("signal",),
)
