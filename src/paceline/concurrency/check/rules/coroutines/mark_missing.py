"""A queue whose reader ends with an end mark that does not come."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.rules.endings import ends_by
from paceline.concurrency.check.rules.rule import Witness, queue_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import is_constant, short_name
from paceline.concurrency.check.syntax.tree import parent
from paceline.concurrency.check.threads.roots import in_loop

Put = tuple[Function, ast.Call]


def find(facts: Facts) -> Iterator[Witness]:
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
            yield Witness(filled[0][1], filled[0][0], caller=fn, queue=queue, mark=mark, get=get)
        elif fn.cls is not None and _hands_on(fn, mark, filled):
            others = [(f, c) for f, c in marks if f is not fn]
            if len(others) == 1 and not in_loop(others[0][1], others[0][0]):
                put = next(c for f, c in filled if f is fn)
                yield Witness(get, fn, "kept", text=mark, queue=queue, put=put, mark=others[0])


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
