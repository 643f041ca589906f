"""Waits that nothing alive can end: who waits for what, what would end that, and why it does not come meanwhile.

A stop is *lost* where each of its enders is prevented as long as it lasts:

| prevented | because the ender |
|---|---|
| locked | needs a lock that the stopped thread holds |
| later | comes after the stop in the same thread, or in one that is started after it |
| itself | is the end of the thread that is stopped |
| worker | needs a worker of the pool that runs what is stopped |
| absent | is of a thread of the parent, where a child process is stopped: a fork copies no other thread |
| left | is of those who join, who empty no queue meanwhile |
| full, asleep, untold | comes only after a stop that is lost while this one lasts: for room, another one, a loop |
| in a circle | comes only after a stop that is one of those which last already |

This is the question that GCatch asks of channels and locks (Liu, Zhu, Qin, Chen and Song, 2021): which operations can
still proceed? It is asked of one stop at a time, with those that are stopped already as an assumption. So a circle of
waits needs no search of its own: it closes where an ender is behind a stop that is assumed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import has_timeout
from paceline.concurrency.check.flow.walk import Held
from paceline.concurrency.check.libraries.catalogue import QUEUES
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    around,
    dotted,
    enclosing,
    is_within,
    method_of,
    on_different_branches,
    parent,
    receiver_of,
    short_name,
)
from paceline.concurrency.check.threads.atomicity import on_the_way
from paceline.concurrency.check.threads.roots import in_loop
from paceline.concurrency.check.threads.stops import (
    EMPTIES,
    FILLS,
    POOLED,
    Ender,
    Steps,
    Stop,
    before_call,
    before_end,
    enders,
    tasks,
)

LOOPS = (ast.For, ast.AsyncFor, ast.While)
#: Roots that run beside what starts them, and objects of which a forked child has a copy that only its threads use.
BESIDE = ("thread", "process", "task")
OF_THREADS = ("Queue", "Event", "Condition")
#: What a program asks to know which thread it runs in.
ASKS_WHO = libraries.names("what asks which thread runs")
BEGINS = libraries.names("methods that start a thread")
LONGEST = 4  # stops that wait for each other in a circle


class Prevented(NamedTuple):
    """Why an ender does not come as long as a stop lasts."""

    why: str
    ender: Ender
    line: int = 0  # where the stopped thread would come to it, or start the thread that does
    lock: Held | None = None  # that it needs
    steps: Steps = ()  # the way on which it needs the lock
    stop: Stop | None = None  # that it is behind
    first: Any = None  # why nothing ends that, as another of these

    @property
    def who(self) -> Function:
        """The function that needs the lock."""
        return self.steps[0][0] if self.steps else self.ender.fn

    @property
    def circle(self) -> list[Stop]:
        """The stops behind which it is, one after the other."""
        return ([self.stop] if self.stop is not None else []) + (self.first.circle if self.first is not None else [])


def lost(stop: Stop, facts: Facts, stuck: tuple[Stop, ...] = ()) -> list[Prevented]:
    """Why nothing ends a stop while these last; empty where something may.

    One call suffices to end a wait for an item; a wait for the end of threads needs the end of each.
    """
    candidates = enders(stop, facts)
    if not candidates and stuck and stop.state == "asleep":
        return [Prevented("left", Ender(stop.steps[-1][0]))]  # another program may wake it, or none
    reasons = [r for ender in candidates if (r := prevented(ender, (*stuck, stop), facts)) is not None]
    needs_all = any(ender.call is None for ender in candidates)
    return reasons if needs_all or len(reasons) == len(candidates) else []


def prevented(ender: Ender, stuck: tuple[Stop, ...], facts: Facts) -> Prevented | None:
    """Why an ender does not come as long as these stops last; None where it may."""
    for reason in (_locked, _itself, _absent, _worker, _later) if ender.made is None else ():
        if (why := reason(ender, stuck[0], facts)) is not None:
            return why
    if ender.call is not None and (why := _left(ender, stuck, facts)) is not None:
        return why
    for stop in _before(ender, stuck, facts):
        if any(stop.call is other.call and stop.site is other.site for other in stuck):
            if any(_fills(each, facts) for each in stuck):
                return Prevented("in a circle", ender, stop.at.lineno, stop=stop)
        elif reasons := lost(stop, facts, stuck):
            first = reasons[0]
            behind = first.why if first.why == "in a circle" else f"{stop.state} {first.why}"
            return Prevented(behind, ender, first.line, stop=stop, first=first)
    return None


def _before(ender: Ender, stuck: tuple[Stop, ...], facts: Facts) -> Iterator[Stop]:
    """Where a thread may wait before an ender."""
    if len(stuck) < LONGEST:
        if ender.call is None:
            yield from before_end(ender, stuck[0], facts)
        elif stuck[-1].for_room:
            yield from before_call(ender, facts)


# Why an ender does not come.


def _locked(ender: Ender, stop: Stop, facts: Facts) -> Prevented | None:
    """An ender that needs a lock which the stopped function holds, unless the wait itself releases it."""
    for lock in stop.held:
        name = lock.resource.id
        steps = _way_to(name, ender, stop, facts) if stop.resource is None or stop.resource.id != name else ()
        if steps:
            return Prevented("locked", ender, ender.line, lock, steps)
    return None


def _way_to(lock: str, ender: Ender, stop: Stop, facts: Facts) -> Steps:
    """The way on which a lock is needed before an ender: by what runs to its end, or on the way to a call."""
    take = facts.takes(ender.fn).get(lock)
    call = ender.call
    if call is None:
        needed = take is not None and (stop.resource is not None or (take.same and take.resource.sure))
        return take.steps if needed and take is not None else ()
    events = (event for event in facts.events(ender.fn) if event.effect.node is call)
    if (mine := next((h for event in events for h in event.held if h.resource.id == lock), None)) is not None:
        return ((ender.fn, _named(mine, call)),)
    notifies = stop.resource is not None and stop.resource.kind.endswith("Condition")
    if take is not None and not notifies and _comes_first(take.steps[0][1], call):
        return take.steps
    # Only where every caller holds the lock: one that does not gets to the call.
    calls = facts.callers.get(id(ender.fn), [])
    under = [(caller, h, e.effect) for caller, e in calls for h in e.held if h.resource.id == lock]
    caller, first, effect = under[0] if under and len(under) == len(calls) else (ender.fn, None, None)
    return ((caller, _named(first, effect.node)),) if first is not None and effect is not None else ()


def _named(lock: Held, at: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Name(lock.receiver or lock.resource.id), at)


def _comes_first(take: ast.expr, call: ast.expr) -> bool:
    """Whether a lock is taken on the way to a call: before it, or in a loop around both."""
    loop = enclosing(call, ast.For, ast.While)
    inside = loop is not None and is_within(take, loop)
    return inside or (take.lineno < call.lineno and enclosing(take, ast.If) is None)


def _itself(ender: Ender, stop: Stop, facts: Facts) -> Prevented | None:
    """The end of the thread that is stopped; not where it asks which thread it is."""
    if ender.call is not None or ender.fn is not stop.fn:
        return None
    runs = [root for root in facts.roots if root.function is stop.fn and root.kind == "thread"]
    alone = stop.kind in POOLED or not any(root.several for root in runs)
    named = {n.attr for fn, _ in stop.steps for n in fn.attributes} | {
        short_name(c.func) for fn, _ in stop.steps for c in fn.calls
    }
    return Prevented("itself", ender, stop.at.lineno) if runs and alone and named.isdisjoint(ASKS_WHO) else None


def _absent(ender: Ender, stop: Stop, facts: Facts) -> Prevented | None:
    """An ender that only a thread of the parent reaches, where a child process is stopped that was forked."""
    if ender.call is None or stop.resource is None or stop.resource.kind not in OF_THREADS:
        return None
    child = next((r for r in facts.roots if r.kind == "process" and r.function is stop.fn), None)
    thread = next((r for r in facts.roots if r.kind == "thread" and r.function is ender.fn), None)
    if child is None or thread is None:
        return None
    tag = f"process:{child.function.qualname}"
    makers = [fn for fn in facts.module.functions if any(c.lineno == thread.line for c in fn.calls)]
    begun = any(tag in facts.reached.get(id(maker), ()) for maker in makers)
    return None if begun else Prevented("absent", ender, thread.line)


def _worker(ender: Ender, stop: Stop, facts: Facts) -> Prevented | None:
    """A task that needs a worker of the pool whose workers are stopped: each of them may run what is stopped."""
    given = [call for run, call in tasks(ender.pool, facts) if run is stop.fn] if ender.pool else []
    return Prevented("worker", ender, given[0].lineno) if given else None


def _later(ender: Ender, stop: Stop, facts: Facts) -> Prevented | None:
    """An ender to which the stopped function itself comes, or whose thread it starts, and only after the stop."""
    of_another = ender.fn is stop.fn and ender.site is not stop.site  # the same function on other objects
    places = _places(ender, stop.fn, facts) if not of_another else []
    if not places or any(_precedes(place, stop) for place in places):
        return None
    return Prevented("later", ender, min(place.lineno for place in places))


def _places(ender: Ender, fn: Function, facts: Facts) -> list[ast.expr]:
    """Where a function gets to a call, or starts the thread that does; none where others may get there, too."""
    if ender.fn is fn or ender.call is None:
        return [ender.call] if ender.call is not None else []
    callers = ((caller, event.effect.node) for caller, event in facts.callers.get(id(ender.fn), ()))
    # Another coroutine awaits the function, and gets there while this one is stopped.
    if any(isinstance(parent(node), ast.Await) and caller is not fn for caller, node in callers):
        return []
    calls = [e.node for e in facts.runs(fn) if e.callee is not None and ender.fn in facts.reached_from(e.callee)]
    tags = facts.reached.get(id(ender.fn), ())
    for root in (r for r in facts.roots if r.kind in BESIDE and f"{r.kind}:{r.function.qualname}" in tags):
        begun = [c for c in fn.calls if c.lineno == root.line]
        if not begun:
            return []  # it may run already
        starts = [c for c in fn.calls if method_of(c) in BEGINS and not c.args]
        calls += starts if starts and root.kind != "task" else begun
    return calls


def _precedes(place: ast.expr, stop: Stop) -> bool:
    """Whether a place may come before a stop. In a loop around both there is room until the first turn is over."""
    loops = [loop for loop in around(stop.at, *LOOPS) if is_within(place, loop)]
    if not loops:
        return place.lineno <= stop.line or not on_the_way(stop.at, place)
    if stop.for_room or loops[0] is not enclosing(stop.at, *LOOPS):
        return True
    return not (on_different_branches(stop.at, place) or stop.line < place.lineno)


def _left(ender: Ender, stuck: tuple[Stop, ...], facts: Facts) -> Prevented | None:
    """A call by which others empty a full queue, or wake a thread up, but no thread beside the one that joins."""
    join, full = stuck[0], stuck[-1]
    producer, put = full.steps[-1]
    if join is full or full.state == "untold" or facts.runs_beside(ender.fn) or not in_loop(put, producer):
        return None
    return None if _is_emptied(join, full, facts) else Prevented("left", ender, ender.line)


def _is_emptied(join: Stop, full: Stop, facts: Facts) -> bool:
    """Whether a function takes everything out of a queue before it joins."""
    fn, first = join.fn, _cut_off(join.at)  # what comes before the cleanup may have been left early
    earlier = [e for e in facts.walker.effects(fn) if first <= e.line <= join.at.lineno]
    calls = [(fn, e.node) for e in earlier] + [(e.callee, c) for e in earlier if e.callee for c in e.callee.calls]
    takes = {id(ender.call) for ender in enders(full, facts)}
    once = not full.for_room  # or until it is empty
    return any(id(c) in takes and (once or in_loop(c, f) or (f is fn and fn.cls is None)) for f, c in calls)


def _cut_off(join: ast.expr) -> int:
    """The first line of the `finally` in which a thread is joined; 0 where it is not in one."""
    tries = (t for t in around(join, ast.Try) if is_within(join, t.finalbody) and t.finalbody)
    return next((t.finalbody[0].lineno for t in tries), 0)


def _fills(stop: Stop, facts: Facts) -> bool:
    """Whether a thread may put more into a queue than it takes: not one for one, in the same turn of the same loop."""
    where, put = stop.steps[-1]
    receiver = receiver_of(put) if isinstance(put, ast.Call) else None
    if receiver is None or dotted(receiver).count(".") > 1:
        return False  # of the next stage of a chain, which has an end: `self.next.inbox`
    own = facts.module.resource(receiver, where)
    inside = facts.reached_from(stop.fn)
    uses = [
        use for use in facts.uses((*FILLS, *EMPTIES), QUEUES) if use.fn in inside and not use.resource.one_of_several
    ]
    # A put that gives up leaves no thread stopped, and a get that gives up makes no room for sure.
    uses = [use for use in uses if not has_timeout(use.call, method_of(use.call))]
    gets = [use for use in uses if method_of(use.call) in EMPTIES]
    puts = [use for use in uses if use not in gets and own is not None and use.resource.id == own.id]
    return len(puts) > len(gets) or any(all(not _matches(put, get) for get in gets) for put in puts)


def _matches(put: Use, get: Use) -> bool:
    """Whether every put comes with this get: in the same loop, and under no condition that the put is not under."""
    return _turn(put) is _turn(get) and _conditions(get) <= _conditions(put)


def _turn(use: Use) -> ast.AST:
    """The loop in whose turns a call is made, or the function."""
    at: ast.AST = use.call
    for loop in around(use.call, *LOOPS, ast.ListComp):
        if not any(n is at for n in ast.walk(getattr(loop, "iter", None) or ast.Pass())):
            return loop
    return use.fn.node


def _conditions(use: Use) -> set[int]:
    """The tests around a call within its loop."""
    blocks = around(use.call, ast.If, *LOOPS)
    return {id(test) for test in takewhile(lambda block: isinstance(block, ast.If), blocks)}
