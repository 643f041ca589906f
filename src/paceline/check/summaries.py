"""Summaries: what a function does through everything that it calls, joined over the file's call graph.

`takes` are the locks that a call may wait for, `waits` the other things, each with the calls that lead there. A
summary keeps the shortest way to each. `guards` are the locks that every caller holds: a helper that is only ever
called under a lock is as good as locked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from paceline.check.declared import Function, Resource
from paceline.check.findings import Step
from paceline.check.joined import Joined, reached
from paceline.check.marks import Mark, said
from paceline.check.module import Module
from paceline.check.names import dotted, is_constant, keyword, last, parent
from paceline.check.walk import Event, Walk, Walker

if TYPE_CHECKING:
    from paceline.check.accesses import Access
    from paceline.check.sequences import Sequences


class Take(NamedTuple):
    resource: Resource
    steps: tuple[tuple[Function, ast.expr], ...]  # the calls that lead there, then the take itself
    same: bool  # the same object all the way: through self, or a global


class Wait(NamedTuple):
    mark: Mark
    steps: tuple[tuple[Function, ast.expr], ...]


class Root(NamedTuple):
    """Where another path of execution begins."""

    kind: str  # thread, process, task, signal, del, gc, fork, exit
    function: Function
    line: int
    several: bool  # started in a loop, or more than once
    alone: bool = False  # joined before anything else is started


class Facts:
    """Everything that the rules ask of one file."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.walker = Walker(module)
        self._takes = Joined(self._own_takes, self.runs, self._taken_through)
        self._waits = Joined(
            self._own_waits, self.runs, lambda fn, mark, wait: Wait(wait.mark, ((fn, mark.node), *wait.steps))
        )
        self._runs: dict[int, list[Mark]] = {}
        self._guards: dict[int, frozenset[str]] = {}
        self.kept: dict[str, dict[str, list[Access]]] = {}  # class, or nothing for globals -> what accesses.py found

    def walk(self, fn: Function) -> Walk:
        return self.walker.walk(fn)

    def events(self, fn: Function) -> list[Event]:
        return self.walker.walk(fn).events

    def takes(self, fn: Function) -> dict[str, Take]:
        """Lock -> the shortest way on which this function waits for it."""
        return self._takes.of(fn)

    def _own_takes(self, fn: Function) -> dict[str, Take]:
        found: dict[str, Take] = {}
        for event in self.events(fn):
            mark = event.mark
            if mark.kind == "take" and mark.resource is not None:
                found.setdefault(mark.resource.id, Take(mark.resource, ((fn, mark.node),), True))
        return found

    def _taken_through(self, fn: Function, mark: Mark, take: Take) -> Take:
        lock = take.resource.id
        # a function that has just tried the lock would not come here if it held it itself
        free = any(
            m.kind == "try" and m.resource is not None and m.resource.id == lock and m.line < mark.line
            for m in self.walker.marks(fn)
        )
        same = take.same and same_object(mark, fn) and not free
        return Take(take.resource, ((fn, mark.node), *take.steps), same)

    def waits(self, fn: Function) -> dict[str, Wait]:
        """What a function waits for without a timeout -> the shortest way there."""
        return self._waits.of(fn)

    def _own_waits(self, fn: Function) -> dict[str, Wait]:
        found: dict[str, Wait] = {}
        for mark in self.walker.marks(fn):
            if mark.kind == "wait" and not mark.timeout:
                found.setdefault(said(mark.node), Wait(mark, ((fn, mark.node),)))
        return found

    def drops(self, fn: Function) -> dict[str, Mark]:
        """The locks that a function releases without having taken them: its caller's."""
        found: dict[str, Mark] = {}
        for mark, held in self.events(fn):
            lock = mark.resource
            if mark.kind == "free" and lock is not None and all(h.resource.id != lock.id for h in held):
                found.setdefault(lock.id, mark)
        return found

    def runs(self, fn: Function) -> list[Mark]:
        """The calls that run another function of this file before they return."""
        if id(fn) not in self._runs:
            self._runs[id(fn)] = [m for m in self.walker.marks(fn) if m.callee is not fn and runs_now(m)]
        return self._runs[id(fn)]

    # -- who calls whom

    @cached_property
    def callers(self) -> dict[int, list[tuple[Function, Event]]]:
        found: dict[int, list[tuple[Function, Event]]] = {}
        for fn in self.module.functions:
            for event in self.events(fn):
                if event.mark.callee is not None:
                    found.setdefault(id(event.mark.callee), []).append((fn, event))
        return found

    @cached_property
    def handed_on(self) -> set[str]:
        """Methods that are handed on as values: nobody knows who calls those, and when."""
        found = set()
        for fn in self.module.functions:
            called = {id(call.func) for call in fn.calls}
            found |= {a.attr for a in fn.attributes if id(a) not in called and isinstance(a.ctx, ast.Load)}
        return found

    def guards(self, fn: Function) -> frozenset[str]:
        """The locks that are held whenever this function runs, as far as this file can tell."""
        if id(fn) not in self._guards:
            order = reached(fn, lambda at: [caller for caller, _ in self._guarding(at)], self._guards)
            found: dict[int, frozenset[str] | None] = {id(at): None for at in order}  # none yet: any lock
            while sum(self._guard(at, found) for at in order):
                pass
            self._guards |= {at: locks or frozenset() for at, locks in found.items()}
        return self._guards[id(fn)]

    def _guard(self, fn: Function, found: dict[int, frozenset[str] | None]) -> bool:
        """Keep the locks that all callers known so far hold; whether that has changed anything."""
        before, guarding = found[id(fn)], self._guarding(fn)
        common = before if guarding else frozenset()
        for caller, event in guarding:
            outside = found[id(caller)] if id(caller) in found else self._guards[id(caller)]
            if outside is not None:
                held = outside.union(h.resource.id for h in event.held)
                common = held if common is None else common & held
        found[id(fn)] = common
        return common != before

    def _guarding(self, fn: Function) -> list[tuple[Function, Event]]:
        """The calls that lead to this function, if all of them are in this file."""
        private = fn.name.startswith("_") and not fn.name.startswith("__")
        if not private or fn.name in self.handed_on:
            return []
        return [(caller, event) for caller, event in self.callers.get(id(fn), ()) if caller.name != "__init__"]

    def held_at(self, node: ast.AST, fn: Function) -> frozenset[str]:
        """The locks that are held for certain where this is evaluated."""
        held = self.walk(fn).held_at
        at: ast.AST | None = node
        while at is not None and at is not fn.node:
            if id(at) in held:
                return held[id(at)] | self.guards(fn)
            at = parent(at)
        return self.guards(fn)

    @cached_property
    def sequences(self) -> Sequences:
        from paceline.check.sequences import Sequences

        return Sequences(self)

    # -- where other paths begin

    @cached_property
    def roots(self) -> list[Root]:
        return list(self._roots())

    def _roots(self) -> Iterator[Root]:
        module = self.module
        for fn in module.functions:
            if fn.name == "__del__":
                yield Root("del", fn, fn.line, True)
            for call in fn.calls:
                yield from self._begun_by(call, fn)
            for target, value in fn.assigns:
                if isinstance(target, ast.Subscript) and last(target.value) == "signals":
                    handler = module.function_named(value, fn)
                    if handler is not None:
                        yield Root("signal", handler, value.lineno, False)
        for cls in module.classes.values():
            if "run" in cls.methods and cls.is_a("threading.Thread", "Thread", "threading.Timer"):
                made = [(f, c) for f in module.functions for c in f.calls if last(c.func) == cls.name]
                several = any(in_loop(c, f) for f, c in made) or (
                    len(made) > 1 and not all(joined_at_once(c, f) for f, c in made)
                )
                alone = bool(made) and all(joined_at_once(c, f) for f, c in made)
                yield Root("thread", cls.methods["run"], cls.node.lineno, several, alone)
            if "run" in cls.methods and cls.is_a("multiprocessing.Process", "multiprocessing.context.Process"):
                yield Root("process", cls.methods["run"], cls.node.lineno, False)

    def _begun_by(self, call: ast.Call, fn: Function) -> Iterator[Root]:
        name = last(call.func)
        if name not in STARTS:
            if name == "append" and "gc.callbacks" in self.module.canonical(call.func) and call.args:
                found = self.module.function_named(call.args[0], fn)
                if found is not None:
                    yield Root("gc", found, call.lineno, True)
            return
        kind, argument, position = STARTS[name]
        if name == "map" and not self._is_executor(call, fn):
            return
        if name in OF_MODULE and OF_MODULE[name] not in self.module.canonical(call.func).split("."):
            return
        value = keyword(call, argument, position)
        if kind == "task" and isinstance(value, ast.Call):
            value = value.func
        if kind == "fork":
            value = call.keywords[0].value if call.keywords else None
        found = None if value is None else self.module.function_named(value, fn)
        if found is not None:
            many = name in ("submit", "map", "apply_async") and not self._one_worker
            several = many or (in_loop(call, fn) and name not in ("submit", "map"))
            yield Root(kind, found, call.lineno, several, not several and joined_at_once(call, fn))

    def _is_executor(self, call: ast.Call, fn: Function) -> bool:
        found = self.module.resource(call.func.value, fn) if isinstance(call.func, ast.Attribute) else None
        return found is not None and found.kind == "Executor"

    @cached_property
    def _one_worker(self) -> bool:
        """Executors of one thread run one task at a time."""
        pools = [c for fn in self.module.functions for c in fn.calls if last(c.func) == "ThreadPoolExecutor"]
        return bool(pools) and all(is_constant(keyword(c, "max_workers", 0), 1) for c in pools)

    @cached_property
    def reached(self) -> dict[int, set[str]]:
        """Function -> the roots that reach it, each as `kind:name`."""
        found: dict[int, set[str]] = {}
        for root in self.roots:
            tag = f"{root.kind}:{root.function.qualname}"
            todo = [root.function]
            while todo:
                fn = todo.pop()
                tags = found.setdefault(id(fn), set())
                if tag not in tags:
                    tags.add(tag)
                    todo += [m.callee for m in self.walker.marks(fn) if m.callee is not None]
        return found

    def threads_of(self, fn: Function) -> set[str]:
        return {t for t in self.reached.get(id(fn), ()) if t.startswith("thread:")}

    @cached_property
    def has_threads(self) -> bool:
        return any(root.kind == "thread" for root in self.roots)


def runs_now(mark: Mark) -> bool:
    """A call that runs the callee before it returns: not a generator's, nor a coroutine's unless awaited."""
    callee = mark.callee
    if callee is None or callee.generator:
        return False
    return not callee.asynchronous or isinstance(parent(mark.node), ast.Await)


def same_object(mark: Mark, fn: Function) -> bool:
    """Whether a call stays with the same object: self.method(), super().method(), or a plain function."""
    call = mark.node
    if not isinstance(call, ast.Call):
        return True  # a property or an item of the own object
    if isinstance(call.func, ast.Name):
        return mark.callee is not None and mark.callee.name != "__init__"
    if isinstance(call.func, ast.Attribute):
        return dotted(call.func.value) in (fn.me, "cls", "super()", fn.cls.name if fn.cls else "self")
    return False


def led(who: str, steps: tuple[tuple[Function, ast.expr], ...], end: str) -> list[Step]:
    """The calls that lead somewhere, told; the last does `end`."""
    told = [Step(who, node.lineno, f"{fn.qualname} calls {said(node)}") for fn, node in steps[:-1]]
    fn, node = steps[-1]
    return [*told, Step(who, node.lineno, f"{fn.qualname} {end}")]


def in_loop(node: ast.AST, fn: Function) -> bool:
    at = parent(node)
    while at is not None and at is not fn.node:
        if isinstance(at, _LOOPS):
            return True
        at = parent(at)
    return False


def joined_at_once(made: ast.Call, fn: Function) -> bool:
    """A thread whose `start()` is followed by its `join()`, with no other start in between."""
    name = next((dotted(target) for target, value in fn.assigns if value is made), "")
    if not name or in_loop(made, fn):
        return False
    own = [c for c in fn.calls if dotted(c.func) in (f"{name}.start", f"{name}.join") and c.lineno >= made.lineno]
    if len(own) < 2 or last(own[0].func) != "start" or last(own[1].func) != "join":
        return False
    return not any(last(c.func) == "start" and own[0].lineno < c.lineno < own[1].lineno for c in fn.calls)


_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)

# Calls that make another path of execution begin: its kind, and the argument that it begins in.
STARTS: dict[str, tuple[str, str, int]] = {
    "Thread": ("thread", "target", 1),
    "Timer": ("thread", "function", 1),
    "start_new_thread": ("thread", "function", 0),
    "submit": ("thread", "fn", 0),
    "map": ("thread", "fn", 0),
    "run_in_executor": ("thread", "func", 1),
    "to_thread": ("thread", "func", 0),
    "Process": ("process", "target", 1),
    "apply_async": ("process", "func", 0),
    "create_task": ("task", "coro", 0),
    "ensure_future": ("task", "coro", 0),
    "signal": ("signal", "handler", 1),
    "finalize": ("del", "func", 1),
    "ref": ("del", "callback", 1),
    "register": ("exit", "func", 0),
    "register_at_fork": ("fork", "after_in_child", 0),
}
OF_MODULE = {
    "register": "atexit",
    "register_at_fork": "os",
    "finalize": "weakref",
    "ref": "weakref",
    "signal": "signal",
}
