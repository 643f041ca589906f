"""Events that are cleared when what they announce may have happened already."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.libraries.catalogue import EVENTS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import (
    awaited,
    block_of,
    dotted,
    enclosing,
    following,
    is_constant,
    is_within,
    keyword,
    last_line,
    parent,
    short_name,
    statement_of,
)
from paceline.concurrency.check.threads.roots import STARTS

DEPTH = 3  # calls through which a loop is followed
AT_ONCE = ("run_coroutine_threadsafe", "start_new_thread", "submit", "run_in_executor", "Thread", "Timer", "Process")


class Event(NamedTuple):
    """An event, and where it is set, cleared and waited for."""

    name: str
    sets: list[Use]
    clears: list[Use]
    waits: list[Use]

    def set_elsewhere(self, fn: Function) -> Use | None:
        """Where another function sets it."""
        return next((use for use in self.sets if use.fn is not fn), None)


def _events(facts: Facts) -> list[Event]:
    every = [facts.uses((method,), EVENTS) for method in ("set", "clear", "wait")]
    names = dict.fromkeys(use.of for uses in every for use in uses)
    return [Event(name, *([use for use in uses if use.of == name] for uses in every)) for name in names]


def lost_wakeup(facts: Facts) -> Iterator[Witness]:
    """Report loops that check a flag, then clear the event that announces it, then wait."""
    events = _events(facts)
    for event in events:
        for clear in event.clears:
            yield from _just_before(clear, event)
            yield from _pulsed(clear, event)
            yield from _done_with(clear, event, facts)
    of = {id(use.call): event for event in events for uses in event[1:] for use in uses}
    for fn in facts.module.functions if events else ():
        for loop in fn.loops:
            if isinstance(loop, ast.While):
                yield from _checked_before(loop, fn, of, facts)


def _checked_before(loop: ast.While, fn: Function, of: dict[int, Event], facts: Facts) -> Iterator[Witness]:
    """A flag in the test of a loop, which then clears its event, itself or through a call, and waits for it."""
    flags = {dotted(n) for n in ast.walk(loop.test) if isinstance(n, ast.Attribute | ast.Name)} - {fn.self_name, ""}
    steps = [step for step in _in_order(loop, fn, facts, 1) if id(step[0]) in of]
    for index, (wait, where) in enumerate(steps):
        event = of[id(wait)]
        clears = [s for s in steps[:index] if short_name(s[0].func) == "clear" and of[id(s[0])] is event]
        if short_name(wait.func) != "wait" or not clears:
            continue
        clear, clearing = clears[-1]
        waited = any(short_name(step.func) == "wait" for step, _ in steps[: steps.index(clears[-1])])
        # After a wait of the same turn the flag was asked since; in a coroutine nothing comes between without an await.
        if waited or (fn.asynchronous and clearing is fn and not _gives_way(fn, loop, clear)):
            continue
        setter = _setter(event, flags, facts)
        if setter is not None and not _checked_again(loop, clear, wait, setter[1], where, clearing):
            yield Witness(clear, clearing, event=event.name, setter=setter, loop=loop, wait=wait, caller=fn)


def _gives_way(fn: Function, loop: ast.While, clear: ast.Call) -> bool:
    """Whether a coroutine lets others run between the test of a loop and the clear."""
    lines = [a.lineno for a in fn.awaits] + [w.lineno for w in fn.withs if isinstance(w, ast.AsyncWith)]
    return any(loop.lineno < line < clear.lineno for line in lines)


def _just_before(clear: Use, event: Event) -> Iterator[Witness]:
    """`event.clear()` directly before `event.wait()` in a loop: an event set while the loop worked is lost."""
    statement, after = statement_of(clear.call), following(statement_of(clear.call))
    loop = parent(statement) if statement is not None else None
    wait = next((w for w in event.waits if after and _call_of(after[0]) is w.call), None)
    if not isinstance(loop, ast.While) or wait is None or has_timeout(wait.call, "wait"):
        return
    asks = not isinstance(loop.test, ast.Constant) and loop.body[0] is statement
    setter = event.set_elsewhere(clear.fn)
    if setter is not None and not (asks and clear.fn.asynchronous):  # there nothing comes between the test and the wait
        yield Witness(clear.call, clear.fn, "announced", event=event.name, wait=wait, setter=setter)


def _pulsed(clear: Use, event: Event) -> Iterator[Witness]:
    """`event.set()` directly before `event.clear()`: only a thread that waits at this moment notices."""
    for sets in event.sets:
        after = following(parent(sets.call)) if isinstance(parent(sets.call), ast.Expr) else []
        waits = [w for w in event.waits if w.fn is not clear.fn and not has_timeout(w.call, "wait")]
        if after and _call_of(after[0]) is clear.call and waits:
            yield Witness(clear.call, clear.fn, "pulse", event=event.name, wait=waits[0], sets=sets)


def _done_with(clear: Use, event: Event, facts: Facts) -> Iterator[Witness]:
    """`wait()`, then the work, then `clear()`: what was announced after the work was taken is forgotten."""
    for loop in clear.fn.loops:
        wait = next((w for w in event.waits if w.fn is clear.fn and is_within(w.call, loop)), None)
        if wait is None or not is_within(clear.call, loop) or not isinstance(loop, ast.While):
            continue
        if wait.line > clear.line or has_timeout(wait.call, "wait"):
            continue
        named = [n for n in ast.walk(loop) if isinstance(n, ast.Attribute | ast.Name)]
        done = {dotted(n) for n in named if wait.line < n.lineno < clear.line}
        # What is looked at again after the clear is not forgotten.
        done -= {dotted(n) for n in named if n.lineno > clear.line or is_within(n, loop.test)}
        for effect in facts.walker.effects(clear.fn):
            if wait.line < effect.line < clear.line and effect.callee is not None:
                done |= {dotted(a) for a in effect.callee.attributes if effect.callee.cls is clear.fn.cls}
        sets, name = next(_changes(event, done, clear.fn, facts), (None, ""))
        if sets is not None:
            yield Witness(clear.call, clear.fn, "forgotten", event=event.name, wait=wait, sets=sets, name=name)


def _changes(event: Event, names: set[str], fn: Function, facts: Facts) -> Iterator[tuple[Use, str]]:
    """Where other functions set the event after they have changed one of these attributes, and which."""
    for other in facts.module.functions:
        sets = [use for use in event.sets if use.fn is other and other is not fn]
        changed = [t for t, _ in other.assigns] + [c.func.value for c in other.calls if _adds(c)]  # type: ignore[attr-defined]
        for name in (dotted(t) for t in changed if sets and t.lineno <= sets[0].line):
            if name in names and "." in name:
                yield sets[0], name


def _adds(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "appendleft", "add", "put", "update")


def _call_of(statement: ast.stmt) -> ast.Call | None:
    value = awaited(statement.value) if isinstance(statement, ast.Expr | ast.Assign) else None
    return value if isinstance(value, ast.Call) else None


def _in_order(node: ast.AST, fn: Function, facts: Facts, depth: int) -> Iterator[tuple[ast.Call, Function]]:
    """The calls of a loop in the order of its lines, with those of its callees in their place."""
    inside = {id(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
    for effect in facts.walker.effects(fn):
        if id(effect.node) in inside and isinstance(effect.node, ast.Call):
            if effect.callee is not None and depth < DEPTH:
                yield from _in_order(effect.callee.node, effect.callee, facts, depth + 1)
            yield effect.node, fn


def _setter(event: Event, flags: set[str], facts: Facts) -> tuple[Use, str] | None:
    """Where a flag of the loop is changed and then the event set, without a lock around both."""
    for use in event.sets:
        if use.fn.name != "__init__" and not facts.held_at(use.call, use.fn):
            for target, _ in use.fn.assigns:
                if dotted(target) in flags and target.lineno <= use.line:
                    return use, dotted(target)
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


def cleared_late(facts: Facts) -> Iterator[Witness]:
    """Report events that are cleared after a start or after the work, or replaced."""
    for cls in facts.module.classes.values():
        yield from _flags(cls, facts)
    for event in (event for event in _events(facts) if event.sets):
        for clear in event.clears:
            starts = (s.lineno for s, runs in _starts(clear.fn, facts) if _sets(runs, event, facts))
            start = next((line for line in starts if line < clear.line), None)
            waits = [w.line for w in event.waits if w.fn is clear.fn]
            # Once it has waited for the event, the function may clear it for the next time.
            if start is not None and not any(start <= line <= clear.line for line in waits):
                yield _report(clear.call, clear.fn, event.name, start, "starts what sets it", event.sets[0], 0.7)
        for wait in event.waits:
            for loop in wait.fn.loops:
                if isinstance(loop, ast.While) and is_within(wait.call, loop):
                    yield from _after_work(wait, loop, event, facts)


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
                yield Witness(target, fn, "flag", name=name, sent=sent, other=other[0], sets=other[1])
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


def _sets(fn: Function, event: Event, facts: Facts) -> bool:
    """Whether a function sets an event, itself or through what it calls."""
    calls = [use.call for use in event.sets]
    return any(facts.ways_to(fn, lambda call, _: call in calls))


def _after_work(wait: Use, loop: ast.While, event: Event, facts: Facts) -> Iterator[Witness]:
    """A loop that waits for an event, and clears or replaces it only after a further await."""
    fn, setter = wait.fn, event.set_elsewhere(wait.fn)
    new = [v for t, v in fn.assigns if isinstance(v, ast.Call) and facts.module.constructed_kind(v, fn) in EVENTS]
    made = [v for v in new if (r := facts.module.resource(_target(v), fn)) is not None and r.id == event.name]
    if setter is None or has_timeout(wait.call, "wait"):
        return
    for at in [*(c.call for c in event.clears if c.fn is fn and fn.asynchronous), *made]:
        if not loop.lineno < at.lineno <= last_line(loop):
            continue
        gives_way = any(wait.line < a.lineno and last_line(a) <= at.lineno for a in fn.awaits)
        if gives_way if fn.asynchronous and at.lineno > wait.line else at in made:
            sure = 0.65 if at in made else 0.55
            yield _report(at, fn, event.name, wait.line, "waits for it, and works", setter, sure)
            return


def _target(value: ast.Call) -> ast.expr:
    """What an assignment gives a value to."""
    return parent(value).targets[0] if isinstance(parent(value), ast.Assign) else value  # type: ignore[union-attr]


def _report(at: ast.Call, fn: Function, event: str, line: int, does: str, setter: Use, sure: float) -> Witness:
    done, how = "replaced", "replaces it by a new event"
    if short_name(at.func) == "clear":
        done, how = "cleared", f"{text_of(at)} clears it"
    return Witness(at, fn, confidence=sure, event=event, done=done, line=line, does=does, setter=setter, how=how)
