"""An event that is cleared, or replaced, when what it announces may have happened already."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import has_timeout, text_of
from paceline.concurrency.check.libraries.catalogue import EVENTS
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import block_of, enclosing, is_within, last_line, parent
from paceline.concurrency.check.threads.roots import STARTS

AT_ONCE = ("run_coroutine_threadsafe", "start_new_thread", "submit", "run_in_executor", "Thread", "Timer", "Process")
DEPTH = 3  # calls through which the started function is followed to its `set()`


def find(facts: Facts) -> Iterator[Witness]:
    """Report events that are cleared after a start or after the work, or replaced."""
    for cls in facts.module.classes.values():
        yield from _flags(cls, facts)
    setters = _setters(facts)
    for fn in facts.module.functions if setters else ():
        clears = [(c, e) for c in fn.calls if (e := _event(c, "clear", fn, facts)) in setters]
        for clear, event in clears:
            start = next(
                (s for s in _starts(fn, facts) if s[0].lineno < clear.lineno and _sets(s[1], event, facts)), None
            )
            if start is not None and not _waited(fn, event, start[0].lineno, clear.lineno, facts):
                yield _report(clear, fn, event, start[0].lineno, "starts what sets it", setters[event], 0.7)
        for loop in fn.loops:
            if isinstance(loop, ast.While):
                yield from _after_work(loop, fn, clears, setters, facts)


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
            if event := _event(call, "set", fn, facts):
                setters.setdefault(event, []).append((fn, call))
    return setters


def _event(call: ast.Call, method: str, fn: Function, facts: Facts) -> str:
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


def _sets(fn: Function, event: str, facts: Facts, depth: int = DEPTH) -> bool:
    """Whether a function sets an event, itself or through what it calls."""
    if any(_event(call, "set", fn, facts) == event for call in fn.calls):
        return True
    return depth > 0 and any(_sets(m.callee, event, facts, depth - 1) for m in facts.runs(fn) if m.callee is not None)


def _waited(fn: Function, event: str, first: int, last: int, facts: Facts) -> bool:
    """Whether the function waits for the event between two lines, so that the clear is for the next time."""
    return any(first <= c.lineno <= last and _event(c, "wait", fn, facts) == event for c in fn.calls)


def _after_work(
    loop: ast.While,
    fn: Function,
    clears: list[tuple[ast.Call, str]],
    setters: dict[str, list[tuple[Function, ast.Call]]],
    facts: Facts,
) -> Iterator[Witness]:
    """The events that a loop waits for, and clears or replaces only after a further await."""
    waits = [(c, e) for c in fn.calls if is_within(c, loop) and (e := _event(c, "wait", fn, facts)) in setters]
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
