"""Futures and queues whose waiters get no answer, or two."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import is_limited
from paceline.concurrency.check.libraries.catalogue import PUTS
from paceline.concurrency.check.rules.endings import ends_by
from paceline.concurrency.check.rules.rule import Witness, queue_uses
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.graph import catches_all
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    is_constant,
    keyword,
    parent,
    short_name,
)
from paceline.concurrency.check.threads.accesses import GROWS
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.threads.shared_state import is_caught
from paceline.concurrency.check.values.sources import TAKES, attribute_of, makes_future, parts

SETS = ("set_result", "set_exception")
ASKS = ("done", "cancelled")
GIVES_UP = {"wait_for", "timeout", "cancel", "wait", "move_on_after", "fail_after"}


def future_set_twice(facts: Facts) -> Iterator[Witness]:
    """Report set_result and set_exception of futures that wait in a container, without a check."""
    module = facts.module
    if "asyncio" not in {origin.partition(".")[0] for origin in module.imports.values()}:
        return
    for fn in module.functions:
        reported: set[str] = set()
        for call in fn.calls:
            if short_name(call.func) not in SETS or not isinstance(call.func, ast.Attribute):
                continue
            name = dotted(call.func.value)
            if name in reported or _asked(name, call, fn) or is_caught(call, "InvalidStateError"):
                continue
            # A future is completed twice only where its waiter may cancel it, or another method completes it.
            waits = _waits(call.func.value, fn) and (_given_up(facts) or _completed_by_others(call.func.value, fn))
            if waits or _awaited(call.func.value, fn):
                reported.add(name)
                yield Witness(call, fn, name=name)


def _waits(node: ast.expr, fn: Function) -> bool:
    """Whether a future comes out of a container or attribute of the object, where its waiter has left it."""
    value = fn.bound.get(node.id) if isinstance(node, ast.Name) else node
    if isinstance(value, ast.Call):
        return short_name(value.func) in TAKES and dotted(value.func).startswith(f"{fn.self_name}.") and bool(fn.cls)
    if isinstance(value, ast.Subscript):
        return dotted(value.value).startswith(f"{fn.self_name}.") and bool(fn.cls)
    looped = fn.looped.get(node.id) if isinstance(node, ast.Name) else None
    return looped is not None and dotted(looped).startswith(f"{fn.self_name}.") and bool(fn.cls)


def _completed_by_others(node: ast.expr, fn: Function) -> bool:
    """Whether a future stays in its container when it is completed, and another method completes those in there."""
    attribute = attribute_of(node, fn)
    container = f"{fn.self_name}.{attribute}"
    takes = [
        c for c in fn.calls if dotted(c.func) in (f"{container}.pop", f"{container}.popleft", f"{container}.remove")
    ]
    deletes = [s for s in fn.subscripts if dotted(s.value) == container and isinstance(s.ctx, ast.Del)]
    if not attribute or takes or deletes or fn.cls is None:
        return False
    others = [(m, c) for m in fn.cls.methods.values() if m is not fn for c in m.calls]
    return any(
        isinstance(c.func, ast.Attribute)
        and c.func.attr in (*SETS, "cancel")
        and attribute_of(c.func.value, m) == attribute
        for m, c in others
    )


def _awaited(node: ast.expr, fn: Function) -> bool:
    """Whether this comes from an attribute with futures that coroutines await, whose tasks may be cancelled.

    That a coroutine takes its future away when it is cancelled is no help: others run between `cancel()` and its turn.
    """
    if fn.cls is None or not fn.self_name:
        return False
    attribute = attribute_of(node, fn)
    others = [m for m in fn.cls.methods.values() if m is not fn]
    if not attribute or any(_awaits(attribute, m) for m in others):
        return bool(attribute)
    return any(_keeps(attribute, m) for m in others) and any(_gives_up(attribute, m) for m in others)


def _keeps(attribute: str, fn: Function) -> bool:
    """Whether a method makes a future and stores it in this attribute, possibly beside something else."""
    futures = {dotted(t) for t, v in fn.assigns if makes_future(v)}
    stored = [v for t, v in fn.assigns if dotted(t) == f"{fn.self_name}.{attribute}"]
    return any(dotted(part) in futures or makes_future(part) for v in stored for part in parts(v))


def _gives_up(attribute: str, fn: Function) -> bool:
    """Whether a coroutine waits with a timeout for what this attribute holds."""
    calls = [a.value for a in fn.awaits if isinstance(a.value, ast.Call) and a.value.args]
    timed = [c for c in calls if short_name(c.func) == "wait_for" or keyword(c, "timeout") is not None]
    return any(isinstance(c.args[0], ast.Name) and attribute_of(c.args[0], fn) == attribute for c in timed)


def _awaits(attribute: str, fn: Function) -> bool:
    """Whether a coroutine makes a future, keeps it in this attribute, and awaits it."""
    container = f"{fn.self_name}.{attribute}"
    values = fn.cls.values.get(attribute, ()) if fn.cls is not None else ()
    names = {dotted(t) for t, v in fn.assigns if makes_future(v)} | {container for v, _ in values if makes_future(v)}
    names |= {dotted(t) for t, v in fn.assigns if dotted(v) == container and container in names}
    stored = [v for t, v in fn.assigns if dotted(t) in (container, f"{container}[]")]
    put = {dotted(part) for v in stored for part in parts(v)}
    put |= {
        dotted(c.args[0]) for c in fn.calls if c.args and dotted(c.func) in (f"{container}.append", f"{container}.add")
    }
    if container not in names and not names & put:
        return False
    return any(dotted(a.value) in names or _timed(a.value, names) for a in fn.awaits)


def _timed(node: ast.expr, names: set[str]) -> bool:
    """Whether this is `wait_for(future, seconds)`."""
    return isinstance(node, ast.Call) and short_name(node.func) == "wait_for" and dotted(node.args[0]) in names


def _asked(name: str, call: ast.Call, fn: Function) -> bool:
    """Whether the function asks before the call whether the future is done."""
    is_checked = any(
        short_name(c.func) in ASKS and dotted(getattr(c.func, "value", c.func)) == name and c.lineno <= call.lineno
        for c in fn.calls
    )
    return is_checked or _suppressed(call)


def _suppressed(call: ast.Call) -> bool:
    around = enclosing(call, ast.With)
    return isinstance(around, ast.With) and any("suppress" in dotted(i.context_expr) for i in around.items)


def _given_up(facts: Facts) -> bool:
    """Whether this file makes futures of a loop, and waits with a timeout or cancels anything."""
    called = {short_name(c.func) for c, _ in facts.module.calls}
    return bool(called & {"create_future", "Future"}) and bool(called & GIVES_UP)


RECEIVES = ("data_received", "datagram_received")
#: What a function may do with a container of futures without looking at those that are left.
BY_KEY = {"get", "setdefault", "popleft", "append", "appendleft", "add", "remove", "discard"}


def left_waiting(facts: Facts) -> Iterator[Witness]:
    """Report containers of awaited futures of which only a loop that may end completes any."""
    for cls in facts.module.classes.values():
        methods = [fn for fn in facts.module.functions if fn.cls is cls and fn.self_name]
        for attribute in cls.values:
            waits = [wait for fn in methods if (wait := _kept_and_awaited(attribute, fn)) is not None]
            # Anything that goes over the whole container may fail the futures that are left in it.
            if not waits or any(_sees_all(attribute, fn) for fn in methods):
                continue
            answers = [fn for fn in methods if any(_answers(c, attribute, fn) for c in fn.calls)]
            ends = [end for fn in answers if (end := _ends(fn, cls, facts)) is not None]
            # Another answerer that goes on would complete the rest.
            if answers and len(ends) == len(answers):
                (fn, at), waiter = ends[0], waits[0]
                yield Witness(
                    at,
                    fn,
                    cls=cls,
                    attribute=attribute,
                    waiter=waiter,
                    wait_line=waiter[1].lineno,
                    line=getattr(at, "lineno", fn.line),
                )


def _kept_and_awaited(attribute: str, fn: Function) -> tuple[Function, ast.Await] | None:
    """Where a coroutine awaits, without a timeout, a future that it has put into an attribute of its object."""
    container = f"{fn.self_name}.{attribute}"
    futures = {dotted(t) for t, v in fn.assigns if makes_future(v)}
    entries = {dotted(part) for t, v in fn.assigns if dotted(t) == f"{container}[]" for part in parts(v)}
    entries |= {
        dotted(part)
        for call in fn.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in GROWS and dotted(call.func.value) == container
        for argument in call.args
        for part in parts(argument)
    }
    waits = (w for w in fn.awaits if dotted(w.value) in futures & entries - {""} and not is_limited(w))
    return next(((fn, wait) for wait in waits), None)


def _sees_all(attribute: str, fn: Function) -> bool:
    """Whether a function does more with the container than to store and take single futures: it may fail the rest."""
    for node in fn.attributes:
        if node.attr != attribute or not isinstance(node.ctx, ast.Load):
            continue
        up = parent(node)
        if isinstance(up, ast.Subscript) and up.value is node:
            continue
        call = parent(up) if isinstance(up, ast.Attribute) else None
        is_method = isinstance(up, ast.Attribute) and isinstance(call, ast.Call) and call.func is up
        if is_method and (up.attr in BY_KEY or (up.attr == "pop" and call.args)):  # type: ignore[union-attr]
            assert call is not None
            looped = enclosing(call, ast.While)
            if isinstance(looped, ast.While) and any(dotted(n) == dotted(node) for n in ast.walk(looped.test)):
                return True  # `while self.waiting: self.waiting.popleft()`
            continue
        if isinstance(up, ast.Compare) or (isinstance(up, ast.Call) and short_name(up.func) == "len"):
            continue
        if isinstance(up, ast.If | ast.UnaryOp):
            continue
        return True
    return any(isinstance(n.ctx, ast.Store) and n.attr == attribute and fn.name != "__init__" for n in fn.attributes)


def _answers(call: ast.Call, attribute: str, fn: Function) -> bool:
    """Whether a call completes a future out of this container."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "set_result"
    return named and attribute_of(call.func.value, fn) == attribute  # type: ignore[attr-defined]


def _ends(fn: Function, cls: Class, facts: Facts) -> tuple[Function, ast.AST] | None:
    """Where the loop in which a function answers may end, or what is called while a connection is open."""
    if fn.name in RECEIVES and any(base.rpartition(".")[2].endswith("Protocol") for base in cls.bases):
        return fn, fn.node
    for caller, call in ((fn, None), *((c, e.effect.node) for c, e in facts.callers.get(id(fn), ()))):
        sets = [c for c in caller.calls if short_name(c.func) == "set_result"] if call is None else [call]
        for at in sets:
            loop = enclosing(at, ast.While, ast.AsyncFor)
            if not caller.asynchronous or not isinstance(loop, ast.While | ast.AsyncFor):
                continue
            leaves = (n for n in ast.walk(loop) if isinstance(n, ast.Break | ast.Return))
            if (exit_node := next(leaves, None)) is not None:
                return caller, exit_node
            if isinstance(loop, ast.AsyncFor) or not _holds(loop):
                return caller, loop
    return None


def _holds(loop: ast.While) -> bool:
    """Whether a loop continues whatever is raised in it."""
    tried = [s for s in loop.body if isinstance(s, ast.Try)]
    return len(loop.body) == 1 and bool(tried) and any(catches_all(h) for h in tried[0].handlers)


def mark_missing(facts: Facts) -> Iterator[Witness]:
    """Report queues of tasks that end by a mark which no function puts, or which a stage does not pass on."""
    for fn in (fn for fn in facts.module.functions if fn.asynchronous):
        for queue, mark, get in ends_by(fn, facts):
            filled = [put for put in queue_uses(facts, PUTS, queue) if put.call.args]
            # A queue that nothing here fills is fed by others, and a task that is cancelled needs no mark.
            if not filled or not _is_awaited(fn, facts):
                continue
            marks = [put for put in filled if _may_be(put.call.args[0], mark, put.fn)]
            others = [put for put in marks if put.fn is not fn]
            mine = [put.call for put in filled if put.fn is fn]
            if not marks:
                yield Witness(filled[0].call, filled[0].fn, caller=fn, queue=queue, mark=mark, get=get)
            elif fn.cls is None or not mine or not all(_is_for_the_next(call, mark) for call in mine):
                continue
            elif len(others) == 1 and not in_loop(others[0].call, others[0].fn):
                yield Witness(get, fn, "kept", text=mark, queue=queue, put=mine[0], mark=others[0])


def _is_awaited(fn: Function, facts: Facts) -> bool:
    """Whether the end of a coroutine is waited for: it runs as a task that is not cancelled."""
    roots = [root for root in facts.roots if root.function is fn and root.kind == "task"]
    return bool(roots) and not any(short_name(c.func) == "cancel" for c, _ in facts.module.calls)


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


def _is_for_the_next(put: ast.Call, mark: str) -> bool:
    """Whether a stage puts what it makes of an item into the queue of the next stage: `self.next.inbox`."""
    owner = getattr(put.func, "value", put)
    return (
        ast.unparse(put.args[0]) != mark and isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Attribute)
    )
