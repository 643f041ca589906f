"""Summaries: what a function does itself and through everything that it calls, joined over the call graph of the file.

`takes` are the locks that a call may wait for, `waits` everything else, each with the shortest path of calls to it.
`guards` are the locks that every caller holds: a helper that is only called under a lock counts as locked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from paceline.check import libraries
from paceline.check.accesses import Access
from paceline.check.declarations import Function, Resource
from paceline.check.effects import Effect, runs_now, text_of
from paceline.check.findings import Step
from paceline.check.module import Module
from paceline.check.names import dotted, is_constant, keyword, parent, short_name
from paceline.check.propagation import Propagated, reached
from paceline.check.sequences import Sequences
from paceline.check.walk import Event, Walk, Walker


class Take(NamedTuple):
    """A lock that a function takes, itself or through its callees."""

    resource: Resource
    steps: tuple[tuple[Function, ast.expr], ...]  # the calls that lead there, then the take itself
    same: bool  # the same object all along the path: through self, or a global


class Wait(NamedTuple):
    """A wait without a timeout, in a function or its callees."""

    effect: Effect
    steps: tuple[tuple[Function, ast.expr], ...]


class Block(NamedTuple):
    """A call of a library that blocks its thread, in a function or its callees."""

    waits: str
    steps: tuple[tuple[Function, ast.expr], ...]


class Root(NamedTuple):
    """A function in which another path of execution begins."""

    kind: str  # thread, process, task, signal, del, gc, fork, exit
    function: Function
    line: int
    several: bool  # started in a loop, or more than once
    alone: bool = False  # joined before another thread is started


class Facts:
    """Everything that the rules need to know about one file."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.walker = Walker(module)
        self._takes = Propagated(self._own_takes, self.runs, self._taken_through)
        self._waits = Propagated(
            self._own_waits, self.runs, lambda fn, effect, wait: Wait(wait.effect, ((fn, effect.node), *wait.steps))
        )
        self._blocks = Propagated(
            self.own_blocks, self.runs, lambda fn, effect, b: Block(b.waits, ((fn, effect.node), *b.steps))
        )
        self._runs: dict[int, list[Effect]] = {}
        self._guards: dict[int, frozenset[str]] = {}
        self.accesses: dict[str, dict[str, list[Access]]] = {}  # cache of shared_state: by class, "" for globals

    def walk(self, fn: Function) -> Walk:
        """The walk through a function's control flow."""
        return self.walker.walk(fn)

    def events(self, fn: Function) -> list[Event]:
        """The effects in a function, each with the locks held there."""
        return self.walker.walk(fn).events

    def takes(self, fn: Function) -> dict[str, Take]:
        """Lock -> the shortest path on which this function takes it."""
        return self._takes.of(fn)

    def _own_takes(self, fn: Function) -> dict[str, Take]:
        found: dict[str, Take] = {}
        for event in self.events(fn):
            effect = event.effect
            if effect.kind == "take" and effect.resource is not None:
                found.setdefault(effect.resource.id, Take(effect.resource, ((fn, effect.node),), True))
        return found

    def _taken_through(self, fn: Function, effect: Effect, take: Take) -> Take:
        lock = take.resource.id
        # A function that has just tried the lock does not hold it itself.
        free = any(
            m.kind == "try" and m.resource is not None and m.resource.id == lock and m.line < effect.line
            for m in self.walker.effects(fn)
        )
        same = take.same and same_object(effect, fn) and not free
        return Take(take.resource, ((fn, effect.node), *take.steps), same)

    def waits(self, fn: Function) -> dict[str, Wait]:
        """Wait without a timeout -> the shortest path on which this function gets there."""
        return self._waits.of(fn)

    def _own_waits(self, fn: Function) -> dict[str, Wait]:
        found: dict[str, Wait] = {}
        for effect in self.walker.effects(fn):
            if effect.kind == "wait" and not effect.timeout:
                found.setdefault(text_of(effect.node), Wait(effect, ((fn, effect.node),)))
        return found

    def blocks_through(self, effect: Effect, fn: Function) -> dict[str, Block]:
        """Blocking function of a library -> the path on which a call gets there."""
        if effect.callee is None:
            own = self._library_call(effect.node)
            return {own[0]: Block(own[1], ((fn, effect.node),))} if own else {}
        if not runs_now(effect) or effect.callee.asynchronous:
            return {}
        through = self._blocks.of(effect.callee).items()
        return {what: Block(b.waits, ((fn, effect.node), *b.steps)) for what, b in through}

    def own_blocks(self, fn: Function) -> dict[str, Block]:
        """The blocking functions of libraries that a function calls itself."""
        found: dict[str, Block] = {}
        for effect in self.walker.effects(fn) if not fn.asynchronous else ():
            if effect.kind == "call" and effect.callee is None and (own := self._library_call(effect.node)):
                found.setdefault(own[0], Block(own[1], ((fn, effect.node),)))
        return found

    def _library_call(self, node: ast.expr) -> tuple[str, str] | None:
        """The blocking function of a library that an expression calls, and what it waits for."""
        if not isinstance(node, ast.Call):
            return None
        name = self.module.canonical(node.func).replace("()", "")
        waits = libraries.blocks(name)
        return (
            (name, waits) if waits and not (name == "time.sleep" and is_constant(keyword(node, "secs", 0), 0)) else None
        )

    def drops(self, fn: Function) -> dict[str, Effect]:
        """The locks that a function releases without having taken them: those of its caller."""
        found: dict[str, Effect] = {}
        for effect, held in self.events(fn):
            lock = effect.resource
            if effect.kind == "free" and lock is not None and all(h.resource.id != lock.id for h in held):
                found.setdefault(lock.id, effect)
        return found

    def runs(self, fn: Function) -> list[Effect]:
        """The calls that run another function of this file before they return."""
        if id(fn) not in self._runs:
            self._runs[id(fn)] = [m for m in self.walker.effects(fn) if m.callee is not fn and runs_now(m)]
        return self._runs[id(fn)]

    # -- who calls whom

    @cached_property
    def callers(self) -> dict[int, list[tuple[Function, Event]]]:
        """Function -> the functions that call it, and with which locks held."""
        found: dict[int, list[tuple[Function, Event]]] = {}
        for fn in self.module.functions:
            for event in self.events(fn):
                if event.effect.callee is not None:
                    found.setdefault(id(event.effect.callee), []).append((fn, event))
        return found

    @cached_property
    def used_as_values(self) -> set[str]:
        """Methods that are used as values, so that their callers are not known."""
        found = set()
        for fn in self.module.functions:
            called = {id(call.func) for call in fn.calls}
            found |= {a.attr for a in fn.attributes if id(a) not in called and isinstance(a.ctx, ast.Load)}
        return found

    def guards(self, fn: Function) -> frozenset[str]:
        """The locks that are held whenever this function runs, as far as this file can tell."""
        if id(fn) not in self._guards:
            order = reached(fn, lambda at: [caller for caller, _ in self._guarding(at)], self._guards)
            found: dict[int, frozenset[str] | None] = {id(at): None for at in order}  # None: not known yet
            while sum(self._guard(at, found) for at in order):
                pass
            self._guards |= {at: locks or frozenset() for at, locks in found.items()}
        return self._guards[id(fn)]

    def _guard(self, fn: Function, found: dict[int, frozenset[str] | None]) -> bool:
        """Intersect the locks of all callers known so far; whether that changed anything."""
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
        """The calls of this function, provided that all of them are in this file; else none."""
        private = fn.name.startswith("_") and not fn.name.startswith("__")
        if not private or fn.name in self.used_as_values:
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
        """The collectives of each function."""
        return Sequences(self.module, self.walker)

    # -- where other paths of execution begin

    @cached_property
    def roots(self) -> list[Root]:
        """The functions in which threads, processes, tasks, handlers and destructors begin."""
        return list(self._roots())

    def _roots(self) -> Iterator[Root]:
        """Every root of the file, in no particular order."""
        module = self.module
        for fn in module.functions:
            if self._serves(fn):
                yield Root("thread", fn, fn.line, True)
            if fn.name == "__del__":
                yield Root("del", fn, fn.line, True)
            for call in fn.calls:
                yield from self._started_by(call, fn)
            for target, value in fn.assigns:
                if isinstance(target, ast.Subscript) and short_name(target.value) == "signals":
                    handler = module.function_named(value, fn)
                    if handler is not None:
                        yield Root("signal", handler, value.lineno, False)
        for cls in module.classes.values():
            if "run" in cls.methods and cls.is_a("threading.Thread", "Thread", "threading.Timer"):
                made = [(f, c) for f in module.functions for c in f.calls if short_name(c.func) == cls.name]
                several = any(in_loop(c, f) for f, c in made) or (
                    len(made) > 1 and not all(joined_at_once(c, f) for f, c in made)
                )
                alone = bool(made) and all(joined_at_once(c, f) for f, c in made)
                yield Root("thread", cls.methods["run"], cls.node.lineno, several, alone)
            if any(base.endswith("Servicer") for base in cls.bases) and "grpc" in module.imports:
                yield from (Root("thread", m, m.line, True) for m in cls.methods.values() if m.name[:1].isupper())
            if "run" in cls.methods and cls.is_a("multiprocessing.Process", "multiprocessing.context.Process"):
                yield Root("process", cls.methods["run"], cls.node.lineno, False)

    def _serves(self, fn: Function) -> bool:
        """Whether a server of web pages runs this function, each request in a thread."""
        if fn.asynchronous or fn.cls is not None or not getattr(fn.node, "decorator_list", ()):
            return False
        calls = [d.func for d in fn.node.decorator_list if isinstance(d, ast.Call)]  # type: ignore[union-attr]
        routed = any(isinstance(f, ast.Attribute) and f.attr in ROUTES for f in calls)
        return routed and any(origin.split(".")[0] in SERVERS for origin in self.module.imports.values())

    def _started_by(self, call: ast.Call, fn: Function) -> Iterator[Root]:
        """The root that a call starts, if any."""
        name = short_name(call.func)
        if name not in STARTS:
            if name == "append" and "gc.callbacks" in self.module.canonical(call.func) and call.args:
                found = self.module.function_named(call.args[0], fn)
                if found is not None:
                    yield Root("gc", found, call.lineno, True)
            return
        kind, argument, position = STARTS[name]
        if name == "map" and not self._is_executor(call, fn):
            return
        if name in STARTS_IN_MODULE and STARTS_IN_MODULE[name] not in self.module.canonical(call.func).split("."):
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
        """Whether `map` is called on an executor."""
        found = self.module.resource(call.func.value, fn) if isinstance(call.func, ast.Attribute) else None
        return found is not None and found.kind == "Executor"

    @cached_property
    def _one_worker(self) -> bool:
        """Whether all executors have one thread, and so run one task at a time."""
        pools = [c for fn in self.module.functions for c in fn.calls if short_name(c.func) == "ThreadPoolExecutor"]
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
                    todo += [m.callee for m in self.walker.effects(fn) if m.callee is not None]
        return found

    def threads_of(self, fn: Function) -> set[str]:
        """The threads that reach a function."""
        return {t for t in self.reached.get(id(fn), ()) if t.startswith("thread:")}

    @cached_property
    def has_threads(self) -> bool:
        """Whether the file starts any thread."""
        return any(root.kind == "thread" for root in self.roots)


def same_object(effect: Effect, fn: Function) -> bool:
    """Whether a call stays on the same object: self.method(), super().method(), or a plain function."""
    call = effect.node
    if not isinstance(call, ast.Call):
        return True  # a property or an item of the own object
    if isinstance(call.func, ast.Name):
        return effect.callee is not None and effect.callee.name != "__init__"
    if isinstance(call.func, ast.Attribute):
        return dotted(call.func.value) in (fn.self_name, "cls", "super()", fn.cls.name if fn.cls else "self")
    return False


def call_steps(who: str, steps: tuple[tuple[Function, ast.expr], ...], end: str) -> list[Step]:
    """A path of calls as steps of a story, with `end` as what the last function does."""
    calls = [Step(who, node.lineno, f"{fn.qualname} calls {text_of(node)}") for fn, node in steps[:-1]]
    fn, node = steps[-1]
    return [*calls, Step(who, node.lineno, f"{fn.qualname} {end}")]


def in_loop(node: ast.AST, fn: Function) -> bool:
    """Whether this is inside a loop or comprehension of the function."""
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
    if len(own) < 2 or short_name(own[0].func) != "start" or short_name(own[1].func) != "join":
        return False
    return not any(short_name(c.func) == "start" and own[0].lineno < c.lineno < own[1].lineno for c in fn.calls)


_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)

# Calls that start another path of execution -> its kind, and the name and position of the argument that it runs.
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
# Web frameworks that run each request in a thread, and the decorators of their functions.
SERVERS = {"flask", "fastapi", "starlette", "bottle"}
ROUTES = {"route", "get", "post", "put", "patch", "delete"}
STARTS_IN_MODULE = {
    "register": "atexit",
    "register_at_fork": "os",
    "finalize": "weakref",
    "ref": "weakref",
    "signal": "signal",
}
