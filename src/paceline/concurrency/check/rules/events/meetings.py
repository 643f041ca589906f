"""Events that are not set and barriers that are not reached, where others wait."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.duties import Duty, Skipped, one_of
from paceline.concurrency.check.flow.effects import has_timeout, is_limited
from paceline.concurrency.check.libraries.catalogue import PUTS, QUEUES
from paceline.concurrency.check.rules.rule import Witness, queue_uses
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.tree import (
    calls_in,
    dotted,
    enclosing,
    is_constant,
    keyword,
    lines_of,
    short_name,
)
from paceline.concurrency.check.threads.evidence import owns_lock
from paceline.concurrency.check.threads.roots import STARTS, in_loop, turns_around
from paceline.concurrency.check.threads.stops import is_end_mark
from paceline.concurrency.check.values.calls import functions_of

KINDS = {"Event": "thread", "ProcessEvent": "process", "AsyncEvent": "task"}  # what sets it, where others wait
LATER = ("apply_async", "map_async", "starmap_async")
BARRIERS = ("Barrier", "AsyncBarrier")
BROKEN = "BrokenBarrierError"


def never_set(facts: Facts) -> Iterator[Witness]:
    """Report threads and tasks in which an exception skips what others wait for."""
    waits, gets = _waited_for(facts)
    run: dict[int, tuple[Function, set[str]]] = {}
    # What is started in a group ends with the group, which then raises in those that wait.
    for root in (r for r in facts.roots if not r.together):
        run.setdefault(id(root.function), (root.function, set()))[1].add(root.kind)
    for fn, kinds in run.values():
        yield from _events(fn, {e: w for e, w in waits.items() if KINDS[w.resource.kind] in kinds}, facts)
        yield from _end_marks(fn, gets if kinds & {"thread", "process", "task"} else {}, facts)
        if "thread" in kinds:
            yield from _barriers(fn, facts)
    for fn in {id(r.function): r.function for r in facts.roots if r.kind == "task"}.values():
        yield from _barriers(fn, facts)
    for fn in facts.module.functions:
        yield from _made_for_others(fn, facts)
        yield from _by_callbacks(fn, waits | gets, facts)
    for fn in facts.module.functions if waits else ():
        cleared = {use.of for use in facts.uses(("clear",), KINDS) if use.fn is fn and use.of in waits}
        if cleared and id(fn) not in run:  # says itself that others wait while it works
            yield from _events(fn, {e: waits[e] for e in cleared}, facts)
        elif id(fn) not in run and fn.cls is not None and owns_lock(fn.cls, facts):
            yield from _for_others(fn, facts)


def _waited_for(facts: Facts) -> tuple[dict[str, Use], dict[str, Use]]:
    """The events that are waited for without a timeout, and the queues that a loop gets from so."""
    limited = (
        u for u in facts.uses(("wait", "get")) if has_timeout(u.call, short_name(u.call.func)) or is_limited(u.call)
    )
    left_out = {id(use.call) for use in limited}
    waits, gets = dict[str, Use](), dict[str, Use]()
    for use in (use for use in facts.uses(("wait", "get")) if id(use.call) not in left_out):
        if short_name(use.call.func) == "wait" and use.resource.kind in KINDS:
            waits.setdefault(use.of, use)
        elif use.resource.kind in QUEUES and not use.resource.one_of_several and in_loop(use.call, use.fn):
            gets.setdefault(use.of, use)
    return waits, gets


def _events(fn: Function, waits: dict[str, Use], facts: Facts) -> Iterator[Witness]:
    """The events that a thread sets once, though not if it raises."""
    every = facts.uses(("set",), KINDS)
    for event in dict.fromkeys(use.of for use in every if use.fn is fn and use.of in waits):
        sets = [use for use in every if use.of == event]
        conditional = any(enclosing(use.call, ast.If) or in_loop(use.call, fn) for use in sets if use.fn is fn)
        # An event that is set under a condition, or by several, is not promised by this function.
        if not conditional and waits[event].fn is not fn and all(use.fn is fn for use in sets):
            yield from _skipped(fn, [use.call for use in sets], event, waits[event])


def _for_others(fn: Function, facts: Facts) -> Iterator[Witness]:
    """An event that the first caller sets after the work, and for which later callers of the same method wait."""
    for event in dict.fromkeys(use.of for use in facts.uses(("set", "wait"), KINDS) if use.fn is fn):
        sets = facts.uses(("set",), KINDS, event)
        waits = [w for w in facts.uses(("wait",), KINDS, event) if w.fn is fn and not has_timeout(w.call, "wait")]
        aside = [w for w in waits if enclosing(w.call, ast.If) is not None and sets and w.line < sets[0].line]
        if aside and all(use.fn is fn and not in_loop(use.call, fn) for use in sets):
            yield from _skipped(fn, [use.call for use in sets], event, aside[0])


def _by_callbacks(fn: Function, waits: dict[str, Use], facts: Facts) -> Iterator[Witness]:
    """What others wait for and the callback of a pool's task does, which does not run where the task raises."""
    for call in fn.calls:
        callback = keyword(call, "callback")
        # `error_callback` is called in place of `callback` where the task raises.
        if callback is None or short_name(call.func) not in LATER or keyword(call, "error_callback") is not None:
            continue
        for run in functions_of(callback, fn, facts.module):
            runs = [run, *(e.callee for e in facts.runs(run) if e.callee is not None)]
            sets = next((u for u in facts.uses(("set", *PUTS)) if u.fn in runs and u.of in waits), None)
            if sets is not None:
                yield Witness(call, fn, "callback", run=run, event=sets.of, waiter=waits[sets.of])
                return


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
        names = (f"{stored[0]}[].wait", f"{stored[0]}.get().wait")
        waits = [(f, c) for c, f in facts.module.calls if dotted(c.func) in names and not is_limited(c)]
        skips = (s for s in Duty(fn, one_of(sets)).skipped_by_exceptions() if s.node.line > value.lineno)
        if waits and (skipped := next(skips, None)) is not None:
            waiter = Use(*waits[0], Resource(stored[0], "Event", True))
            yield _report(fn, sets[0], skipped, stored[0], waiter)


def _at_last(call: ast.Call) -> bool:
    """Whether a call is made in a `finally`."""
    tried = enclosing(call, ast.Try)
    return tried is not None and call in calls_in(tried.finalbody)


def _is(value: ast.expr, construction: ast.Call, name: str) -> bool:
    """Whether a value is what was made, by its name or by the same assignment."""
    return value is construction or (isinstance(value, ast.Name) and value.id == name)


def _end_marks(fn: Function, gets: dict[str, Use], facts: Facts) -> Iterator[Witness]:
    """The end marks that a thread puts into a queue after its work, though not if that raises."""
    puts = [use for use in queue_uses(facts, PUTS) if use.fn is fn and use.of in gets and gets[use.of].fn is not fn]
    for queue in dict.fromkeys(use.of for use in puts):
        of_it = [use.call for use in puts if use.of == queue]
        marks = [call for call in of_it if not in_loop(call, fn) and is_end_mark(call)]
        if marks and any(in_loop(call, fn) for call in of_it) and not any(enclosing(mark, ast.If) for mark in marks):
            yield from _skipped(fn, marks, queue, gets[queue])


def _skipped(fn: Function, met_by: list[ast.Call], what: str, waiter: Use) -> Iterator[Witness]:
    """The first step whose exception skips what others wait for."""
    duty = Duty(fn, one_of(met_by))
    binding = fn.bound.get(what.rpartition(".")[2])
    line = binding.lineno if binding is not None and what.startswith(fn.qualname + ".") else 0  # a local event
    ways = [s for s in duty.skipped_by_exceptions() if s.node.line > line and not _met_in_handler(s, met_by)]
    # A plain return may be meant to leave the event unset; one in a handler follows a failure.
    ways += [s for s in duty.returns_without() if _in_handler(s)] if not ways else []
    for skipped in ways[:1]:
        yield _report(fn, met_by[0], skipped, what, waiter)


def _met_in_handler(skipped: Skipped, met_by: list[ast.Call]) -> bool:
    """Whether the exceptions that a step is expected to raise are caught, and the handler does what is owed."""
    tried = enclosing(skipped.node.syntax, ast.Try) if skipped.node.syntax is not None else None
    return tried is not None and any(call in calls_in(tried.handlers) for call in met_by)


def _in_handler(skipped: Skipped) -> bool:
    """Whether a return is in a handler, so that something has gone wrong."""
    return skipped.node.syntax is not None and enclosing(skipped.node.syntax, ast.ExceptHandler) is not None


def _barriers(fn: Function, facts: Facts) -> Iterator[Witness]:
    """The barriers at which a thread does not arrive once it has caught an exception."""
    meets = [use for use in facts.uses(("wait", "abort"), BARRIERS) if use.fn is fn]
    for barrier in dict.fromkeys(use.of for use in meets if short_name(use.call.func) == "wait"):
        # A timeout breaks the barrier, which raises in all that wait at it.
        if any(short_name(c.func) == "wait" and has_timeout(c, "wait") for c in fn.calls):
            continue
        duty = Duty(fn, one_of(use.call for use in meets if use.of == barrier))
        for skipped in [s for s in duty.skipped_by_exceptions() if s.caught and not _is_freed(s, meets)][:1]:
            yield _left(fn, skipped, barrier)
        for skipped in [s for s in duty.returns_without() if not _all_return(s, fn)][:1]:
            yield _left(fn, skipped, barrier)


def _is_freed(skipped: Skipped, meets: list[Use]) -> bool:
    """Whether every handler meets the duty, but for that of an exception which a barrier raises in all who wait."""
    tried = enclosing(skipped.node.syntax, ast.Try) if skipped.node.syntax is not None else None
    handlers = tried.handlers if tried is not None else []
    others = [h for h in handlers if h.type is None or short_name(h.type) != BROKEN]
    inside = [calls_in(handler.body) for handler in others]
    return len(others) < len(handlers) and all(any(use.call in calls for use in meets) for calls in inside)


def _all_return(skipped: Skipped, fn: Function) -> bool:
    """Whether every thread takes a return, or none: nothing that it depends on differs between them."""
    tests = [t for t in fn.tests if skipped.node.line in lines_of(t)]
    names = {n.id for t in tests for n in ast.walk(t.test) if isinstance(n, ast.Name)}
    return not names & ({*fn.parameters, *fn.bound, *fn.looped} - {fn.self_name})


def _report(fn: Function, at: ast.Call, skipped: Skipped, event: str, waiter: Use) -> Witness:
    sets = short_name(at.func) == "set"
    what, again = (f"{event} is set", "set") if sets else (f"the end mark is put into {event}", "put")
    line, ends = skipped.node.line, "returns" if skipped.caught else "ends"
    fails = f"line {line} raises" if skipped.raised else f"the exception before line {line} comes"
    return Witness(at, fn, what=what, fails=fails, waiter=waiter, skipped=skipped, ends=ends, event=event, again=again)


def _left(fn: Function, skipped: Skipped, barrier: str) -> Witness:
    where, raises, place = "", "", "before"
    if skipped.raised:
        where, raises = f"if line {skipped.node.line} raises, ", "raises, catches that, and "
        place = "in the handler"
    return Witness(
        skipped.node.syntax or fn.node,
        fn,
        "left",
        barrier=barrier,
        skipped=skipped,
        where=where,
        raises=raises,
        place=place,
        name=barrier.rpartition(".")[2],
    )


def barrier_parties(facts: Facts) -> Iterator[Witness]:
    """Report functions that start as many threads as a barrier has parties, and wait at it themselves, or one less."""
    waits = [use for use in facts.uses(("wait",), ("Barrier",)) if not use.resource.one_of_several]
    for fn in facts.module.functions if waits else ():
        for call in fn.calls:
            count, runs = _started(call, fn, facts)
            for barrier, wait in {use.of: use for use in waits if use.fn is runs}.items():
                parties = _parties(barrier, facts)
                mine = [u.call for u in waits if u.of == barrier and u.fn is fn and not in_loop(u.call, fn)]
                others = any(u.of == barrier and u.fn not in (fn, runs) for u in waits)
                if parties is None or count is None or others:
                    continue
                # A wait with a timeout breaks the barrier where a party is missing.
                if any(has_timeout(c, "wait") for c in (*mine, wait.call)):
                    continue
                more = parties.left if isinstance(parties, ast.BinOp) and is_constant(parties.right, 1) else None
                adds = isinstance(parties, ast.BinOp) and isinstance(parties.op, ast.Add)
                short = int(parties.value) - int(count.value) - len(mine) if _known(parties, count) else 0  # type: ignore[attr-defined]
                if short > 0:
                    what = f"{short} parties less come than it has"
                    yield Witness(wait.call, wait.fn, barrier=barrier, runs=runs, what=what)
                elif mine and _plain(parties, fn) == _plain(count, fn):
                    yield Witness(mine[0], fn, barrier=barrier, runs=runs, what="one party more comes than it has")
                elif not mine and adds and more is not None and _plain(more, fn) == _plain(count, fn):
                    what = "one party less comes than it has"
                    yield Witness(wait.call, wait.fn, barrier=barrier, runs=runs, what=what)


def _known(*numbers: ast.expr) -> bool:
    """Whether these are whole numbers."""
    return all(isinstance(n, ast.Constant) and isinstance(n.value, int) for n in numbers)


def _started(call: ast.Call, fn: Function, facts: Facts) -> tuple[ast.expr | None, Function | None]:
    """The function of which a loop, or a comprehension, makes so many threads."""
    if short_name(call.func) not in ("Thread", "Process"):
        return None, None
    _, word, position = STARTS[short_name(call.func)]
    target, turns = keyword(call, word, position), turns_around(call)
    return turns, facts.module.function_named(target, fn) if target is not None and turns is not None else None


def _parties(barrier: str, facts: Facts) -> ast.expr | None:
    """The number of parties of a barrier, where one place makes it."""
    made = ((t, v, fn) for fn in facts.module.functions for t, v in fn.assigns if isinstance(v, ast.Call) and v.args)
    barriers = ((v, facts.module.resource(t, fn)) for t, v, fn in made if short_name(v.func) == "Barrier")
    parties = [call.args[0] for call, resource in barriers if resource is not None and resource.id == barrier]
    return parties[0] if len(parties) == 1 else None


def _plain(node: ast.expr, fn: Function) -> str:
    """A number as it is written, or as the variable that an attribute was given."""
    text = ast.unparse(node)
    for target, value in fn.cls.methods["__init__"].assigns if fn.cls and "__init__" in fn.cls.methods else ():
        if dotted(target) == text and isinstance(value, ast.Name | ast.Constant):
            return ast.unparse(value)
    return text
