"""Summaries: what a function does itself and through everything that it calls, joined over the call graph of the file.

`takes` are the locks that a call may wait for, `waits` everything else, each with the shortest path of calls to it.
`guards` are the locks that every caller holds: a helper that is only called under a lock counts as locked.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.flow.effects import Effect, Propagated, ends_first, reached, runs_now, text_of
from paceline.concurrency.check.flow.walk import Event, Walk, Walker
from paceline.concurrency.check.ranks.sequences import Sequences
from paceline.concurrency.check.reporting.findings import Step
from paceline.concurrency.check.syntax.declarations import Class, Function, Resource
from paceline.concurrency.check.syntax.tree import dotted, is_constant, keyword, parent, short_name
from paceline.concurrency.check.threads.accesses import Access
from paceline.concurrency.check.threads.roots import Root, Roots, in_loop
from paceline.concurrency.check.together import of_own_file
from paceline.concurrency.check.values.calls import method_name
from paceline.concurrency.check.values.module import Module


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


class Use(NamedTuple):
    """A call of a method of a lock, a queue or another resource."""

    fn: Function
    call: ast.Call
    resource: Resource

    @property
    def of(self) -> str:
        """The identity of the resource."""
        return self.resource.id

    @property
    def line(self) -> int:
        return self.call.lineno


class Facts:
    """Everything that the rules need to know about one file."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.walker = Walker(module)
        self._takes = Propagated(self._own_takes, self._waited_for, self._taken_through)
        self._waits = Propagated(
            self._own_waits, self.runs, lambda fn, effect, wait: Wait(wait.effect, ((fn, effect.node), *wait.steps))
        )
        self._blocks = Propagated(
            self.own_blocks, self.runs, lambda fn, effect, b: Block(b.waits, ((fn, effect.node), *b.steps))
        )
        self._uses: dict[tuple[str, ...], list[Use]] = {}
        self._runs: dict[int, list[Effect]] = {}
        self._guards: dict[int, frozenset[str]] = {}
        self.accesses: dict[str, dict[str, list[Access]]] = {}  # cache of shared_state: by class, "" for globals
        self.evidence: dict[str, float] = {}  # cache of evidence: likewise
        self.lost: list[tuple[Any, Any]] | None = None  # cache of the lost waits

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
        takes: dict[str, Take] = {}
        for event in self.events(fn):
            effect = event.effect
            if effect.kind == "take" and effect.resource is not None:
                takes.setdefault(effect.resource.id, Take(effect.resource, ((fn, effect.node),), True))
        return takes

    def _taken_through(self, fn: Function, effect: Effect, take: Take) -> Take:
        lock = take.resource.id
        # A function that has just tried the lock does not hold it itself.
        free = any(
            m.kind == "try" and m.resource is not None and m.resource.id == lock and m.line < effect.line
            for m in self.walker.effects(fn)
        )
        same = take.same and (same_object(effect, fn) or is_single(take.resource)) and not free
        return Take(take.resource, ((fn, effect.node), *take.steps), same)

    def waits(self, fn: Function) -> dict[str, Wait]:
        """Wait without a timeout -> the shortest path on which this function gets there."""
        return self._waits.of(fn)

    def _own_waits(self, fn: Function) -> dict[str, Wait]:
        waits: dict[str, Wait] = {}
        for effect in self.walker.effects(fn):
            if effect.kind in ("wait", "pause") and not effect.timeout:
                waits.setdefault(text_of(effect.node), Wait(effect, ((fn, effect.node),)))
        return waits

    def blocks_through(self, effect: Effect, fn: Function) -> dict[str, Block]:
        """Blocking function of a library -> the path on which a call gets there."""
        if effect.callee is None:
            library_call = self._library_call(effect.node, fn)
            return {library_call[0]: Block(library_call[1], ((fn, effect.node),))} if library_call else {}
        if not runs_now(effect) or effect.callee.asynchronous:
            return {}
        through = self._blocks.of(effect.callee).items()
        return {what: Block(b.waits, ((fn, effect.node), *b.steps)) for what, b in through}

    def own_blocks(self, fn: Function) -> dict[str, Block]:
        """The blocking functions of libraries that a function calls itself."""
        blocks: dict[str, Block] = {}
        own = [e.node for e in self.walker.effects(fn) if e.kind == "call" and e.callee is None]
        for node in own if not fn.asynchronous else ():
            if (library_call := self._library_call(node, fn)) is not None:
                blocks.setdefault(library_call[0], Block(library_call[1], ((fn, node),)))
        return blocks

    def _library_call(self, node: ast.expr, fn: Function) -> tuple[str, str] | None:
        """The blocking function of a library that an expression calls, and what it waits for."""
        if not isinstance(node, ast.Call):
            return None
        name = method_name(node.func, fn, self.module)
        waits, gives_way = libraries.blocks(name), name == "time.sleep" and is_constant(keyword(node, "secs", 0), 0)
        return (name, waits) if waits and not gives_way else None

    def drops(self, fn: Function) -> dict[str, Effect]:
        """The locks that a function releases without having taken them: those of its caller."""
        releases: dict[str, Effect] = {}
        for effect, locks_held in self.events(fn):
            lock = effect.resource
            if effect.kind == "free" and lock is not None and all(h.resource.id != lock.id for h in locks_held):
                releases.setdefault(lock.id, effect)
        return releases

    def runs(self, fn: Function) -> list[Effect]:
        """The calls that run another function of this file before they return."""
        if id(fn) not in self._runs:
            self._runs[id(fn)] = [m for m in self.walker.effects(fn) if m.callee is not fn and runs_now(m)]
        return self._runs[id(fn)]

    def _waited_for(self, fn: Function) -> list[Effect]:
        """The calls whose callees end before a function continues, tasks that it gathers included."""
        return [effect for effect in self.walker.effects(fn) if effect.callee is not fn and ends_first(effect)]

    def lets_others_run(self, pause: ast.Await, fn: Function) -> bool:
        """Whether other tasks may run during an await: not where a coroutine of this file never waits itself."""
        called = self.module.callee(pause.value, fn) if isinstance(pause.value, ast.Call) else None
        if called is None or not called.asynchronous or called.generator or called.awaits:
            return True
        entered = any(isinstance(block, ast.AsyncWith) for block in called.withs)
        return entered or any(isinstance(loop, ast.AsyncFor) for loop in called.loops)

    # -- who uses what, and who calls whom

    def uses(self, methods: tuple[str, ...], kinds: Iterable[str] = (), of: str | None = None) -> list[Use]:
        """The calls of these methods of resources: of these kinds, of one resource, or of all."""
        if methods not in self._uses:
            self._uses[methods] = [
                Use(fn, call, resource)
                for fn in self.module.functions
                for call in fn.calls
                if isinstance(call.func, ast.Attribute) and call.func.attr in methods
                if (resource := self.module.resource(call.func.value, fn)) is not None
            ]
        every = self._uses[methods]
        return [u for u in every if (not kinds or u.resource.kind in kinds) and (of is None or u.of == of)]

    @cached_property
    def callers(self) -> dict[int, list[tuple[Function, Event]]]:
        """Function -> the functions that call it, and with which locks held."""
        call_sites: dict[int, list[tuple[Function, Event]]] = {}
        for fn in self.module.functions:
            for event in self.events(fn):
                if event.effect.callee is not None:
                    call_sites.setdefault(id(event.effect.callee), []).append((fn, event))
        return call_sites

    def is_one_object(self, lock: Resource) -> bool:
        """Whether the program has one such lock: a global, or that of a class of which it makes one object."""
        cls = self.module.classes.get(lock.id.rpartition(".")[0])
        if cls is None or lock.one_of_several:
            return is_single(lock)
        calls = ((c, fn) for c, fn in self.module.calls if short_name(c.func) == cls.name)
        makes = [(c, fn) for c, fn in calls if cls in self.module.objects.classes(c.func, fn)]
        return len(makes) == 1 and not in_loop(*makes[0])

    def made_outside(self, maker: Function, functions: set[Function]) -> bool:
        """Whether what a function makes, an object's constructor for it, is made by others than these functions."""
        if maker.name != "__init__" or maker.cls is None:
            return maker not in functions
        name = maker.cls.name
        sites = ((c, fn) for c, fn in self.module.calls if short_name(c.func) == name)
        return any(fn not in functions for c, fn in sites if maker.cls in self.module.objects.classes(c.func, fn))

    def reached_from(self, fn: Function) -> set[Function]:
        """A function and all that it runs in its own thread."""
        return self._begin.reached_from([fn])

    @cached_property
    def attributes_of_others(self) -> dict[str, list[tuple[ast.Attribute, Function]]]:
        """Attribute -> where it is read or changed of another object than the function's own."""
        accesses: dict[str, list[tuple[ast.Attribute, Function]]] = {}
        for fn in self.module.functions:
            for node in fn.attributes if fn is not self.module.top else ():
                if not (isinstance(node.value, ast.Name) and node.value.id == fn.self_name):
                    accesses.setdefault(node.attr, []).append((node, fn))
        return accesses

    @cached_property
    def _owners(self) -> dict[str, list[Class]]:
        owners: dict[str, list[Class]] = {}
        for cls in self.module.classes.values():
            for attribute in {*cls.values, *cls.annotations, *cls.methods}:
                owners.setdefault(attribute, []).append(cls)
        return owners

    def only_owner(self, node: ast.Attribute) -> Class | None:
        """The class that has an attribute of this name, if it is just one."""
        owners = of_own_file(self._owners.get(node.attr, ()), node.lineno, lambda cls: cls.node.lineno)
        return owners[0] if len(owners) == 1 else None

    @cached_property
    def used_as_values(self) -> set[str]:
        """Methods that are used as values, so that their callers are not known."""
        names = set()
        for fn in self.module.functions:
            called = {id(call.func) for call in fn.calls}
            names |= {a.attr for a in fn.attributes if id(a) not in called and isinstance(a.ctx, ast.Load)}
        return names

    def guards(self, fn: Function) -> frozenset[str]:
        """The locks that are held whenever this function runs, as far as this file can tell."""
        if id(fn) not in self._guards:
            order = reached(fn, lambda at: [caller for caller, _ in self._guarding(at)], self._guards)
            # Recursion: intersections start from "not known", which takes nothing away, and only shrink.
            locksets: dict[int, frozenset[str] | None] = {id(at): None for at in order}  # None: not known yet
            while sum(self._guard(at, locksets) for at in order):
                pass
            self._guards |= {at: locks or frozenset() for at, locks in locksets.items()}
        return self._guards[id(fn)]

    def _guard(self, fn: Function, locksets: dict[int, frozenset[str] | None]) -> bool:
        """Intersect the locks of all callers known so far; whether that changed anything."""
        before, guarding = locksets[id(fn)], self._guarding(fn)
        common = before if guarding else frozenset()
        for caller, event in guarding:
            outside = locksets[id(caller)] if id(caller) in locksets else self._guards[id(caller)]
            if outside is not None:
                locks_held = outside.union(h.resource.id for h in event.held)
                common = locks_held if common is None else common & locks_held
        locksets[id(fn)] = common
        return common != before

    def _guarding(self, fn: Function) -> list[tuple[Function, Event]]:
        """The calls of this function, provided that all of them are in this file; else none."""
        # A public function may be called from another file without any lock, unless the file is a program or another
        # function is around it; what is used as a value, as by a thread, may be called by anyone.
        is_closed = fn.name.startswith("_") or self._is_program or fn.outer not in (None, self.module.top)
        is_value = fn.name in self.used_as_values or fn.name in self._named_without_call
        if not is_closed or fn.name.startswith("__") or is_value:
            return []
        return [(caller, event) for caller, event in self.callers.get(id(fn), ()) if caller.name != "__init__"]

    @cached_property
    def _is_program(self) -> bool:
        """Whether the file has `if __name__ == "__main__":`, and so its own callers."""
        tests = (each.test for each in self.module.top.tests)
        return any(isinstance(test, ast.Compare) and dotted(test.left) == "__name__" for test in tests)

    @cached_property
    def _named_without_call(self) -> set[str]:
        """Functions that are used as values, so that their callers are not known."""
        called = {id(call.func) for fn in self.module.functions for call in fn.calls}
        names = (name for fn in self.module.functions for name in fn.names)
        return {name.id for name in names if id(name) not in called and isinstance(name.ctx, ast.Load)}

    def held_at(self, node: ast.AST, fn: Function) -> frozenset[str]:
        """The locks that are held for certain where this is evaluated."""
        locks_held = self.walk(fn).held_at
        at: ast.AST | None = node
        while at is not None and at is not fn.node:
            if id(at) in locks_held:
                return locks_held[id(at)] | self.guards(fn)
            at = parent(at)
        return self.guards(fn)

    @cached_property
    def sequences(self) -> Sequences:
        """The collectives of each function."""
        return Sequences(self.module, self.walker)

    # -- where other paths of execution begin

    @cached_property
    def _begin(self) -> Roots:
        return Roots(self.module, self.walker)

    @property
    def roots(self) -> list[Root]:
        """The functions in which threads, processes, tasks, handlers and destructors begin."""
        return self._begin.all

    @property
    def reached(self) -> dict[int, set[str]]:
        """Function -> the roots that reach it, each as `kind:name`."""
        return self._begin.reached

    def threads_of(self, fn: Function) -> set[str]:
        """The threads that reach a function."""
        return self._begin.threads_of(fn)

    def runs_beside(self, fn: Function) -> bool:
        """Whether a thread, process or task runs a function, and so continues while another one waits."""
        return any(root.startswith(("thread:", "process:", "task:")) for root in self.reached.get(id(fn), ()))

    def ways_to(
        self,
        fn: Function,
        does: Callable[[ast.Call, Function], bool],
        through: Callable[[Effect], bool] = lambda effect: True,
        depth: int = 3,
    ) -> Iterator[tuple[tuple[Function, ast.expr], ...]]:
        """The ways from a function to calls that do something, over so many calls, and no further than the first."""
        todo: list[tuple[Function, tuple[tuple[Function, ast.expr], ...]]] = [(fn, ())]
        visited: set[Function] = set()
        for at, way in todo:
            if at not in visited:
                visited.add(at)
                call = next((c for c in at.calls if does(c, at)), None)
                if call is not None:
                    yield (*way, (at, call))
                calls = [e for e in self.runs(at) if through(e)] if len(way) < depth and call is None else []
                todo += [(e.callee, (*way, (at, e.node))) for e in calls if e.callee is not None]

    def on_loop(self, fn: Function) -> bool:
        """Whether an event loop runs a function: a coroutine, or a callback that the loop was given."""
        return fn.asynchronous or id(fn) in self._begin.on_loop

    def runs_on_own(self, fn: Function) -> bool:
        """Whether every thread that reaches a function does so on an object of its own."""
        return id(fn) in self._begin.own

    @property
    def has_threads(self) -> bool:
        """Whether the file starts any thread."""
        return self._begin.has_threads


def is_single(lock: Resource) -> bool:
    """Whether there is one such lock in the program: a global one."""
    return "." not in lock.id and not lock.one_of_several and lock.formal is None


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
