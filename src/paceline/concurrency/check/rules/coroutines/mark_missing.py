"""A queue whose reader ends with an end mark that does not come.

A coroutine takes items out of a queue until it gets the mark (`None`, `STOP`), and its caller waits for that. Where no
function puts the mark into this queue, or where the stage before keeps the mark that it has got to itself, the reader
waits for ever. The last producer has to put it, and each stage has to pass it on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.rules.endings import ends_by
from paceline.concurrency.check.rules.rule import Rule, finding, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import is_constant, short_name
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.threads.roots import in_loop
from paceline.narrative import Wait

Put = tuple[Function, ast.Call]


def find(facts: Facts) -> Iterator[Finding]:
    """Report queues of tasks that end by a mark which no function puts, or which a stage does not pass on."""
    readers = [(fn, *end) for fn in facts.module.functions if fn.asynchronous for end in ends_by(fn, facts)]
    puts: dict[str, list[Put]] = {}
    for fn in facts.module.functions if readers else ():
        for call in fn.calls:
            if call.args and (queue := queue_of(call, PUTS, fn, facts)):
                puts.setdefault(queue, []).append((fn, call))
    for fn, queue, mark, get in readers:
        filled = puts.get(queue, [])
        if not filled or not _is_awaited(fn, facts):
            continue
        marks = [(f, c) for f, c in filled if _may_be(c.args[0], mark, f)]
        if not marks:
            yield _report(fn, get, filled[0], queue, mark)
        elif fn.cls is not None and _hands_on(fn, mark, filled):
            others = [(f, c) for f, c in marks if f is not fn]
            if len(others) == 1 and not in_loop(others[0][1], others[0][0]):
                put = next(c for f, c in filled if f is fn)
                yield _report_kept(fn, get, put, others[0], queue, mark)


def _is_awaited(fn: Function, facts: Facts) -> bool:
    """Whether the end of a coroutine is waited for: it runs as a task that is not cancelled."""
    roots = [root for root in facts.roots if root.function is fn and root.kind == "task"]
    return bool(roots) and not any(short_name(c.func) == "cancel" for f in facts.module.functions for c in f.calls)


def _may_be(value: ast.expr, mark: str, fn: Function) -> bool:
    """Whether what is put may be the mark: itself, or a value that is not known."""
    if ast.unparse(value) == mark:
        return True
    binding = fn.bound.get(value.id, value) if isinstance(value, ast.Name) else value
    binding = binding.value if isinstance(binding, ast.Await) else binding
    looped = isinstance(value, ast.Name) and value.id in fn.looped
    if mark != "None":
        return isinstance(value, ast.Name) and not looped and binding is value
    plain = isinstance(binding, ast.Tuple | ast.List | ast.Dict | ast.JoinedStr | ast.BinOp | ast.Compare)
    return not (plain or looped or (isinstance(binding, ast.Constant) and not is_constant(binding, None)))


def _hands_on(fn: Function, mark: str, filled: list[Put]) -> bool:
    """Whether a stage puts what it makes of an item into the queue of the next stage, which runs the same code."""
    puts = [call for f, call in filled if f is fn]
    return (
        bool(puts) and all(ast.unparse(call.args[0]) != mark for call in puts) and all(_of_other(c, fn) for c in puts)
    )


def _of_other(call: ast.Call, fn: Function) -> bool:
    """Whether this is the queue of another object than the function's own: `self.next.inbox`."""
    owner = getattr(call.func, "value", call)
    return isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Attribute) and parent(owner) is call.func


def _report(fn: Function, get: ast.Call, put: Put, queue: str, mark: str) -> Finding:
    other, call = put
    return finding(
        call,
        other,
        f"{fn.qualname} takes items out of {queue} until it gets {mark} (line {get.lineno}), and nothing puts {mark} "
        "into it: it waits for ever after the last item",
        [
            Step("task A", call.lineno, f"{other.qualname} puts the last item by {text_of(call)}"),
            Step("task B", get.lineno, f"{fn.qualname} takes it, and waits for the next one for ever"),
        ],
        remedy=f"put {mark} into {queue} after the last item, in a `finally`",
        about=queue,
        confidence=0.6,
        waits=[Wait("task B", "took the last item", f"put {mark}", "task A, which has ended")],
    )


def _report_kept(fn: Function, get: ast.Call, put: ast.Call, mark: Put, queue: str, text: str) -> Finding:
    return finding(
        get,
        fn,
        f"{fn.qualname} ends when it takes {text} out of {queue}, and does not pass it on to the next stage, which "
        f"gets its items by {text_of(put)} (line {put.lineno}): the next stage waits for ever",
        [
            Step("task A", mark[1].lineno, f"{mark[0].qualname} puts {text} into the first queue"),
            Step("task B", get.lineno, f"{fn.qualname} takes it, and ends"),
            Step("task C", get.lineno, f"{fn.qualname} of the next stage waits for an item, and none comes"),
        ],
        remedy=f"put {text} into the next queue before the end",
        about=queue,
        confidence=0.6,
        waits=[Wait("task C", "took the last item", f"pass {text} on", "task B, which has ended")],
    )


RULE = Rule(
    "PC318",
    "mark-missing",
    "a queue whose reader ends with an end mark that does not come",
    find,
    bad="""
        import asyncio

        async def produce(items, queue):
            for item in items:
                await queue.put(item)

        async def consume(queue):
            while True:
                item = await queue.get()
                if item is None:
                    break
                print(item)

        async def main(items):
            queue = asyncio.Queue()
            await asyncio.gather(produce(items, queue), consume(queue))
    """,
    good="""
        import asyncio

        async def produce(items, queue):
            for item in items:
                await queue.put(item)
            await queue.put(None)

        async def consume(queue):
            while True:
                item = await queue.get()
                if item is None:
                    break
                print(item)

        async def main(items):
            queue = asyncio.Queue()
            await asyncio.gather(produce(items, queue), consume(queue))
    """,
    needs=("Queue",),
)
