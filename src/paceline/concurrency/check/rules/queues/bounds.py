"""Bounded queues that no one empties: in a circle, before their consumers start, after those have left."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import NamedTuple

from paceline.concurrency.check.flow.components import shortest_circles
from paceline.concurrency.check.flow.effects import has_timeout, runs_now, text_of
from paceline.concurrency.check.libraries.catalogue import QUEUES
from paceline.concurrency.check.reporting.findings import Step
from paceline.concurrency.check.rules.rule import Witness, queue_of, queue_uses
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Formal, Function, Resource
from paceline.concurrency.check.syntax.tree import around, dotted, enclosing, last_line, parent, short_name
from paceline.concurrency.check.threads.roots import in_loop
from paceline.narrative import Wait

DEPTH = 3  # calls through which a thread's use of queues is followed


class Transfer(NamedTuple):
    """A blocking put or get."""

    queue: Resource
    puts: bool
    call: ast.Call
    fn: Function


class Actor(NamedTuple):
    """A thread, task or process, or the code that starts it, with what it puts and gets."""

    name: str
    uses: tuple[Transfer, ...]


def queues_in_a_circle(facts: Facts) -> Iterator[Witness]:
    """Report circles of bounded queues of which one is fed faster than it is emptied."""
    actors = list(_actors(facts))
    following: dict[str, list[str]] = {}
    edges: dict[tuple[str, str], tuple[Actor, Transfer, Transfer]] = {}
    for actor in actors:
        for put in (u for u in actor.uses if u.puts and u.queue.bounded):
            for other in (o for o in actors if any(not u.puts and u.queue.id == put.queue.id for u in o.uses)):
                if other is actor and (not _grows(actor, put) or _of_another(put, actor)):
                    continue
                got = next(u for u in other.uses if not u.puts and u.queue.id == put.queue.id)
                following.setdefault(actor.name, []).append(other.name)
                edges.setdefault((actor.name, other.name), (actor, put, got))
    for name, others in following.items():
        if name in others:
            yield _report_queues_in_a_circle([edges[name, name]])
    for circle in shortest_circles(following):
        used = [edges[pair] for pair in pairwise([*circle, circle[0]])]
        queues = {put.queue.id for _, put, _ in used}
        # Where every actor takes an item for each that it puts, no queue of the circle ever fills.
        if len(queues) == len(used) and any(_grows(actor, put) for actor, put, _ in used):
            yield _report_queues_in_a_circle(used)


def _of_another(put: Transfer, actor: Actor) -> bool:
    """Whether a stage puts into the queue of another object, as a chain of them does: `self.next.inbox`."""
    got = [dotted(getattr(u.call.func, "value", u.call)) for u in actor.uses if not u.puts]
    text = dotted(getattr(put.call.func, "value", put.call))
    return text.count(".") > 1 and text not in got


def _actors(facts: Facts) -> Iterator[Actor]:
    """The roots of the file, every object whose queues were passed to it, and the functions that start them."""
    started = {id(root.function) for root in facts.roots}
    for fn in facts.module.functions:
        uses = _uses(fn, facts, DEPTH)
        if not uses or not (any(u.puts for u in uses) and any(not u.puts for u in uses)):
            continue
        formals = [u.queue.formal for u in uses if u.queue.formal is not None]
        sites = facts.module.objects.sites(formals[0].function) if formals else []
        for number, site in enumerate(sites, 1):
            bound = [_passed(use, formals[0].function, site, facts) for use in uses]
            yield Actor(f"{fn.qualname} ({number})", tuple(use for use in bound if use is not None))
        if not formals and (id(fn) in started or _starts_of_circle(fn, facts) or _is_beside(fn, started, facts)):
            yield Actor(fn.qualname, tuple(uses))


def _starts_of_circle(fn: Function, facts: Facts) -> bool:
    """Whether a function starts a thread or process, and so runs beside it."""
    return any(facts.module.constructed_kind(call, fn) in ("Thread", "Process") for call in fn.calls)


def _is_beside(fn: Function, started: set[int], facts: Facts) -> bool:
    """Whether a method is called from outside a thread that another method of its class is."""
    methods = fn.cls.methods.values() if fn.cls is not None else ()
    return any(id(method) in started for method in methods) and not facts.threads_of(fn)


def _uses(fn: Function, facts: Facts, depth: int) -> list[Transfer]:
    """The blocking puts and gets of a function and of what it calls."""
    uses = []
    for effect in facts.walker.effects(fn):
        call = effect.node
        if effect.callee is not None and effect.callee is not fn and depth and runs_now(effect):
            uses += _uses(effect.callee, facts, depth - 1)
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr in ("put", "get") and not has_timeout(call, call.func.attr):
            queue = facts.module.resource(call.func.value, fn)
            if queue is not None and queue.kind in QUEUES and not queue.one_of_several:
                uses.append(Transfer(queue, call.func.attr == "put", call, fn))
    return uses


def _passed(use: Transfer, owner: Function, site: ast.Call, facts: Facts) -> Transfer | None:
    """A use of a parameter as a use of what a call passes for it."""
    formal: Formal | None = use.queue.formal
    if formal is None or formal.function is not owner:
        return use
    argument = facts.module.objects.argument_at(owner, formal.name, site)
    queue = argument and facts.module.resource(argument.value, argument.caller)
    return use._replace(queue=queue) if queue else None


def _grows(actor: Actor, put: Transfer) -> bool:
    """Whether the actor may put more than it gets: not one for one, in the same turn of the same loop."""
    puts = [u for u in actor.uses if u.puts and u.queue.id == put.queue.id]
    gets = [u for u in actor.uses if not u.puts]
    if len(puts) > len(gets):
        return True
    return any(all(not _matches(p, g) for g in gets) for p in puts)


def _matches(put: Transfer, get: Transfer) -> bool:
    """Whether every put comes with this get: in the same loop, and under no condition that the put is not under."""
    return _loop(put) == _loop(get) and _conditions(get) <= _conditions(put)


def _loop(use: Transfer) -> int:
    at: ast.AST | None = use.call
    while at is not None:
        before, at = at, parent(at)
        if isinstance(at, ast.While | ast.ListComp) or (
            isinstance(at, ast.For | ast.AsyncFor) and before is not at.iter
        ):
            return id(at)
    return id(use.fn)


def _conditions(use: Transfer) -> set[int]:
    """The tests around a call within its loop."""
    blocks = around(use.call, ast.If, ast.For, ast.AsyncFor, ast.While)
    return {id(test) for test in takewhile(lambda block: isinstance(block, ast.If), blocks)}


def _report_queues_in_a_circle(circle: list[tuple[Actor, Transfer, Transfer]]) -> Witness:
    story, waits = [], []
    for number, (actor, put, _) in enumerate(circle):
        whom = circle[(number + 1) % len(circle)][0].name
        story.append(
            Step(actor.name, put.call.lineno, f"puts into {put.queue.id}, which is full, and waits for {whom}")
        )
        waits.append(Wait(actor.name, f"filled {put.queue.id}", f"take an item out of {put.queue.id}", whom))
    _, put, got = circle[0]
    others = f" (line {', line '.join(str(use.call.lineno) for _, use, _ in circle[1:])})" if len(circle) > 1 else ""
    return Witness(put.call, put.fn, story=story, waits=waits, put=put, got=got, others=others)


TAKES = ("get", "get_nowait")


def filled_before_started(facts: Facts) -> Iterator[Witness]:
    """Report bounded queues that a function fills before it starts what empties them, or empties them itself."""
    takers = queue_uses(facts, TAKES)
    for fn in facts.module.functions if takers else ():
        for call, put, queue in _fills(fn, facts):
            takes = [take for take in takers if take.of == queue]
            late = _started_after(call, fn, takes, facts) if takes and not _has_room(fn, queue) else None
            if late is not None:
                yield _report_filled_before_started(fn, call, put, queue, *late)
                break


def _fills(fn: Function, facts: Facts) -> Iterator[tuple[ast.Call, ast.Call, str]]:
    """The calls by which a function fills a bounded queue in a loop, and the puts, which a callee may make."""
    for effect in facts.walker.effects(fn):
        call, callee = effect.node, effect.callee
        if not isinstance(call, ast.Call) or has_timeout(call, "put"):
            continue
        if in_loop(call, fn) and (queue := queue_of(call, ("put",), fn, facts, bounded=True)):
            yield call, call, queue
        elif callee is not None and callee is not fn and runs_now(effect) and not effect.perhaps:
            for put in callee.calls:
                queue = queue_of(put, ("put",), callee, facts, bounded=True)
                if queue and in_loop(put, callee) and not has_timeout(put, "put"):
                    yield call, put, queue


def _has_room(fn: Function, queue: str) -> bool:
    """Whether a queue was made for all that is put into it."""
    binding = fn.bound.get(queue.rpartition(".")[2])
    return binding is not None and any(
        isinstance(n, ast.Call) and short_name(n.func) == "len" for n in ast.walk(binding)
    )


def _started_after(fill: ast.Call, fn: Function, takes: list[Use], facts: Facts) -> tuple[Function, int] | None:
    """Who empties a queue, if nothing does before a function has filled it, and the line where that begins."""
    begins: list[tuple[Function, int]] = []
    for take in takes:
        roots = [r for r in facts.roots if r.kind in ("thread", "process", "task") and r.function is take.fn]
        if take.fn is fn and not roots:
            loop = enclosing(take.call, ast.For, ast.AsyncFor, ast.While)
            if take.line <= fill.lineno or (loop is not None and loop.lineno <= fill.lineno):
                return None
            begins.append((fn, take.line))
            continue
        last = last_line(fn.node) or max((r.line for r in roots), default=0)
        callers = facts.callers.get(id(take.fn), ())
        is_called = any(isinstance(parent(event.effect.node), ast.Await) for _, event in callers)
        if not roots or is_called or any(not fn.line <= r.line <= last for r in roots):
            return None
        starts = [
            c.lineno for c in fn.calls if isinstance(c.func, ast.Attribute) and c.func.attr == "start" and not c.args
        ]
        line = min((starts if roots[0].kind != "task" else []) or [r.line for r in roots])
        if line <= fill.lineno:
            return None
        begins.append((take.fn, line))
    return begins[0] if begins else None


def _report_filled_before_started(
    fn: Function, fill: ast.Call, put: ast.Call, queue: str, taker: Function, line: int
) -> Witness:
    end, action = f"starts {taker.qualname}, which empties it, only afterwards", f"start {taker.qualname}"
    if taker is fn:
        end, action = "empties it itself only afterwards", "take the items"
    by = "," if fill is put else f", by {text_of(fill)},"
    return Witness(fill, fn, queue=queue, by=by, end=end, line=line, who="thread A", put=put, action=action)


def left_early(facts: Facts) -> Iterator[Witness]:
    """Report threads that leave the loop in which they read a bounded queue once it was empty for a while."""
    threads = {id(r.function) for r in facts.roots if r.kind == "thread"}
    for get in queue_uses(facts, ("get",)):
        tried, loop = enclosing(get.call, ast.Try), enclosing(get.call, ast.While)
        if id(get.fn) not in threads or not get.resource.bounded or not has_timeout(get.call, "get"):
            continue
        if not isinstance(loop, ast.While) or not isinstance(loop.test, ast.Constant):
            continue
        handlers = tried.handlers if isinstance(tried, ast.Try) else []
        empty = [h for h in handlers if h.type is not None and short_name(h.type) in ("Empty", "Exception")]
        exits = [h for h in empty if isinstance(h.body[-1], ast.Break | ast.Return)]
        puts = (
            put for put in queue_uses(facts, ("put",), get.of) if put.fn is not get.fn and in_loop(put.call, put.fn)
        )
        put = next((put for put in puts if not has_timeout(put.call, "put")), None)
        if exits and put is not None and not _ends(loop, exits[0]):
            handler = exits[0]
            yield Witness(handler.body[-1], get.fn, queue=get.of, producer=put.fn, put=put.call, handler=handler)


def _ends(loop: ast.While, handler: ast.ExceptHandler) -> bool:
    """Whether the loop has another end: an end mark, a flag."""
    inside = {id(n) for n in ast.walk(handler)}
    return any(isinstance(n, ast.Break | ast.Return) and id(n) not in inside for n in ast.walk(loop))
