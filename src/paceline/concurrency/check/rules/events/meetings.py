"""Events that are not set and barriers that are not reached, where others wait."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from paceline.concurrency.check.flow.duties import Duty, Skipped, one_of
from paceline.concurrency.check.flow.effects import has_timeout, is_limited
from paceline.concurrency.check.libraries.catalogue import QUEUES
from paceline.concurrency.check.rules.endings import is_end_mark
from paceline.concurrency.check.rules.rule import Witness, queue_of, resource_of
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing, lines_of, parent
from paceline.concurrency.check.threads.evidence import owns_lock
from paceline.concurrency.check.threads.roots import STARTS, in_loop

KINDS = {"Event": "thread", "ProcessEvent": "process", "AsyncEvent": "task"}  # what sets it, where others wait


MEETS = ("wait", "abort")


BARRIERS = ("Barrier", "AsyncBarrier")


Waiter = tuple[Function, ast.Call]


def never_set(facts: Facts) -> Iterator[Witness]:
    """Report threads and tasks in which an exception skips what others wait for."""
    waits, gets = _waited_for(facts)
    run: dict[int, tuple[Function, set[str]]] = {}
    for root in (r for r in facts.roots if not r.together):
        run.setdefault(id(root.function), (root.function, set()))[1].add(root.kind)
    for fn, kinds in run.values():
        yield from _events(fn, {e: w for e, (kind, w) in waits.items() if KINDS[kind] in kinds}, facts)
        yield from _end_marks(fn, gets if kinds & {"thread", "process", "task"} else {}, facts)
        if "thread" in kinds:
            yield from _barriers(fn, facts)
    for fn in {id(r.function): r.function for r in facts.roots if r.kind == "task"}.values():
        yield from _barriers(fn, facts)
    for fn in facts.module.functions:
        yield from _made_for_others(fn, facts)
    for fn in facts.module.functions if waits else ():
        cleared = {e for call in fn.calls if (e := _subject(call, ("clear",), KINDS, fn, facts)) in waits}
        if cleared and id(fn) not in run:  # says itself that others wait while it works
            yield from _events(fn, {e: waits[e][1] for e in cleared}, facts)
        elif id(fn) not in run and fn.cls is not None and owns_lock(fn.cls, facts):
            yield from _for_others(fn, facts)


def _waited_for(facts: Facts) -> tuple[dict[str, tuple[str, Waiter]], dict[str, Waiter]]:
    """The events that are waited for without a timeout, with their kind, and the queues that a loop gets from so."""
    waits: dict[str, tuple[str, Waiter]] = {}
    gets: dict[str, Waiter] = {}
    for fn in facts.module.functions:
        for call in fn.calls:
            resource = resource_of(call, ("wait", "get"), fn, facts)
            if resource is None or has_timeout(call, short_name(call.func)) or is_limited(call):
                continue
            if short_name(call.func) == "wait" and resource.kind in KINDS:
                waits.setdefault(resource.id, (resource.kind, (fn, call)))
            elif resource.kind in QUEUES and not resource.one_of_several and in_loop(call, fn):
                gets.setdefault(resource.id, (fn, call))
    return waits, gets


def _events(fn: Function, waits: dict[str, Waiter], facts: Facts) -> Iterator[Witness]:
    """The events that a thread sets once, though not if it raises."""
    for event in dict.fromkeys(e for c in fn.calls if (e := _subject(c, ("set",), KINDS, fn, facts)) in waits):
        sets = [c for c in fn.calls if _subject(c, ("set",), KINDS, fn, facts) == event]
        conditional = any(enclosing(c, ast.If) or in_loop(c, fn) for c in sets)
        if conditional or waits[event][0] is fn or _set_elsewhere(event, fn, facts):
            continue
        yield from _skipped(fn, sets, event, waits[event])


def _for_others(fn: Function, facts: Facts) -> Iterator[Witness]:
    """An event that the first caller sets after the work, and for which later callers of the same method wait."""
    calls = [(c, e) for c in fn.calls if (e := _subject(c, ("set", "wait"), KINDS, fn, facts))]
    for event in dict.fromkeys(e for _, e in calls):
        sets = [c for c, e in calls if e == event and short_name(c.func) == "set"]
        waits = [c for c, e in calls if e == event and short_name(c.func) == "wait" and not has_timeout(c, "wait")]
        aside = [w for w in waits if enclosing(w, ast.If) is not None and sets and w.lineno < sets[0].lineno]
        if aside and not any(in_loop(c, fn) for c in sets) and not _set_elsewhere(event, fn, facts):
            yield from _skipped(fn, sets, event, (fn, aside[0]))


def _made_for_others(fn: Function, facts: Facts) -> Iterator[Witness]:
    """An event that a function stores where others find and await it, and sets only if its own work succeeds."""
    for target, value in fn.assigns:
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Call):
            continue
        if facts.module.constructed_kind(value, fn) not in KINDS:
            continue
        stored = [
            dotted(t).partition("[")[0]
            for t, v in fn.assigns
            if isinstance(t, ast.Subscript) and _is(v, value, target.id)
        ]
        sets = [c for c in fn.calls if dotted(c.func) == f"{target.id}.set"]
        if not stored or not sets or any(enclosing(c, ast.If) or in_loop(c, fn) or _at_last(c) for c in sets):
            continue
        waits = (
            (other, c)
            for other in facts.module.functions
            for c in other.calls
            if dotted(c.func) in (f"{stored[0]}[].wait", f"{stored[0]}.get().wait") and not is_limited(c)
        )
        waiter = next(waits, None)
        if waiter is not None:
            duty = Duty(fn, one_of(sets))
            for skipped in [s for s in duty.skipped_by_exceptions() if s.node.line > value.lineno][:1]:
                yield _report(fn, sets[0], skipped, stored[0], waiter)


def _at_last(call: ast.Call) -> bool:
    """Whether a call is made in a `finally`."""
    tried = enclosing(call, ast.Try)
    return isinstance(tried, ast.Try) and any(n is call for s in tried.finalbody for n in ast.walk(s))


def _is(value: ast.expr, construction: ast.Call, name: str) -> bool:
    """Whether a value is what was made, by its name or by the same assignment."""
    return value is construction or (isinstance(value, ast.Name) and value.id == name)


def _end_marks(fn: Function, gets: dict[str, Waiter], facts: Facts) -> Iterator[Witness]:
    """The end marks that a thread puts into a queue after its work, though not if that raises."""
    puts: dict[str, list[ast.Call]] = {}
    for call in fn.calls:
        queue = queue_of(call, ("put", "put_nowait"), fn, facts)
        if queue in gets and gets[queue][0] is not fn and not in_loop(call, fn) and is_end_mark(call):
            puts.setdefault(queue, []).append(call)
    for queue, marks in puts.items():
        works = any(queue_of(c, ("put", "put_nowait"), fn, facts) == queue and in_loop(c, fn) for c in fn.calls)
        if works and not any(enclosing(mark, ast.If) for mark in marks):
            yield from _skipped(fn, marks, queue, gets[queue])


def _skipped(fn: Function, met_by: list[ast.Call], what: str, waiter: Waiter) -> Iterator[Witness]:
    """The first step whose exception skips what others wait for."""
    duty = Duty(fn, one_of(met_by))
    binding = fn.bound.get(what.rpartition(".")[2])
    line = binding.lineno if binding is not None and what.startswith(fn.qualname + ".") else 0  # a local event
    ways = [s for s in duty.skipped_by_exceptions() if s.node.line > line and not _met_in_handler(s, met_by)]
    ways += [s for s in duty.returns_without() if _in_handler(s)] if not ways else []
    for skipped in ways[:1]:
        yield _report(fn, met_by[0], skipped, what, waiter)


def _met_in_handler(skipped: Skipped, met_by: list[ast.Call]) -> bool:
    """Whether the exceptions that a step is expected to raise are caught, and the handler does what is owed."""
    tried = enclosing(skipped.node.syntax, ast.Try) if skipped.node.syntax is not None else None
    handlers = tried.handlers if isinstance(tried, ast.Try) else []
    return any(node is call for handler in handlers for node in ast.walk(handler) for call in met_by)


def _in_handler(skipped: Skipped) -> bool:
    """Whether a return is in a handler, so that something has gone wrong."""
    return skipped.node.syntax is not None and enclosing(skipped.node.syntax, ast.ExceptHandler) is not None


def _barriers(fn: Function, facts: Facts) -> Iterator[Witness]:
    """The barriers at which a thread does not arrive once it has caught an exception."""
    for barrier in dict.fromkeys(b for c in fn.calls if (b := _subject(c, ("wait",), BARRIERS, fn, facts))):
        if any(short_name(c.func) == "wait" and has_timeout(c, "wait") for c in fn.calls):
            continue
        duty = Duty(fn, lambda call, of=barrier: _subject(call, MEETS, BARRIERS, fn, facts) == of)  # type: ignore[misc]
        for skipped in [s for s in duty.skipped_by_exceptions() if s.caught][:1]:
            yield _left(fn, skipped, barrier)
        returns = sorted(duty.returns_without(), key=lambda skipped: skipped.node.line)
        for skipped in [s for s in returns if not _all_return(s, fn)][:1]:
            yield _left(fn, skipped, barrier)


def _all_return(skipped: Skipped, fn: Function) -> bool:
    """Whether every thread takes a return, or none: nothing that it depends on differs between them."""
    tests = [t for t in fn.tests if skipped.node.line in lines_of(t)]
    names = {n.id for t in tests for n in ast.walk(t.test) if isinstance(n, ast.Name)}
    return not names & ({*fn.parameters, *fn.bound, *fn.looped} - {fn.self_name})


def _subject(call: ast.Call, methods: tuple[str, ...], kinds: Container[str], fn: Function, facts: Facts) -> str:
    """The event or barrier of which a call is such a method; empty where it is none."""
    resource = resource_of(call, methods, fn, facts)
    return resource.id if resource is not None and resource.kind in kinds else ""


def _set_elsewhere(event: str, fn: Function, facts: Facts) -> bool:
    """Whether another function sets the event too."""
    others = (other for other in facts.module.functions if other is not fn)
    return any(_subject(c, ("set",), KINDS, other, facts) == event for other in others for c in other.calls)


def _report(fn: Function, at: ast.Call, skipped: Skipped, event: str, waiter: Waiter) -> Witness:
    sets = short_name(at.func) == "set"
    what = f"{event} is set" if sets else f"the end mark is put into {event}"
    return Witness(
        at,
        fn,
        what=what,
        fails=f"line {skipped.node.line} raises"
        if skipped.raised
        else f"the exception before line {skipped.node.line} comes",
        waiter=waiter,
        skipped=skipped,
        ends="returns" if skipped.caught else "ends",
        event=event,
        again="set" if sets else "put",
    )


def _left(fn: Function, skipped: Skipped, barrier: str) -> Witness:
    return Witness(
        skipped.node.syntax or fn.node,
        fn,
        "left",
        where=f"if line {skipped.node.line} raises, " * skipped.raised,
        barrier=barrier,
        skipped=skipped,
        raises="raises, catches that, and " * skipped.raised,
        name=barrier.rpartition(".")[2],
        place="in the handler" if skipped.raised else "before",
    )


def barrier_parties(facts: Facts) -> Iterator[Witness]:
    """Report functions that start as many threads as a barrier has parties, and wait at it themselves, or one less."""
    if not any(short_name(c.func) == "Barrier" for fn in facts.module.functions for c in fn.calls):
        return
    for fn in facts.module.functions:
        for call in fn.calls:
            count, runs = _started(call, fn, facts)
            if runs is None:
                continue
            for barrier, wait in _waits(runs, facts).items():
                parties = _parties(barrier, facts)
                waits = [c for c in fn.calls if _waits_at(c, fn, facts) == barrier and not in_loop(c, fn)]
                others = [f for f in facts.module.functions if f not in (fn, runs) and barrier in _waits(f, facts)]
                if parties is None or others or any(has_timeout(c, "wait") for c in (*waits, wait)):
                    continue
                if waits and _same(parties, count, fn):
                    yield Witness(waits[0], fn, barrier=barrier, runs=runs, what="one party more comes than it has")
                elif not waits and _one_more(parties, count, fn):
                    yield Witness(wait, runs, barrier=barrier, runs=runs, what="one party less comes than it has")


def _started(call: ast.Call, fn: Function, facts: Facts) -> tuple[ast.expr | None, Function | None]:
    """The function of which a loop, or a comprehension, makes so many threads."""
    if short_name(call.func) not in ("Thread", "Process"):
        return None, None
    _, word, position = STARTS[short_name(call.func)]
    target = keyword(call, word, position)
    at = parent(call)
    while at is not None and not isinstance(at, ast.For | ast.ListComp | ast.FunctionDef | ast.Module):
        at = parent(at)
    over = at.iter if isinstance(at, ast.For) else at.generators[0].iter if isinstance(at, ast.ListComp) else None
    counted = isinstance(over, ast.Call) and short_name(over.func) == "range" and len(over.args) == 1
    runs = facts.module.function_named(target, fn) if target is not None and counted else None
    return (over.args[0], runs) if isinstance(over, ast.Call) and runs is not None else (None, None)


def _waits(fn: Function, facts: Facts) -> dict[str, ast.Call]:
    """The barriers at which a function waits."""
    return {name: c for c in fn.calls if (name := _waits_at(c, fn, facts))}


def _waits_at(call: ast.Call, fn: Function, facts: Facts) -> str:
    resource = resource_of(call, ("wait",), fn, facts)
    return resource.id if resource is not None and resource.kind == "Barrier" and not resource.one_of_several else ""


def _parties(barrier: str, facts: Facts) -> ast.expr | None:
    """The number of parties of a barrier, where one place makes it."""
    constructions = [
        value
        for fn in facts.module.functions
        for target, value in fn.assigns
        if isinstance(value, ast.Call) and short_name(value.func) == "Barrier" and value.args
        if (resource := facts.module.resource(target, fn)) is not None and resource.id == barrier
    ]
    return constructions[0].args[0] if len(constructions) == 1 else None


def _same(one: ast.expr, other: ast.expr | None, fn: Function) -> bool:
    """Whether two numbers are the same: written alike, as an attribute or as the variable that it was given."""
    if other is None:
        return False
    left, right = _plain(one, fn), _plain(other, fn)
    return left == right


def _plain(node: ast.expr, fn: Function) -> str:
    text = ast.unparse(node)
    for target, value in fn.cls.methods["__init__"].assigns if fn.cls and "__init__" in fn.cls.methods else ():
        if dotted(target) == text and isinstance(value, ast.Name | ast.Constant):
            return ast.unparse(value)
    return text


def _one_more(parties: ast.expr, count: ast.expr | None, fn: Function) -> bool:
    """Whether a number is another one and one."""
    if not isinstance(parties, ast.BinOp) or not isinstance(parties.op, ast.Add):
        return False
    return is_constant(parties.right, 1) and _same(parties.left, count, fn)
