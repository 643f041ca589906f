"""Threads that are started in the wrong way, and requests to stop them that are lost."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import EVENTS
from paceline.concurrency.check.rules.rule import Witness, blocks_that_make
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, is_constant, is_within, keyword, short_name
from paceline.concurrency.check.threads.roots import STARTS, STARTS_IN_MODULE, Root
from paceline.concurrency.check.threads.shared_state import BEGINNINGS


def stop_lost(facts: Facts) -> Iterator[Witness]:
    """Report flags and events that ask a thread or task to end, and that it resets at its beginning."""
    for root in {id(r.function): r for r in facts.roots if r.kind in ("thread", "task")}.values():
        fn = root.function
        if fn.cls is None or (facts.callers.get(id(fn)) and _runs_directly(fn, facts)):
            continue
        witness = _flag(fn, facts) or _event(fn, facts)
        if witness is not None:
            yield _report(root, *witness)


def _runs_directly(fn: Function, facts: Facts) -> bool:
    """Whether the function is also called in the foreground, where nothing can come before it."""
    callers = facts.callers.get(id(fn), [])
    return any(isinstance(getattr(event.effect.node, "up", None), ast.Expr | ast.Return) for _, event in callers)


def _loop_of(fn: Function) -> ast.While | None:
    """The first loop of a function that is not inside another block but `try` and `with`."""
    loops = (n for n in fn.loops if isinstance(n, ast.While) and enclosing(n, ast.If, ast.While, ast.For) is None)
    return next(loops, None)


def _flag(fn: Function, facts: Facts) -> tuple[ast.expr, str, Function, int] | None:
    """`self.running = True` before `while self.running`, where another method assigns False."""
    loop = _loop_of(fn)
    for target, value in fn.assigns if loop is not None else ():
        name = dotted(target)
        if not name.startswith(f"{fn.self_name}.") or name.count(".") != 1 or not isinstance(value, ast.Constant):
            continue
        before = loop is not None and target.lineno < loop.lineno and enclosing(target, ast.If, ast.While) is None
        is_tested = before and any(dotted(n) == name for n in ast.walk(loop.test))  # type: ignore[union-attr]
        if not is_tested or not isinstance(value.value, bool) or _waits_before(fn, target):
            continue
        for other in _others(fn):
            theirs = name.replace(f"{fn.self_name}.", f"{other.self_name}.", 1)
            ends = (t for t, v in other.assigns if dotted(t) == theirs and is_constant(v, not value.value))
            end = next(ends, None)
            if end is not None and not _begins(other, fn):
                return target, name, other, end.lineno
    return None


def _event(fn: Function, facts: Facts) -> tuple[ast.expr, str, Function, int] | None:
    """`self.stopped.clear()` before `while not self.stopped.is_set()`, where another method sets it."""
    loop = _loop_of(fn)
    for clear in (use for use in facts.uses(("clear",), EVENTS) if use.fn is fn and loop is not None):
        asks = (use for use in facts.uses(("is_set", "isSet", "wait"), of=clear.of) if use.fn is fn)
        is_tested = loop is not None and clear.line < loop.lineno and any(_ends(use.call, loop) for use in asks)
        # An event that is cleared under a condition, or after a wait, was asked for before.
        if not is_tested or enclosing(clear.call, ast.If, ast.While) is not None or _waits_before(fn, clear.call):
            continue
        for other in _others(fn):
            end = next((use for use in facts.uses(("set",), of=clear.of) if use.fn is other), None)
            if end is not None and not _begins(other, fn):
                return clear.call, clear.of, other, end.line
    return None


def _ends(call: ast.Call, loop: ast.While) -> bool:
    """Whether a loop continues, or is left, by what a call returns."""
    if any(n is call for n in ast.walk(loop.test)):
        return True
    test = enclosing(call, ast.If)
    if not isinstance(test, ast.If) or not any(n is call for n in ast.walk(test.test)):
        return False
    return enclosing(test, ast.While) is loop and isinstance(test.body[-1], ast.Break | ast.Return)


def _others(fn: Function) -> Iterator[Function]:
    """The other methods of the object that may be called while the thread runs."""
    assert fn.cls is not None
    for other in fn.cls.methods.values():
        if other is not fn and other.name not in BEGINNINGS:
            yield other


def _begins(other: Function, fn: Function) -> bool:
    """Whether a method starts the thread itself, so that it does not come in between."""
    return other.name.strip("_").startswith(("start", "run", "begin", "launch", "restart")) or any(
        dotted(n).endswith(f".{fn.name}") for n in other.attributes
    )


def _waits_before(fn: Function, node: ast.expr) -> bool:
    """Whether the function awaits or waits before: then what it resets is of another turn."""
    return any(a.lineno < node.lineno for a in fn.awaits)


def _report(root: Root, at: ast.expr, what: str, other: Function, line: int) -> Witness:
    does, remedy = f"sets {what} again", "set the flag"
    if isinstance(at, ast.Call):
        does, remedy = f"clears {what}", "clear the event"
    return Witness(
        at,
        root.function,
        runs="task" if root.kind == "task" else "thread",
        does=does,
        other=other,
        line=line,
        root=root,
        remedy=remedy,
        what=what,
    )


def local_flag(facts: Facts) -> Iterator[Witness]:
    """Report local variables that hide the global which another function's loop asks for, and that are not read."""
    module = facts.module
    assigned = {name for fn in module.functions for name in fn.globals}
    flags = {name for name, value in module.top.bound.items() if isinstance(value, ast.Constant)} - assigned
    loops = {name: (fn, loop) for fn, loop, name in _asks_local_flag(facts) if name in flags}
    for fn in module.functions if loops else ():
        if fn is module.top:
            continue
        for target, value in fn.assigns:
            if not isinstance(target, ast.Name) or target.id not in loops or not isinstance(value, ast.Constant):
                continue
            waiter, loop = loops[target.id]
            read = any(n.id == target.id and isinstance(n.ctx, ast.Load) for n in fn.names)
            # A local that is read is meant as one, and a global that the module changes is not a flag that never
            # changes.
            if waiter is not fn and not read and not _changed_at_top(target.id, facts):
                yield Witness(target, fn, waiter=waiter, loop=loop)


def _asks_local_flag(facts: Facts) -> Iterator[tuple[Function, ast.While, str]]:
    """The globals that loops ask for, each with the function and the loop."""
    for fn in facts.module.functions:
        local_names = {n.id for n in fn.stores} | set(fn.parameters)
        for loop in fn.loops:
            if isinstance(loop, ast.While) and fn is not facts.module.top:
                names = {n.id for n in ast.walk(loop.test) if isinstance(n, ast.Name)}
                yield from ((fn, loop, name) for name in names - local_names)


def _changed_at_top(name: str, facts: Facts) -> bool:
    """Whether the code of the module itself assigns a global a second time."""
    return sum(n.id == name for n in facts.module.top.stores) > 1


def rearmed(facts: Facts) -> Iterator[Witness]:
    """Report cancellations of timers that renew themselves without asking for anything that the canceller sets."""
    for cls in facts.module.classes.values():
        for name, values in cls.values.items():
            for value, starter in values:
                fires = _fires(value, starter, facts)
                if fires is None or fires.cls not in cls.ancestry or not _renews(fires, starter, facts):
                    continue
                for fn in (m for m in cls.methods.values() if m not in (fires, starter)):
                    cancel = next((c for c in fn.calls if dotted(c.func) == f"{fn.self_name}.{name}.cancel"), None)
                    if cancel is not None and not _asks_rearmed(fn, (fires, starter)):
                        yield Witness(cancel, fn, fires=fires, starter=starter)


def _fires(value: ast.expr, starter: Function, facts: Facts) -> Function | None:
    """The function that a timer runs which is made here."""
    if not isinstance(value, ast.Call) or facts.module.canonical(value.func) != "threading.Timer":
        return None
    function = keyword(value, "function", 1)
    return facts.module.function_named(function, starter) if function is not None else None


def _renews(fires: Function, starter: Function, facts: Facts) -> bool:
    """Whether the function of a timer starts the next one."""
    return fires is starter or any(e.callee is starter for e in facts.walker.effects(fires))


def _asks_rearmed(cancels: Function, renewing: tuple[Function, ...]) -> bool:
    """Whether the functions that renew a timer ask for something that the canceller sets."""
    sets = {t.attr for t, _ in cancels.assigns if isinstance(t, ast.Attribute)}
    sets |= {c.func.value.attr for c in cancels.calls if _changes(c)}  # type: ignore[attr-defined]
    tests = [n for fn in renewing for test in fn.tests for n in ast.walk(test.test)]
    return any(isinstance(n, ast.Attribute) and n.attr in sets for n in tests)


def _changes(call: ast.Call) -> bool:
    """Whether this sets or clears an event."""
    method = call.func
    if not isinstance(method, ast.Attribute):
        return False
    return method.attr in ("set", "clear") and isinstance(method.value, ast.Attribute)


# Threads and tasks of executors that are started in the wrong way.


#: Further calls that take a function -> its name and position.
TAKES = {"add_done_callback": ("fn", 0), "call_soon_threadsafe": ("callback", 0), "call_later": ("callback", 1)}


def called_not_passed(facts: Facts) -> Iterator[Witness]:
    """Report calls, of functions that return nothing, in the place of the function that a thread or callback is."""
    for fn in facts.module.functions:
        for call in fn.calls:
            target = _function_of(call, facts)
            if isinstance(target, ast.Call) and _returns_nothing(facts.module.callee(target, fn)):
                yield Witness(target, fn, call=call, function=text_of(target).removesuffix("()"))


def _function_of(call: ast.Call, facts: Facts) -> ast.expr | None:
    """What a call is given as the function to run."""
    name = short_name(call.func)
    if name in TAKES:
        return keyword(call, *TAKES[name])
    kind, argument, position = STARTS.get(name, ("task", "", 0))
    # A task is given a coroutine, which a call makes; `map` takes what its call returns.
    if kind == "task" or name == "map":
        return None
    if name in STARTS_IN_MODULE and STARTS_IN_MODULE[name] not in facts.module.canonical(call.func).split("."):
        return None
    return keyword(call, argument, None if kind == "fork" else position)


def _returns_nothing(fn: Function | None) -> bool:
    """Whether a function of this file returns None only, and a plain call runs it."""
    if fn is None or fn.asynchronous or fn.generator or fn.name == "__init__" or isinstance(fn.node, ast.Lambda):
        return False
    plain = not getattr(fn.node, "decorator_list", ())
    raises = len(fn.body) == 1 and isinstance(fn.body[0], ast.Raise)
    return plain and not raises and all(r.value is None or is_constant(r.value, None) for r in fn.returns)


def exit_waits(facts: Facts) -> Iterator[Witness]:
    """Report results that are waited for with a timeout inside the block of the executor that computes them."""
    for fn in facts.module.functions:
        for block, name in blocks_that_make("Executor", fn, facts):
            call = _limited(block, name, fn)
            if call is not None:
                yield Witness(call, fn, block=block)


def _limited(block: ast.With | ast.AsyncWith, pool: str, fn: Function) -> ast.Call | None:
    """The first `result(timeout=...)` in a block of a task that was submitted there."""
    for call in fn.calls:
        inside = is_within(call, block) and isinstance(call.func, ast.Attribute)
        if not inside or call.func.attr not in ("result", "exception"):  # type: ignore[attr-defined]
            continue
        limit = keyword(call, "timeout", 0)
        task = call.func.value  # type: ignore[attr-defined]
        value = fn.bound.get(task.id) if isinstance(task, ast.Name) else task
        submitted = isinstance(value, ast.Call) and dotted(value.func) == f"{pool}.submit"
        if submitted and limit is not None and not is_constant(limit, None) and not is_constant(limit, 0):
            return call
    return None


#: Names of `threading.Thread` that `start`, `join` and `is_alive` use -> which of them.
HIDDEN = libraries.table("attributes of a thread that its methods use")


def thread_attribute_hidden(facts: Facts) -> Iterator[Witness]:
    """Report assignments to such attributes in subclasses of threading.Thread."""
    for cls in facts.module.classes.values():
        if not cls.is_a("threading.Thread", "threading.Timer"):
            continue
        for fn in cls.methods.values():
            for target, _ in fn.assigns:
                owner = target.value if isinstance(target, ast.Attribute) else None
                if isinstance(owner, ast.Name) and owner.id == fn.self_name and target.attr in HIDDEN:  # type: ignore[attr-defined]
                    name = target.attr  # type: ignore[attr-defined]
                    yield Witness(target, fn, cls=cls, name=name, method=HIDDEN[name])
                    break
