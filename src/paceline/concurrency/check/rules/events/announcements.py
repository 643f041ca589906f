"""Events that are cleared when what they announce may have happened already."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.libraries.catalogue import EVENTS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import awaited, block_of, enclosing, following, is_within, last_line, parent
from paceline.concurrency.check.threads.roots import STARTS

LOST_WAKEUP_DEPTH = 2


def lost_wakeup(facts: Facts) -> Iterator[Witness]:
    """Report loops that check a flag, then clear the event that announces it, then wait."""
    for fn in facts.module.functions:
        yield from _just_before(fn, facts)
        yield from _pulsed(fn, facts)
        yield from _lost_wakeup_after_work(fn, facts)
        for loop in fn.loops:
            if not isinstance(loop, ast.While):
                continue
            flags = {dotted(n) for n in ast.walk(loop.test) if isinstance(n, ast.Attribute | ast.Name)} - {
                fn.self_name,
                "",
            }
            steps = list(_in_order(loop, fn, facts, 0))
            for index, (call, where) in enumerate(steps):
                if not _is(call, "wait"):
                    continue
                event = _lost_wakeup_event(call, where, facts)
                clear = next(
                    (
                        s
                        for s in reversed(steps[:index])
                        if _is(s[0], "clear") and _lost_wakeup_event(*s, facts) == event
                    ),
                    None,
                )
                if event is None or clear is None or any(_is(s[0], "wait") for s in steps[: steps.index(clear)]):
                    continue
                if fn.asynchronous and clear[1] is fn and not _gives_way(fn, loop, clear[0]):
                    continue
                setter = _setter(event, flags, facts)
                if setter is not None and not _checked_again(loop, clear[0], call, setter[1], where, clear[1]):
                    yield Witness(clear[0], clear[1], event=event, setter=setter, loop=loop, wait=call, caller=fn)


def _gives_way(fn: Function, loop: ast.While, clear: ast.Call) -> bool:
    """Whether a coroutine lets others run between the test of a loop and the clear."""
    lines = [a.lineno for a in fn.awaits] + [w.lineno for w in fn.withs if isinstance(w, ast.AsyncWith)]
    return any(loop.lineno < line < clear.lineno for line in lines)


def _just_before(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`event.clear()` directly before `event.wait()` in a loop: an event set while the loop worked is lost."""
    for loop in fn.loops:
        if not isinstance(loop, ast.While):
            continue
        for first, second in pairwise(loop.body):
            clear, wait = _call_of(first), _call_of(second)
            if clear is None or wait is None or not _is(clear, "clear") or not _is(wait, "wait"):
                continue
            event = _lost_wakeup_event(clear, fn, facts)
            if event is None or event != _lost_wakeup_event(wait, fn, facts) or has_timeout(wait, "wait"):
                continue
            asks = not isinstance(loop.test, ast.Constant) and loop.body[0] is first
            if asks and fn.asynchronous:
                continue  # nothing comes between the test of the loop and the wait
            setter = next(
                (
                    (f, c)
                    for f in facts.module.functions
                    for c in f.calls
                    if f is not fn and _is(c, "set") and _lost_wakeup_event(c, f, facts) == event
                ),
                None,
            )
            if setter is not None:
                yield Witness(clear, fn, "announced", event=event, wait=wait, setter=setter)


def _pulsed(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`event.set()` directly before `event.clear()`: only a thread that waits at this moment notices."""
    for call in fn.calls:
        statement = parent(call)
        after = following(statement) if isinstance(statement, ast.Expr) and _is(call, "set") else []
        clear = _call_of(after[0]) if after else None
        if clear is None or not _is(clear, "clear"):
            continue
        event = _lost_wakeup_event(call, fn, facts)
        if event is None or _lost_wakeup_event(clear, fn, facts) != event:
            continue
        waits = (
            (c, f) for f in facts.module.functions for c in f.calls if _is(c, "wait") and not has_timeout(c, "wait")
        )
        waiter = next(((c, f) for c, f in waits if f is not fn and _lost_wakeup_event(c, f, facts) == event), None)
        if waiter is not None:
            yield Witness(clear, fn, "pulse", event=event, waiter=waiter[1], wait=waiter[0], sets=call)


def _lost_wakeup_after_work(fn: Function, facts: Facts) -> Iterator[Witness]:
    """`wait()`, then the work, then `clear()`: what was announced after the work was taken is forgotten."""
    for loop in fn.loops:
        if not isinstance(loop, ast.While):
            continue
        calls = [c for s in loop.body for c in ast.walk(s) if isinstance(c, ast.Call)]
        clears = [c for c in calls if _is(c, "clear") and (event := _lost_wakeup_event(c, fn, facts)) is not None]
        for clear in clears:
            event = _lost_wakeup_event(clear, fn, facts)
            waits = [c for c in [*ast.walk(loop.test), *calls] if isinstance(c, ast.Call) and _is(c, "wait")]
            waits = [c for c in waits if _lost_wakeup_event(c, fn, facts) == event]
            if event is None or not waits or waits[0].lineno > clear.lineno or has_timeout(waits[0], "wait"):
                continue
            used = {
                (dotted(n), n.lineno)
                for n in ast.walk(loop)
                if isinstance(n, ast.Attribute | ast.Name) and n.lineno > waits[0].lineno
            }
            done = {name for name, line in used if line < clear.lineno} - {n for n, line in used if line > clear.lineno}
            done -= {dotted(n) for n in ast.walk(loop.test) if isinstance(n, ast.Attribute | ast.Name)}
            change = next((c for c in _changes(event, done, fn, facts)), None)
            if change is not None:
                yield _forgotten(fn, waits[0], clear, event, *change)


def _changes(event: str, names: set[str], fn: Function, facts: Facts) -> Iterator[tuple[Function, ast.Call, str]]:
    """The functions that change one of these attributes and then set the event."""
    for other in facts.module.functions:
        sets = [
            c for c in other.calls if other is not fn and _is(c, "set") and _lost_wakeup_event(c, other, facts) == event
        ]
        changed = [t for t, _ in other.assigns] + [c.func.value for c in other.calls if _adds(c)]  # type: ignore[attr-defined]
        for name in (dotted(t) for t in changed if sets and t.lineno <= sets[0].lineno):
            if name in names and "." in name:
                yield other, sets[0], name


def _adds(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "appendleft", "add", "put", "update")


def _forgotten(
    fn: Function, wait: ast.Call, clear: ast.Call, event: str, other: Function, sets: ast.Call, name: str
) -> Witness:
    return Witness(clear, fn, "forgotten", event=event, name=name, other=other, wait=wait, sets=sets)


def _call_of(statement: ast.stmt) -> ast.Call | None:
    value = awaited(statement.value) if isinstance(statement, ast.Expr | ast.Assign) else None
    return value if isinstance(value, ast.Call) else None


def _in_order(node: ast.AST, fn: Function, facts: Facts, depth: int) -> Iterator[tuple[ast.Call, Function]]:
    """The calls of a loop in the order of its lines, with those of its callees in their place."""
    inside = {id(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
    for effect in facts.walker.effects(fn):
        if id(effect.node) in inside and isinstance(effect.node, ast.Call):
            if effect.callee is not None and depth < LOST_WAKEUP_DEPTH:
                yield from _in_order(effect.callee.node, effect.callee, facts, depth + 1)
            yield effect.node, fn


def _is(call: ast.Call, method: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == method


def _lost_wakeup_event(call: ast.Call, fn: Function, facts: Facts) -> str | None:
    assert isinstance(call.func, ast.Attribute)
    resource = facts.module.resource(call.func.value, fn)
    return resource.id if resource is not None and resource.kind in EVENTS else None


def _setter(event: str, flags: set[str], facts: Facts) -> tuple[Function, str, ast.Call] | None:
    """A function that changes a flag of the loop and then sets the event, without a lock around both."""
    for fn in facts.module.functions:
        if fn.name == "__init__":
            continue
        for call in fn.calls:
            if _is(call, "set") and _lost_wakeup_event(call, fn, facts) == event and not facts.held_at(call, fn):
                for target, _ in fn.assigns:
                    if dotted(target) in flags and target.lineno <= call.lineno:
                        return fn, dotted(target), call
    return None


def _checked_again(
    loop: ast.While, clear: ast.Call, wait: ast.Call, flag: str, fn: Function, clearing: Function
) -> bool:
    """Whether the flag is checked again between the clear and the wait."""
    first = clear.lineno if clearing is fn else loop.lineno + 1
    return any(
        isinstance(n, ast.Attribute | ast.Name) and dotted(n) == flag and first < n.lineno <= wait.lineno
        for n in ast.walk(loop)
    ) or (clearing is not fn and any(dotted(a) == flag and a.lineno > clear.lineno for a in clearing.attributes))


AT_ONCE = ("run_coroutine_threadsafe", "start_new_thread", "submit", "run_in_executor", "Thread", "Timer", "Process")


CLEARED_LATE_DEPTH = 3  # calls through which the started function is followed to its `set()`


def cleared_late(facts: Facts) -> Iterator[Witness]:
    """Report events that are cleared after a start or after the work, or replaced."""
    for cls in facts.module.classes.values():
        yield from _flags(cls, facts)
    setters = _setters(facts)
    for fn in facts.module.functions if setters else ():
        clears = [(c, e) for c in fn.calls if (e := _cleared_late_event(c, "clear", fn, facts)) in setters]
        for clear, event in clears:
            start = next(
                (s for s in _starts(fn, facts) if s[0].lineno < clear.lineno and _sets(s[1], event, facts)), None
            )
            if start is not None and not _waited(fn, event, start[0].lineno, clear.lineno, facts):
                yield _report(clear, fn, event, start[0].lineno, "starts what sets it", setters[event], 0.7)
        for loop in fn.loops:
            if isinstance(loop, ast.While):
                yield from _cleared_late_after_work(loop, fn, clears, setters, facts)


def _flags(cls: Class, facts: Facts) -> Iterator[Witness]:
    """`self.send(request)` and then `self.answered = False`, where the thread that receives sets it to True."""
    methods = [fn for fn in facts.module.functions if fn.cls is cls]
    for fn in methods:
        for target, value in fn.assigns:
            name = dotted(target)
            flag = name.startswith(f"{fn.self_name}.") and name.count(".") == 1 and is_constant(value, False)
            sent = _sent_before(target, fn) if flag and not facts.held_at(target, fn) else None
            if sent is None or facts.threads_of(fn) or not _polled(name, methods):
                continue
            others = ((f, t) for f in methods if facts.threads_of(f) for t, v in f.assigns if is_constant(v, True))
            other = next(((f, t) for f, t in others if dotted(t) == name), None)
            if other is not None:
                yield _report_flag(target, fn, name, sent, *other)
                return


def _sent_before(target: ast.expr, fn: Function) -> ast.Call | None:
    """A request that is sent in the statements right before an assignment, where the flag is not reset before."""
    statement = parent(target)
    block = block_of(statement)
    before = block[: block.index(statement)] if block else []  # type: ignore[arg-type]
    if any(dotted(t) == dotted(target) and t.lineno < target.lineno for t, _ in fn.assigns):
        return None
    calls = [n for s in before[-3:] for n in ast.walk(s) if isinstance(n, ast.Call)]
    return next((c for c in calls if SENDS.match(short_name(c.func).strip("_")) and dotted(c.func).count(".")), None)


#: Names of calls that another thread may answer at once.
SENDS = re.compile(r"(send|write|put|request|publish|post|query|ask|emit|transmit)(_|$)")


def _polled(name: str, methods: list[Function]) -> bool:
    """Whether a loop waits for a flag to become true."""
    loops = (loop for fn in methods for loop in fn.loops if isinstance(loop, ast.While))
    negated = (n.operand for w in loops for n in ast.walk(w.test) if isinstance(n, ast.UnaryOp))
    return any(dotted(operand) == name for operand in negated)


def _report_flag(at: ast.expr, fn: Function, name: str, sent: ast.Call, other: Function, sets: ast.expr) -> Witness:
    return Witness(at, fn, "flag", name=name, sent=sent, other=other, sets=sets)


def _setters(facts: Facts) -> dict[str, list[tuple[Function, ast.Call]]]:
    """Event -> the functions that set it."""
    setters: dict[str, list[tuple[Function, ast.Call]]] = {}
    for fn in facts.module.functions:
        for call in fn.calls:
            if event := _cleared_late_event(call, "set", fn, facts):
                setters.setdefault(event, []).append((fn, call))
    return setters


def _cleared_late_event(call: ast.Call, method: str, fn: Function, facts: Facts) -> str:
    """The event of which a call is this method; empty where it is none."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != method:
        return ""
    resource = facts.module.resource(call.func.value, fn)
    return resource.id if resource is not None and resource.kind in EVENTS else ""


def _starts(fn: Function, facts: Facts) -> Iterator[tuple[ast.Call, Function]]:
    """The calls that let another thread run a function of this file at once, and the function."""
    for call in fn.calls:
        name = short_name(call.func)
        if name in AT_ONCE:
            position = 0 if name == "run_coroutine_threadsafe" else STARTS[name][2]
            target = keyword(call, "coro" if name == "run_coroutine_threadsafe" else STARTS[name][1], position)
            target = target.func if isinstance(target, ast.Call) else target
            runs = facts.module.function_named(target, fn) if target is not None else None
            begun = _begun(call, fn) if name in ("Thread", "Timer", "Process") else call
            if runs is not None and begun is not None:
                yield begun, runs


def _begun(construction: ast.Call, fn: Function) -> ast.Call | None:
    """The `start()` of a thread that is made here."""
    names = [dotted(target) for target, value in fn.assigns if value is construction]
    direct = enclosing(construction, ast.Call)
    if isinstance(direct, ast.Call) and short_name(direct.func) == "start":
        return direct
    return next((c for c in fn.calls if names and dotted(c.func) == f"{names[0]}.start"), None)


def _sets(fn: Function, event: str, facts: Facts, depth: int = CLEARED_LATE_DEPTH) -> bool:
    """Whether a function sets an event, itself or through what it calls."""
    if any(_cleared_late_event(call, "set", fn, facts) == event for call in fn.calls):
        return True
    return depth > 0 and any(_sets(m.callee, event, facts, depth - 1) for m in facts.runs(fn) if m.callee is not None)


def _waited(fn: Function, event: str, first: int, last: int, facts: Facts) -> bool:
    """Whether the function waits for the event between two lines, so that the clear is for the next time."""
    return any(first <= c.lineno <= last and _cleared_late_event(c, "wait", fn, facts) == event for c in fn.calls)


def _cleared_late_after_work(
    loop: ast.While,
    fn: Function,
    clears: list[tuple[ast.Call, str]],
    setters: dict[str, list[tuple[Function, ast.Call]]],
    facts: Facts,
) -> Iterator[Witness]:
    """The events that a loop waits for, and clears or replaces only after a further await."""
    waits = [
        (c, e) for c in fn.calls if is_within(c, loop) and (e := _cleared_late_event(c, "wait", fn, facts)) in setters
    ]
    replacements = [
        (value, resource.id)
        for target, value in fn.assigns
        if isinstance(value, ast.Call)
        and loop.lineno < value.lineno <= last_line(loop)
        and facts.module.constructed_kind(value, fn) in EVENTS
        and (resource := facts.module.resource(target, fn)) is not None
    ]
    for wait, event in waits:
        others = [s for s in setters[event] if s[0] is not fn]
        if not others or has_timeout(wait, "wait") or (fn.asynchronous is False and not replacements):
            continue
        for at, which in [*(pair for pair in clears if fn.asynchronous), *replacements]:
            inside = which == event and loop.lineno < at.lineno <= last_line(loop)
            gives_way = any(wait.lineno < a.lineno and last_line(a) <= at.lineno for a in fn.awaits)
            replaced = (at, which) in replacements
            if inside and (gives_way if fn.asynchronous and at.lineno > wait.lineno else replaced):
                yield _report(at, fn, event, wait.lineno, "waits for it, and works", others, 0.65 if replaced else 0.55)
                return


def _report(
    at: ast.Call, fn: Function, event: str, line: int, does: str, setters: list[tuple[Function, ast.Call]], sure: float
) -> Witness:
    clears = short_name(at.func) == "clear"
    return Witness(
        at,
        fn,
        confidence=sure,
        event=event,
        done="cleared" if clears else "replaced",
        line=line,
        does=does,
        setters=setters,
        how=f"{text_of(at)} clears it" if clears else "replaces it by a new event",
    )
