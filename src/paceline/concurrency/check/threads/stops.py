"""Where threads wait, and what would end each wait: the objects behind it, by a table of what blocks and what wakes.

A *stop* is a step at which a thread waits without a timeout: for an item, room in a queue, an event, a notification or
the end of another thread. Its *enders* are the calls that end it, or the ends of what the other threads run. Which
methods wait, and which end such a wait, is data (`names.json`); what they are called is not known here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterable, Iterator
from math import inf
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import Effect, has_timeout, lock_expression, runs_now
from paceline.concurrency.check.flow.walk import Held, State
from paceline.concurrency.check.libraries.catalogue import EVENTS, PUTS, QUEUES, TAKE_ITEM, WAKES
from paceline.concurrency.check.summaries import Facts, Use
from paceline.concurrency.check.syntax.declarations import Class, Function, Resource
from paceline.concurrency.check.syntax.tree import (
    dotted,
    enclosing,
    is_constant,
    is_within,
    keyword,
    method_of,
    receiver_of,
    short_name,
)
from paceline.concurrency.check.threads.roots import PROCESSES, STARTS, in_loop
from paceline.concurrency.check.values.bindings import start_arguments
from paceline.concurrency.check.values.calls import functions_of

LEAVES = (ast.Break, ast.Return)
NAMED = (ast.Attribute, ast.Name)
Steps = tuple[tuple[Function, ast.expr], ...]
#: Waits that end when what another thread runs has ended, and those of them that wait for all tasks of a pool.
ENDED = libraries.names("waits that end with what another thread runs")
POOLED = libraries.names("waits for all tasks of a pool")
_OF_POOLS = {kind.partition(".")[2] for kind in POOLED}
#: Functions that wait for the tasks or futures which they are given.
_FOR_FUTURES = libraries.names("functions that wait for futures")
_GATHERS = libraries.names("functions that wait for all awaitables") | {
    name.rpartition(".")[2] for name in _FOR_FUTURES
}
#: What waits for room, or fills a pipe until a process cannot end -> the methods that empty it.
_EMPTIED: dict[str, str] = libraries.table("what empties that which a method fills")
FILLS = tuple(sorted({kind.partition(".")[2] for kind in _EMPTIED}))
EMPTIES = tuple(sorted({name for names in _EMPTIED.values() for name in names.split()}))
#: What ends a loop that asks for it, how a loop asks for it, and what says that nothing more comes.
_TELLS = libraries.names("methods that tell a loop to end")
_ASKS = libraries.names("methods by which a loop asks whether to end")
_MARK = re.compile(r"(^|_)(end|stop|done|eof|sentinel|finished|shutdown|poison|quit|exit)", re.IGNORECASE)
TOLD = "another thread to tell it to end"
#: Calls that wait for other programs -> what for; what wakes a thread there, and what limits how long it waits.
_OUTSIDE: dict[str, str] = libraries.table("calls that wait for other programs")
_WAKES_OUTSIDE = libraries.names("calls that wake what waits for other programs")
_LIMITS_OUTSIDE = libraries.names("calls that limit waits for other programs")
#: What a process has to get rid of before it ends, and what ends one whatever it does.
_OF_PROCESSES = ("ProcessQueue", "Pipe")
_CANCELS = libraries.names("methods that cancel a task")
_FORCES = libraries.names("methods that end a process by force")


class Stop(NamedTuple):
    """A step at which a thread waits until another one does something."""

    resource: Resource | None
    waits_for: str
    steps: Steps  # the calls that lead there from the function that is stopped, then the wait itself
    held: State = ()  # the locks that this function holds meanwhile
    until: int = 0  # the line at which a block ends that waits there
    site: ast.Call | None = None  # the call that says which resource it is, where that is a parameter

    @property
    def fn(self) -> Function:
        """The function that is stopped."""
        return self.steps[0][0]

    @property
    def at(self) -> ast.expr:
        """Where it is stopped."""
        return self.steps[0][1]

    @property
    def line(self) -> int:
        """The line at which it is stopped."""
        return self.until or self.at.lineno

    @property
    def call(self) -> ast.expr:
        """The wait itself."""
        return self.steps[-1][1]

    @property
    def method(self) -> str:
        """The method that waits."""
        return short_name(getattr(self.call, "func", self.call))

    @property
    def kind(self) -> str:
        """What waits: `Queue.get`, `await` for a task, a loop that goes on until it is told to end."""
        if self.resource is not None:
            return f"{self.resource.kind}.{self.method}"
        return "loop" if self.waits_for == TOLD else "outside" if self.waits_for in _OUTSIDE.values() else "await"

    @property
    def name(self) -> str:
        """The resource, or what is read from another program, or nothing."""
        call = self.call
        given = [*call.args[:1], receiver_of(call)] if isinstance(call, ast.Call) else []
        return self.resource.id if self.resource is not None else next((t for g in given if g and (t := dotted(g))), "")

    @property
    def state(self) -> str:
        """How a thread is meanwhile: of a queue that is full, asleep, or in a loop that it is not told to leave."""
        return "full" if self.for_room else "untold" if self.kind == "loop" else "asleep"

    @property
    def for_room(self) -> bool:
        """Whether it waits until there is room, of which there is some at first."""
        return self.waits_for == TAKE_ITEM

    @property
    def need(self) -> str:
        """What another thread has to do."""
        return self.waits_for.partition(" to ")[2] or "end"


class Ender(NamedTuple):
    """What would end a stop: a call, or the end of a function that a thread runs."""

    fn: Function
    call: ast.expr | None = None  # or the flag that is set; None for the end of the function
    site: ast.Call | None = None  # the call that says of which resource the call is
    made: ast.Call | None = None  # the construction of a process, in the function, of which nothing else is known
    pool: str = ""  # whose workers run it

    @property
    def line(self) -> int:
        return self.call.lineno if self.call is not None else self.fn.line


# Where threads wait.


def stops(facts: Facts) -> Iterator[Stop]:
    """The waits without a timeout, as each function sees them that waits, or that calls what does."""
    for fn in facts.module.functions:
        for effect, held in facts.events(fn):
            yield from stops_of(effect, held, fn, facts)
        for wait in fn.awaits if fn.asynchronous else ():
            held = _held(wait, fn, facts)
            if held and not _has_called(_CANCELS, fn, wait.lineno):  # a task that is cancelled leaves its wait
                yield Stop(None, "the task to end", ((fn, wait.value),), held)


def stops_of(effect: Effect, held: State, fn: Function, facts: Facts) -> Iterator[Stop]:
    """The waits of a call: its own one, or those of what it runs."""
    node, resource = effect.node, effect.resource
    if effect.kind in ("wait", "pause"):
        for passed, site in _bound(resource, facts) if resource is not None and not effect.timeout else ():
            if effect.waits_for != TAKE_ITEM or passed.bounded:
                yield Stop(passed, effect.waits_for, ((fn, node),), held, site=site)
    elif effect.callee is not None and runs_now(effect):
        for wait in facts.waits(effect.callee).values():
            yield Stop(wait.effect.resource, wait.effect.waits_for, ((fn, node), *wait.steps), held)
    elif isinstance(node, ast.Call) and effect.callee is None:
        if facts.module.canonical(node.func) in _FOR_FUTURES and keyword(node, "timeout", 1) is None:
            yield Stop(None, "the tasks to end", ((fn, node),), held)
        elif (receiver := receiver_of(node)) is not None and short_name(node.func) in _OF_POOLS:
            pool = facts.module.resource(receiver, fn)
            if pool is not None and f"{pool.kind}.{short_name(node.func)}" in POOLED:
                yield Stop(pool, "every task to end", ((fn, node),), held)


def _held(wait: ast.Await, fn: Function, facts: Facts) -> State:
    """The locks that a coroutine has taken itself where it awaits."""
    names = facts.held_at(wait, fn) - facts.guards(fn)
    takes = [event.effect for event in facts.events(fn) if event.effect.kind == "take"] if names else []
    return tuple(
        Held(e.resource, e.line, True, dotted(lock_expression(e.node)), e.node)
        for e in takes
        if e.resource is not None and e.resource.id in names
    )


def _has_called(names: Iterable[str], fn: Function, line: float = inf) -> bool:
    """Whether a function calls one of these methods, before a line."""
    return any(short_name(c.func) in names and c.lineno <= line for c in fn.calls)


def before_end(ender: Ender, join: Stop, facts: Facts) -> Iterator[Stop]:
    """Where a thread waits before it ends: to be told so, for what wakes it up to see that, for room in a queue."""
    if ender.made is not None:
        yield from _given(ender.made, ender.fn, facts)
        return
    fn = ender.fn
    yield from (Stop(None, TOLD, ((fn, loop.test),)) for loop in fn.loops if isinstance(loop, ast.While))
    told = {thing for thing, tell in tells(fn, facts) if tell.fn is join.fn and tell.line < join.line}
    for effect in facts.walker.effects(fn) if told else ():
        yield from _asleep(effect, fn, told, facts)
    inside = facts.reached_from(fn)
    for use in (use for use in facts.uses(FILLS) if use.fn in inside):
        method = short_name(use.call.func)
        full = use.resource.kind in _OF_PROCESSES or (use.resource.bounded and in_loop(use.call, use.fn))
        gives_up = (use.resource.kind in QUEUES and has_timeout(use.call, method)) or _has_called(_FORCES, use.fn)
        if full and not gives_up and f"{use.resource.kind}.{method}" in _EMPTIED:
            yield Stop(use.resource, TAKE_ITEM, ((use.fn, use.call),))


def _given(construction: ast.Call, fn: Function, facts: Facts) -> Iterator[Stop]:
    """What a process of which nothing else is known may fill: the queues and ends of pipes that it is given."""
    for value in start_arguments(construction, fn):
        resource = facts.module.resource(value, fn)
        if resource is not None and resource.kind in _OF_PROCESSES:
            method = next(kind.partition(".")[2] for kind in _EMPTIED if kind.startswith(resource.kind))
            call = ast.Call(ast.Attribute(value, method, ast.Load()), [], [])
            yield Stop(resource, TAKE_ITEM, ((fn, ast.copy_location(call, construction)),))


def _asleep(effect: Effect, fn: Function, told: set[Hashable], facts: Facts) -> Iterator[Stop]:
    """A wait in a loop that is left only where it sees what it has been told: it does not see that while it waits."""
    call, resource = effect.node, effect.resource
    loop = enclosing(call, ast.For, ast.While)
    exits = [enclosing(n, ast.If) for n in ast.walk(loop) if isinstance(n, LEAVES)] if loop is not None else [None]
    tests = [loop, *exits] if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant) else exits
    asked = [{_thing(n, fn, facts) for n in ast.walk(t.test) if isinstance(n, NAMED)} for t in tests if t is not None]
    # A loop with another way out, or none, ends by what is not seen here: nothing is said of it.
    if len(asked) < len(tests) or not asked or not all(things & told for things in asked):
        return
    if effect.kind == "wait" and not effect.timeout and resource is not None:
        # An event that is never cleared stays set: who comes later does not wait.
        if resource.kind not in EVENTS or facts.uses(("clear",), of=resource.id):
            yield Stop(resource, effect.waits_for, ((fn, call),))
        return
    method = method_of(call) if isinstance(call, ast.Call) and not call.args else ""
    name = facts.module.canonical(call.func) if isinstance(call, ast.Call) else ""
    waits_for = _OUTSIDE.get(name) or _OUTSIDE.get(f".{method}")
    # With a limit anywhere in the file the socket is taken to have one: it may be set where it was made.
    if waits_for is not None and not any(short_name(c.func) in _LIMITS_OUTSIDE for c, _ in facts.module.calls):
        yield Stop(None, waits_for, ((fn, call),))


def before_call(ender: Ender, facts: Facts) -> Iterator[Stop]:
    """Where a thread may wait for room on its way to a call, or in the loop around it."""
    for effect, held in facts.events(ender.fn):
        for stop in stops_of(effect, held, ender.fn, facts):
            if stop.for_room and stop.site is ender.site and stop.call is not ender.call:
                yield stop


# What would end a wait.


def enders(stop: Stop, facts: Facts) -> list[Ender]:
    """What would end a stop: the calls that wake it, or the ends of what the threads run for which it waits."""
    where, call = stop.steps[-1]
    if stop.kind == "loop":
        return [ender for _, ender in tells(where, facts)]
    if stop.kind == "outside":
        return [Ender(fn, c) for c, fn in facts.module.calls if short_name(c.func) in _WAKES_OUTSIDE]
    if stop.resource is None:
        return [each for part in _parts(call) for each in _ends(part, where, facts)]
    if stop.kind in POOLED:
        given = list(tasks(stop.resource.id, facts))
        own = [run for run, at in given if at is call]  # `pool.map(f, items)` waits for its own tasks
        return [Ender(run, pool=stop.resource.id) for run in own or [run for run, _ in given]]
    if stop.kind in ENDED:
        # A process that is killed ends whatever it waits for.
        forced = _has_called(_FORCES, stop.fn, stop.at.lineno)
        receiver = receiver_of(call) if isinstance(call, ast.Call) and not forced else None
        return list(_ends(receiver, where, facts)) if receiver is not None else []
    # Which of several is waited for is unknown, so that any call may be the one that ends it.
    if stop.resource.one_of_several or has_room(stop):
        return []
    wakes = tuple(_EMPTIED.get(stop.kind, "").split()) or WAKES.get((stop.resource.kind, stop.method), ())
    if stop.resource.kind == "Pipe":
        return [Ender(use.fn, use.call) for use in _other_end(stop, wakes, facts)]
    uses = facts.uses(wakes, (stop.resource.kind,)) if wakes else []
    bound = ((use, passed, site) for use in uses for passed, site in _bound(use.resource, facts))
    calls = (Ender(use.fn, use.call, site) for use, passed, site in bound if passed.id == stop.resource.id)
    return [ender for ender in calls if ender.fn.name != "__init__"]  # nothing waits for an object that is being made


def tells(fn: Function, facts: Facts) -> list[tuple[Hashable, Ender]]:
    """What ends the loops of a function: flags for which they ask, events, end marks; not what they change."""
    asked = {_thing(node, fn, facts): ends for node, ends in _asked(fn)}
    changed = [*(target for target, _ in fn.assigns), *(change.target for change in fn.augmented)]
    # A loop that changes a flag itself may leave without being told.
    for thing in (None, *(_thing(target, fn, facts) for target in changed)):
        asked.pop(thing, None)
    candidates: list[tuple[Hashable, Ender]] = []
    for other in facts.module.functions if asked else ():
        for target, value in other.assigns if other.name != "__init__" else ():
            thing = _thing(target, other, facts) if isinstance(value, ast.Constant) else None
            if isinstance(value, ast.Constant) and thing in asked and asked[thing] in (None, bool(value.value)):
                candidates.append((thing, Ender(other, target)))
        for call in other.calls:
            ends = method_of(call) in _TELLS or (method_of(call) in PUTS and is_end_mark(call))
            if ends and (thing := _thing(receiver_of(call), other, facts)) in asked:
                candidates.append((thing, Ender(other, call)))
    return candidates


def _asked(fn: Function) -> Iterator[tuple[ast.expr, bool | None]]:
    """What the loops of a function ask for before they go on, each with the value that ends them, if it is one."""
    for loop in fn.loops:
        if isinstance(loop, ast.comprehension):
            continue
        for call in (c for c in fn.calls if method_of(c) in _ASKS and is_within(c, loop)):
            yield call.func.value, None  # type: ignore[attr-defined]
        tests = [(loop.test, False)] if isinstance(loop, ast.While) else []
        tests += [(t.test, True) for t in fn.tests if is_within(t, loop) and isinstance(t.body[-1], LEAVES)]
        for test, ends in tests:
            negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
            flag = test.operand if isinstance(test, ast.UnaryOp) else test
            for node in (n for n in ast.walk(test) if isinstance(n, NAMED)):
                yield node, ends is not negated if node is flag else None


def _thing(node: ast.expr | None, fn: Function, facts: Facts) -> Hashable:
    """A resource, an attribute of a class or a variable, by a name that is the same in every function."""
    resource = facts.module.resource(node, fn) if node is not None else None
    if resource is not None and resource.sure:
        return resource.id
    if isinstance(node, ast.Attribute) and (owner := facts.module.type_of(node.value, fn)) is not None:
        return next((cls.name for cls in owner.ancestry if node.attr in cls.values), owner.name), node.attr
    if isinstance(node, ast.Name) and node.id != fn.self_name:
        return facts.module.objects.index.scope(node.id, fn), node.id
    return None


def is_end_mark(call: ast.Call) -> bool:
    """Whether None, or something named so, is put into a queue to say that nothing more comes."""
    argument = call.args[0] if call.args else None
    return is_constant(argument, None) or (argument is not None and _MARK.search(short_name(argument)) is not None)


def has_room(stop: Stop) -> bool:
    """Whether a stop is at a queue that was made for as much as is put into it."""
    where = stop.steps[-1][0]
    name = stop.resource.id.rpartition(".")[2] if stop.resource is not None and stop.for_room else ""
    made = next((scope.bound[name] for scope in where.scopes() if name in scope.bound), None)
    return made is not None and any(isinstance(n, ast.Call) and short_name(n.func) == "len" for n in ast.walk(made))


def _bound(resource: Resource, facts: Facts) -> Iterator[tuple[Resource, ast.Call | None]]:
    """A resource; of a parameter for which callers pass different ones, each of these with the call."""
    if resource.formal is None:
        yield resource, None
        return
    fn, name = resource.formal
    for site in facts.module.objects.sites(fn):
        argument = facts.module.objects.argument_at(fn, name, site)
        passed = facts.module.resource(argument.value, argument.caller) if argument is not None else None
        if passed is not None:
            yield passed, site


def _parts(awaited: ast.expr) -> list[ast.expr]:
    """The tasks of `await task` and of `await gather(*tasks)`; none where there is a timeout."""
    if not isinstance(awaited, ast.Call):
        return [awaited]
    gathers = short_name(awaited.func) in _GATHERS and keyword(awaited, "timeout") is None
    return [a.value if isinstance(a, ast.Starred) else a for a in awaited.args] if gathers else []


def _ends(node: ast.expr, fn: Function, facts: Facts) -> Iterator[Ender]:
    """The ends of what a thread, a task, or each of several in a container runs."""
    module = facts.module
    coroutine = module.callee(node, fn) if isinstance(node, ast.Call) else None
    if coroutine is not None and coroutine.asynchronous:
        yield Ender(coroutine)
        return
    for value in (*module.objects.of(node, fn), *module.objects.elements(node, fn)):
        made, maker = value.what, value.fn
        if isinstance(made, Class) and value.kind == "object" and (made.is_thread or made.is_a(*PROCESSES)):
            yield from (Ender(run) for run in (made.method("run"),) if run is not None)
        if not isinstance(made, ast.Call) or maker is None:
            continue
        kind, word, position = STARTS.get(short_name(made.func), ("", "", 0))
        target = keyword(made, word, position) if kind else None
        target = target.func if kind == "task" and isinstance(target, ast.Call) else target
        runs = functions_of(target, maker, module) if target is not None else []
        pool = _pool(made, maker, position, facts) if runs and kind != "task" else None
        yield from (Ender(run, pool=pool.id if pool is not None else "") for run in runs)
        if not runs and module.constructed_kind(made, maker) == "Process":
            yield Ender(maker, made=made)


def _pool(call: ast.Call, fn: Function, position: int, facts: Facts) -> Resource | None:
    """The pool or executor to which a call gives a task: its object, or what comes before the task."""
    owners = [receiver_of(call), *call.args[:position]]
    resources = (facts.module.resource(owner, fn) for owner in owners if owner is not None)
    return next((r for r in resources if r is not None and r.kind in ("Executor", "Pool")), None)


def tasks(pool: str, facts: Facts) -> Iterator[tuple[Function, ast.Call]]:
    """What the workers of a pool run, each with the call that gives it to the pool."""
    for call, fn in facts.module.calls:
        kind, word, position = STARTS.get(short_name(call.func), ("", "", 0))
        task = keyword(call, word, position) if kind in ("thread", "process") else None
        to = _pool(call, fn, position, facts) if task is not None else None
        if to is not None and to.id == pool and task is not None:
            yield from ((run, call) for run in functions_of(task, fn, facts.module))


def _other_end(stop: Stop, methods: tuple[str, ...], facts: Facts) -> list[Use]:
    """The calls of these methods of the other end of a pipe."""
    others = {(made, 1 - part) for made, part in _pipes(stop.call, stop.steps[-1][0], facts)}
    return [use for use in facts.uses(methods, ("Pipe",)) if others.intersection(_pipes(use.call, use.fn, facts))]


def _pipes(call: ast.expr, fn: Function, facts: Facts) -> list[tuple[ast.Call, int]]:
    """The pipes of which the object of a call is an end, and which of the two."""
    receiver = receiver_of(call) if isinstance(call, ast.Call) else None
    ends = facts.module.objects.results(receiver, fn) if receiver is not None else []
    return [(made, part) for made, maker, part in ends if facts.module.constructed_kind(made, maker) == "Pipe"]
