"""A stream of objects whose receiver waits for more, because one of its senders is never closed.

`async for` over the receiving end of a stream of anyio or trio ends once every sender is closed, clones included. A
sender that was only cloned, or handed to tasks that do not close it, keeps the receiver, and the group that waits for
it, waiting for ever. Enter it with `async with` where it was made, and each clone in the task that gets it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.rule import Rule, finding
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, short_name
from paceline.concurrency.check.syntax.tree import parent
from paceline.narrative import Wait

MAKES = ("create_memory_object_stream", "open_memory_channel")
CLOSES = ("close", "aclose")
KEEPS_OPEN = ("send", "send_nowait", "statistics", "clone")
#: Calls that start a coroutine with the arguments that follow it, and its position.
STARTS = {"start_soon": 0, "start": 0}
DEPTH = 4


def find(facts: Facts) -> Iterator[Finding]:
    """Report senders that nothing closes, of streams that a loop receives from."""
    for fn in facts.module.functions:
        for target, value in fn.assigns:
            construction = (
                value if isinstance(value, ast.Call) else value.value if isinstance(value, ast.Subscript) else None
            )
            called = (
                construction.func.value
                if isinstance(construction, ast.Call) and isinstance(construction.func, ast.Subscript)
                else None
            )
            name = short_name(called if called is not None else getattr(construction, "func", value))
            pair = target.elts if isinstance(target, ast.Tuple) and len(target.elts) == 2 else ()
            if name not in MAKES or not all(isinstance(each, ast.Name) for each in pair) or not pair:
                continue
            sender, receiver = (each.id for each in pair if isinstance(each, ast.Name))
            loop = _received(receiver, fn, facts, 0)
            if loop is not None and (leak := _left_open(sender, fn, facts, 0)) is not None:
                yield _report(fn, leak, sender, loop)


def _uses(name: str, fn: Function) -> list[ast.Name]:
    """The uses of a name in a function and in those inside it."""
    return [n for n in fn.names if n.id == name and isinstance(n.ctx, ast.Load)]


def _received(name: str, fn: Function, facts: Facts, depth: int) -> tuple[Function, ast.AsyncFor] | None:
    """The loop that takes everything out of a receiver, in a function or in one that gets it."""
    for use in _uses(name, fn):
        up = parent(use)
        if isinstance(up, ast.AsyncFor) and up.iter is use:
            return fn, up
        destination = _given(use, fn, facts) if depth < DEPTH else None
        if (
            destination is not None
            and (loop := _received(destination[1], destination[0], facts, depth + 1)) is not None
        ):
            return loop
    return None


def _given(use: ast.expr, fn: Function, facts: Facts) -> tuple[Function, str] | None:
    """The function of this file, and its parameter, that gets an argument by a call, or by the start of a task."""
    call = parent(use)
    if not isinstance(call, ast.Call) or use not in call.args:
        return None
    name, place = short_name(call.func), call.args.index(use)
    callee = facts.module.callee(call, fn)
    if callee is None and name in STARTS and call.args:
        callee, place = facts.module.function_named(call.args[0], fn), place - 1
    if callee is None or place < 0:
        return None
    parameters = list(callee.parameters)[1 if callee.cls is not None and callee.self_name else 0 :]
    return (callee, parameters[place]) if place < len(parameters) else None


def _left_open(name: str, fn: Function, facts: Facts, depth: int) -> ast.expr | None:
    """A use of a sender that nothing closes; None where something does, or where that is not known."""
    uses = _uses(name, fn)
    if any(dotted(i.context_expr).partition(".")[0] == name for w in fn.withs for i in w.items) or depth > DEPTH:
        return None
    last: ast.expr | None = None
    for use in uses:
        up = parent(use)
        if isinstance(up, ast.Attribute):
            call = parent(up)
            if up.attr in CLOSES or up.attr not in KEEPS_OPEN or not isinstance(call, ast.Call):
                return None
            last = last or use
            continue
        destination = _given(use, fn, facts)
        if destination is None or _left_open(destination[1], destination[0], facts, depth + 1) is None:
            return None
        last = last or use
    return last


def _report(fn: Function, at: ast.expr, sender: str, loop: tuple[Function, ast.AsyncFor]) -> Finding:
    other, waits = loop
    return finding(
        at,
        fn,
        f"{sender} is never closed: the loop in {other.qualname} waits for more for ever (line {waits.lineno})",
        [
            Step("task A", at.lineno, f"{fn.qualname} and the tasks that it starts come to their end"),
            Step("task B", waits.lineno, f"{other.qualname} waits for the next object, since {sender} is still open"),
        ],
        remedy=f"enter {sender} with `async with` around what uses it, also after it was cloned",
        about=sender,
        confidence=0.7,
        waits=[Wait("task B", "received everything", f"close {sender}", "task A")],
    )


RULE = Rule(
    "PC317",
    "left-open",
    "a stream of objects whose receiver waits for more, because one of its senders is never closed",
    find,
    bad="""
        import anyio

        async def produce(items, sender):
            async with sender:
                for item in items:
                    await sender.send(item)

        async def consume(receiver):
            async for item in receiver:
                print(item)

        async def main(parts):
            sender, receiver = anyio.create_memory_object_stream(8)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume, receiver)
                for part in parts:
                    tasks.start_soon(produce, part, sender.clone())
    """,
    good="""
        import anyio

        async def produce(items, sender):
            async with sender:
                for item in items:
                    await sender.send(item)

        async def consume(receiver):
            async for item in receiver:
                print(item)

        async def main(parts):
            sender, receiver = anyio.create_memory_object_stream(8)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume, receiver)
                async with sender:
                    for part in parts:
                        tasks.start_soon(produce, part, sender.clone())
    """,
    needs=("create_memory_object_stream", "open_memory_channel"),
)
