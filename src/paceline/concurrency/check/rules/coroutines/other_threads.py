"""What may be done in the thread of the loop only, or in the main thread only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import Effect
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import dotted, enclosing, short_name
from paceline.concurrency.check.threads.shared_state import is_caught
from paceline.concurrency.check.threads.sharing import several

OF_LOOP = ("call_soon", "call_later", "call_at")
TASKS = {"create_task", "ensure_future"}
OF_ASYNCIO = ("AsyncLock", "AsyncCondition", "AsyncSemaphore", "AsyncEvent", "AsyncQueue")
OWN_LOOP = ("new_event_loop", "run_until_complete", "run_forever", "run", "set_event_loop")


def loop_from_thread(facts: Facts) -> Iterator[Witness]:
    """Report uses of the loop, its events and queues in functions that threads run."""
    for fn in facts.module.functions:
        yield from _stops(fn, facts)
        yield from _stopped_from_outside(fn, facts)
    yield from _of_two_loops(facts)
    reported: set[Function] = set()
    for root in facts.roots:
        todo = [root.function] if root.kind == "thread" else []
        visited: set[Function] = set()
        while todo:
            fn = todo.pop()
            # A thread with a loop of its own uses that one.
            if fn in visited or facts.on_loop(fn) or any(short_name(c.func) in OWN_LOOP for c in fn.calls):
                continue
            visited.add(fn)
            todo += [effect.callee for effect in facts.runs(fn) if effect.callee is not None and not effect.perhaps]
            call = next((c for c in fn.calls if _touches(c, fn, facts)), None)
            if call is not None and fn not in reported:
                reported.add(fn)
                yield Witness(call, fn, what=_touches(call, fn, facts), root=root)


def _of_two_loops(facts: Facts) -> Iterator[Witness]:
    """A lock, event or queue of asyncio for which tasks of two loops wait, which two threads run."""
    loops = [
        fn for fn in facts.module.functions if any(facts.module.canonical(c.func) == "asyncio.run" for c in fn.calls)
    ]
    waits: dict[str, dict[Function, tuple[Effect, Function]]] = {}
    shared: set[str] = set()
    for start in loops if any(map(facts.threads_of, loops)) else ():
        runs = facts.reached_from(start)
        for fn in (fn for fn in facts.module.functions if fn in runs and fn.asynchronous):
            for effect, _ in facts.events(fn):
                thing = effect.resource
                if thing is not None and thing.sure and thing.kind in OF_ASYNCIO and thing.line:
                    waits.setdefault(thing.id, {}).setdefault(start, (effect, fn))
                    makers = (f for c, f in facts.module.calls if c.lineno == thing.line)
                    if facts.threads_of(start) and any(facts.made_outside(maker, runs) for maker in makers):
                        shared.add(thing.id)
    for name, users in waits.items():
        start, (effect, fn) = next(iter(users.items()))
        # What each loop makes for itself is used by that loop alone.
        if name in shared and (len(users) > 1 or several(facts.threads_of(start), facts)):
            yield Witness(effect.node, fn, "two-loops", thing=name, start=start)


def _stops(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`loop.call_soon(loop.stop)` and then `thread.join()`: the loop runs in that thread, and is not woken."""
    if fn.asynchronous:
        return
    for call in fn.calls:
        joins = (c for c in fn.calls if short_name(c.func) == "join" and c.lineno > call.lineno)
        last = call.args[0] if call.args else call
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "call_soon" or short_name(last) != "stop":
            continue
        join = next((c for c in joins if "thread" in dotted(c.func).lower()), None)
        # In its own thread the loop runs the callback in its next turn, without having to be woken.
        if join is not None and not _in_own_thread(call, fn):
            yield Witness(call, fn, "stops", join=join)


def _in_own_thread(call: ast.Call, fn: Function) -> bool:
    """Whether a test has found that this is the thread of the loop: `if thread is threading.current_thread()`."""
    around = enclosing(call, ast.If)
    named = (n for n in ast.walk(around.test) if isinstance(n, ast.expr)) if isinstance(around, ast.If) else ()
    values = (fn.bound.get(n.id, n) if isinstance(n, ast.Name) else n for n in named)
    return any(isinstance(v, ast.Call) and short_name(v.func) in ("current_thread", "get_ident") for v in values)


def _stopped_from_outside(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`self.loop.stop()` in one thread while `self.loop.run_forever()` runs in another one."""
    if fn.asynchronous or facts.threads_of(fn) or fn.outer is not facts.module.top:
        return
    for call in fn.calls:
        of = dotted(call.func.value) if isinstance(call.func, ast.Attribute) and call.func.attr == "stop" else ""
        runs = next((r for r in _loops_of_threads(facts) if r[0] == of), None) if of else None
        if runs is not None:
            yield Witness(call, fn, "stopped-from-outside", of=of, runs=runs)


def _loops_of_threads(facts: Facts) -> Iterator[tuple[str, Function]]:
    """The loops that threads run for ever, as attributes of the object, each with the function that runs it."""
    for fn in facts.module.functions:
        for call in fn.calls if facts.threads_of(fn) else ():
            if isinstance(call.func, ast.Attribute) and call.func.attr == "run_forever":
                of = dotted(call.func.value)
                if of.startswith(f"{fn.self_name}.") and fn.self_name:
                    yield of, fn


def _touches(call: ast.Call, fn: Function, facts: Facts) -> str:
    """What a call does to the loop; empty if nothing."""
    if not isinstance(call.func, ast.Attribute):
        return ""
    name, owner = call.func.attr, short_name(call.func.value).lower()
    if name in OF_LOOP and "loop" in owner:
        return "schedules a callback"
    if name == "create_task" and ("loop" in owner or owner == "asyncio"):
        return "creates a task"
    makers = {short_name(made.func) for made, _ in facts.module.objects.made(call.func.value, fn)}
    if name == "cancel" and not call.args and isinstance(call.func.value, ast.Attribute) and makers & TASKS:
        return "cancels a task"
    if name in ("set_result", "set_exception") and "create_future" in makers:
        return "completes a future of asyncio"
    resource = facts.module.resource(call.func.value, fn)
    if resource is not None and resource.sure:
        if resource.kind == "AsyncEvent" and name == "set":
            return "sets an asyncio.Event"
        if resource.kind == "AsyncQueue" and name == "put_nowait":
            return "puts an item into an asyncio.Queue"
    return ""


HANDLERS = ("signal.signal", "signal.set_wakeup_fd")
MAKES_LOOP = ("set_event_loop", "new_event_loop")


def main_thread_only(facts: Facts) -> Iterator[Witness]:
    """Report such calls in functions that only threads run."""
    for fn in facts.module.functions:
        for call in fn.calls if not any(scope.name.startswith("test") for scope in fn.scopes()) else ():
            what = _fails(call, fn, facts)
            if what and _only_in_threads(fn, facts):
                yield Witness(
                    call,
                    fn,
                    what=what,
                    remedy="call it in the main thread, before the thread is started"
                    if "Value" in what
                    else "use asyncio.run(), or asyncio.run_coroutine_threadsafe() with the loop of the main thread",
                )
                break


def _fails(call: ast.Call, fn: Function, facts: Facts) -> str:
    """How a call fails outside of the main thread; empty where it does not."""
    name = facts.module.canonical(call.func)
    if name in HANDLERS:
        return "" if is_caught(call, "ValueError") else "raises a ValueError"
    if name != "asyncio.get_event_loop" or fn.asynchronous or is_caught(call, "RuntimeError"):
        return ""
    has_loop = any(short_name(c.func) in MAKES_LOOP for c, f in facts.module.calls if facts.threads_of(f))
    return "" if has_loop else "raises a RuntimeError"


def _only_in_threads(fn: Function, facts: Facts) -> bool:
    """Whether a function is only started as a thread, or only called by such functions."""
    started = [r for r in facts.roots if r.kind == "thread" and r.function is fn and not r.several]
    callers = facts.callers.get(id(fn), [])
    if started or any(r.function is fn and r.kind == "thread" for r in facts.roots):
        # A function that is also called may be called in the main thread.
        return not callers and _seen_to_start(fn, facts)
    private = fn.name.startswith("_") and fn.name not in facts.used_as_values
    return (
        private and bool(callers) and all(_only_in_threads(caller, facts) for caller, _ in callers if caller is not fn)
    )


def _seen_to_start(fn: Function, facts: Facts) -> bool:
    """Whether this file itself starts the thread, so that the function is not one that a library calls."""
    return any(
        r.function is fn and any(c.lineno == r.line for c, _ in facts.module.calls)
        for r in facts.roots
        if r.kind == "thread"
    )
