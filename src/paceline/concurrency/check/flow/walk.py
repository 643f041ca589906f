"""The walk: depth-first through a function's control-flow graph, with the held locks as the state.

Each step is visited once for every set of locks that can be held there. The results of a walk are every call and take
with the locks held at that point (`events`), the exits with a lock still held (`leaks`), the locks that are certainly
held at each statement (`held_at`), and those that a context manager holds at its yield.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from paceline.concurrency.check.flow.effects import (
    ENTERS,
    Effect,
    effects_of,
    implicit_calls,
    lock_expression,
    runs_now,
)
from paceline.concurrency.check.libraries.catalogue import LOCKS
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.graph import Node, expressions
from paceline.concurrency.check.syntax.tree import dotted, parent, short_name
from paceline.concurrency.check.values.module import Module

STATES = 24  # sets of held locks per step; the walk of a function with more is cut
BUDGET = 20_000  # visits per function
#: Decorators that hold a lock around the function, by their names: of wrapt, oslo, and of many projects.
SYNCHRONIZED = re.compile(r"synchron|^with_?lock|^locked|_locked$", re.I)


class Held(NamedTuple):
    """A lock that is held, and where it was taken."""

    resource: Resource
    line: int
    by_with: bool
    receiver: str  # `self._lock` as written: the same object, or only one of the same name?
    node: ast.expr  # the lock as an expression of the function that holds it
    stack: str = ""  # the ExitStack that releases it
    by_callee: bool = False  # a function that was called has left it taken


State = tuple[Held, ...]


class Event(NamedTuple):
    """An effect, and the locks held when it happens."""

    effect: Effect
    held: State


class Leak(NamedTuple):
    """A lock that is still held where the function is left."""

    held: Held
    line: int  # where the function is left
    raised: bool


@dataclass(eq=False)
class Walk:
    """The results for one function."""

    events: list[Event] = field(default_factory=list)
    leaks: list[Leak] = field(default_factory=list)
    held_at: dict[int, frozenset[str]] = field(default_factory=dict)
    at_yield: State = ()
    left: State | None = None  # held on every normal way out; None where there is none
    dropped: list[Held] = field(default_factory=list)  # released, though not held here: locks of the caller
    cut: bool = False  # not all states were visited


class Walker:
    """Walks the functions of a module, each once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._effects: dict[int, list[Effect]] = {}
        self._walks: dict[int, Walk] = {}
        self.cut: list[Function] = []  # those whose walk ended at its budget

    def effects(self, fn: Function) -> list[Effect]:
        """The effects of a function's own calls, implicit ones included."""
        if id(fn) not in self._effects:
            self._effects[id(fn)] = [
                effect for call in fn.calls for effect in effects_of(call, fn, self.module)
            ] + implicit_calls(fn, self.module)
        return self._effects[id(fn)]

    def walk(self, fn: Function) -> Walk:
        """Walk a function, once."""
        if id(fn) not in self._walks:
            self._walks[id(fn)] = Walk()  # for a function that is reached again from itself
            result = self._walks[id(fn)] = self._walk(fn)
            if result.cut:
                self.cut.append(fn)
        return self._walks[id(fn)]

    def _walk(self, fn: Function) -> Walk:
        """Walk a function; one without locks needs no graph."""
        effects = self.effects(fn)
        around = self._decorators(fn)
        if (
            not around
            and not any(m.kind in ("take", "try", "free") for m in effects)
            and not any(self._entered(item.context_expr, fn) for w in fn.withs for item in w.items)
            and not (self.by_hand and any(self.moved(m, fn) for m in effects))
        ):
            return Walk([Event(m, ()) for m in effects])
        # A graph that would be too large is not built; then nothing is known of the locks that are held.
        graph = fn.graph
        if graph is None:
            return Walk([Event(m, ()) for m in effects], cut=True)
        by_call: dict[int, list[Effect]] = {}
        for effect in effects:
            by_call.setdefault(id(effect.node), []).append(effect)
        result = _Search(self, fn, by_call).run(graph.entry, graph.end, graph.failure, tuple(h for _, h in around))
        result.events += [Event(Effect("take", node, held.resource), ()) for node, held in around]
        effect_ids = {id(event.effect) for event in result.events}
        result.events += [Event(m, ()) for m in effects if id(m) not in effect_ids]  # unreachable calls, and decorators
        return result

    @cached_property
    def by_hand(self) -> bool:
        """Whether any lock of the file is taken or released by a call, and so may stay held after its function."""
        return any(
            m.kind in ("take", "try", "free") and isinstance(m.node, ast.Call)
            for fn in self.module.functions
            for m in self.effects(fn)
        )

    def moved(self, effect: Effect, fn: Function) -> tuple[list[Held], list[Held]] | None:
        """The locks that a callee leaves held and those that it releases for its caller; None where there are none."""
        callee = effect.callee
        # What only one of several possible callees does is not certain.
        if callee is None or callee is fn or effect.perhaps or effect.implicit:
            return None
        # A constructor takes the lock of an object that no one else has yet.
        if callee.name == "__init__" or not runs_now(effect):
            return None
        walk = self.walk(callee)
        if not walk.left and not walk.dropped:
            return None
        given = (self._given(h, callee, effect.node, fn) for h in walk.left or ())
        new_locks = [lock._replace(by_callee=True) for lock in given]
        return new_locks, [self._given(h, callee, effect.node, fn) for h in walk.dropped]

    def _given(self, lock_held: Held, callee: Function, site: ast.expr, fn: Function) -> Held:
        """A lock of a callee as the caller knows it: what it passed for a parameter, or an attribute of the object."""
        formal, lock = lock_held.resource.formal, lock_held.node
        if formal is not None and isinstance(site, ast.Call):
            passed = self.module.objects.argument_at(formal.function, formal.name, site)
            resource = passed and self.module.resource(passed.value, passed.caller)
            if passed is not None and resource is not None:
                lock, lock_held = passed.value, lock_held._replace(resource=resource)
        elif isinstance(lock, ast.Attribute) and callee.cls is not None and dotted(lock.value) == callee.self_name:
            function = site.func if isinstance(site, ast.Call) else site
            owner = function.value if isinstance(function, ast.Attribute) and callee.name[:2] != "__" else site
            lock = ast.copy_location(ast.Attribute(owner, lock.attr), site)
        return lock_held._replace(line=site.lineno, by_with=True, receiver=dotted(lock), node=lock)

    def _decorators(self, fn: Function) -> list[tuple[ast.expr, Held]]:
        """The locks that decorators of this file hold while they call the function."""
        locks_held = []
        for decorator in getattr(fn.node, "decorator_list", ()):
            named = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = named.id if isinstance(named, ast.Name) else ""
            maker = self.module.top.nested.get(name) or (fn.cls.methods.get(name) if fn.cls is not None else None)
            makers = [] if maker is None else [maker] if named is decorator else list(maker.nested.values())
            for each in makers:
                parameter = next(iter(each.parameters), "")
                for wrapper in each.nested.values():
                    locks_held += self._by_name(decorator, maker, wrapper, parameter, fn)
                    for event in self.walk(wrapper).events:
                        called = event.effect.node.func if isinstance(event.effect.node, ast.Call) else None
                        if isinstance(called, ast.Name) and called.id == parameter:
                            locks_held += [
                                (decorator, self._of(fn, self._given(h, each, decorator, fn))) for h in event.held
                            ]
            # The decorator of a library is not read: only its name says that it locks.
            if not locks_held and SYNCHRONIZED.search(short_name(named)):
                locks_held.append((decorator, self._declared_holder(decorator, fn)))
        return locks_held

    def _by_name(
        self, decorator: ast.expr, maker: Function | None, wrapper: Function, parameter: str, fn: Function
    ) -> list[tuple[ast.expr, Held]]:
        """The lock of `with getattr(self, name): method(self)`, where the decorator is given the name."""
        names = [*(maker.parameters if maker is not None else ())]
        words = dict(zip(names, decorator.args, strict=False)) if isinstance(decorator, ast.Call) else {}
        for item in (item for block in wrapper.withs for item in block.items):
            got = item.context_expr
            if not isinstance(got, ast.Call) or dotted(got.func) != "getattr" or len(got.args) < 2 or fn.cls is None:
                continue
            word = words.get(dotted(got.args[1]), got.args[1])
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                lock = self.module.attribute(fn.cls, word.value)
                if lock is not None and lock.kind in LOCKS and any(dotted(c.func) == parameter for c in wrapper.calls):
                    at = ast.copy_location(ast.Attribute(ast.Name(fn.self_name), word.value), decorator)
                    return [(decorator, Held(lock, decorator.lineno, True, f"{fn.self_name}.{word.value}", at))]
        return []

    def _declared_holder(self, decorator: ast.expr, fn: Function) -> Held:
        """The lock of a decorator that only its name tells of: its argument, or one that guards, but is in no order."""
        argument = decorator.args[0] if isinstance(decorator, ast.Call) and decorator.args else decorator
        lock = self.module.resource(argument, fn.outer or self.module.top) if argument is not decorator else None
        owner = fn.cls.name if fn.cls is not None else fn.qualname
        unknown = Resource(f"{owner}:@{short_name(getattr(decorator, 'func', decorator))}", "unknown", False)
        return Held(lock or unknown, fn.line, True, dotted(argument), argument)

    def _of(self, fn: Function, lock_held: Held) -> Held:
        """A lock of the wrapper's first argument as the lock of the function's own object."""
        owner, _, attribute = lock_held.receiver.rpartition(".")
        direct = fn.cls is not None and owner and "." not in owner
        resource = self.module.attribute(fn.cls, attribute) if fn.cls is not None and direct else None
        if resource is None:
            return lock_held
        return lock_held._replace(resource=resource, receiver=f"{fn.self_name}.{attribute}")

    def _entered(self, context: ast.expr, fn: Function) -> list[Held]:
        """The locks that a `with` takes: the lock itself, or those that a context manager holds at its yield."""
        resource = self.module.resource(context, fn)
        if resource is not None and resource.kind in LOCKS:
            return [Held(resource, context.lineno, True, dotted(context), context)]
        if isinstance(context, ast.Call):
            callee = self.module.callee(context, fn)
            if callee is not None and callee.generator and callee.decorated("contextmanager", "asynccontextmanager"):
                return [self._given(h, callee, context, fn) for h in self.walk(callee).at_yield]
        cls = self.module.type_of(context, fn) if self.by_hand else None
        enter = cls.method("__enter__") if cls is not None else None
        if enter is None or enter is fn:
            return []
        return [self._given(h, enter, context, fn) for h in self.walk(enter).left or ()]


class _Search:
    """The depth-first search behind one walk."""

    def __init__(self, walker: Walker, fn: Function, by_call: dict[int, list[Effect]]) -> None:
        self.walker, self.fn, self.by_call = walker, fn, by_call
        self.result = Walk()
        self.at: dict[int, list[Effect]] = {}
        self.recorded: set[tuple[int, State]] = set()
        self.start: State = ()

    def run(self, entry: Node, end: Node, failure: Node, start: State) -> Walk:
        """Visit every (node, state) once, within the budget, and return the results."""
        self.start = start
        todo: list[tuple[Node, State, int]] = [(entry, start, 0)]
        visited: dict[int, set[State]] = {}
        budget = BUDGET
        while todo:
            node, state, came_from = todo.pop()
            states = visited.setdefault(id(node), set())
            if state in states:
                continue
            budget -= 1
            if len(states) >= STATES or budget < 0:
                self.result.cut = True
                continue
            states.add(state)
            if node is end:
                self._leave(state)
            if node is end or node is failure:
                for lock_held in state:
                    # A `with` releases on every way out; what a callee has
                    # left taken is released by the caller, or by no one.
                    if not lock_held.by_with or (lock_held.by_callee and node is end):
                        self.result.leaks.append(Leak(lock_held, came_from or node.line, node is failure))
                continue
            self._remember(node, state)
            line = node.line if node.kind != "leave" else came_from
            after, tried = self._through(node, state)
            next_state = after if tried is None else (*after, tried)
            todo += [(following, next_state, line) for following in node.next]
            if node.otherwise is not None:
                todo.append((node.otherwise, after, line))
            if node.raises is not None:
                # A step that raises has released what it releases, but has not taken what it would take.
                raise_state = tuple(h for h in state if h in after or node.kind == "enter")
                todo.append((node.raises, raise_state, line))
        return self.result

    def _remember(self, node: Node, state: State) -> None:
        """Record what is held at this expression and at the statement that it heads."""
        ids = frozenset(h.resource.id for h in state)
        at, held_at = node.syntax, self.result.held_at
        while at is not None:
            before = held_at.get(id(at))
            # Certain is only what is held on every path to this step.
            held_at[id(at)] = ids if before is None else before & ids
            at = None if isinstance(at, ast.stmt) else parent(at)

    def _through(self, node: Node, state: State) -> tuple[State, Held | None]:
        """The state after a step, and the lock that a successful try in a test takes on its true branch."""
        if node.kind == "leave":
            item = node.syntax
            assert isinstance(item, ast.withitem)
            lock_keys = [(h.resource.id, h.line) for h in self.walker._entered(item.context_expr, self.fn)]
            stack = dotted(item.optional_vars) if item.optional_vars is not None else ""
            stays = (h for h in state if not h.stack or h.stack != stack)
            return tuple(h for h in stays if (h.resource.id, h.line) not in lock_keys or not h.by_with), None
        tried: Held | None = None
        for effect in self._effects_at(node):
            self._record(effect, state)
            resource = effect.resource
            if effect.kind == "call" and (moved := self.walker.moved(effect, self.fn) if self.walker.by_hand else None):
                state = _moved(state, *moved)
            if resource is None or effect.kind in ("call", "wait", "pause"):
                continue
            lock = lock_expression(effect.node)
            receiver = dotted(lock) if isinstance(effect.node, ast.Call) else ""
            stack = _stack(effect.node)
            if effect.kind != "free" and node.kind == "test" and node.syntax is effect.node:
                tried = Held(resource, effect.line, False, receiver, lock)
            elif effect.kind == "take":
                # Taken again in the next turn of a loop is still taken once: otherwise the states of a loop never end.
                if not any(h.resource.id == resource.id and h.line == effect.line for h in state):
                    state = (*state, Held(resource, effect.line, bool(stack), receiver, lock, stack))
            elif effect.kind == "free":
                if all(h.resource.id != resource.id for h in state):
                    self.result.dropped.append(Held(resource, effect.line, False, receiver, lock))
                state = _without(state, resource)
        if node.kind == "enter":
            item = node.syntax
            assert isinstance(item, ast.withitem)
            for lock_held in self.walker._entered(item.context_expr, self.fn):
                self._record(self._enter_effect(item, lock_held), state)
                if lock_held not in state:
                    state = (*state, lock_held)
        if self.fn.generator and node.syntax is not None and _yields(node):
            self.result.at_yield = state
        return state, tried

    def _leave(self, state: State) -> None:
        """Keep what is held on every normal way out."""
        before = self.result.left
        locks_held = [h for h in state if h not in self.start]
        ids = {h.resource.id for h in locks_held}
        self.result.left = tuple(locks_held if before is None else (h for h in before if h.resource.id in ids))

    def _enter_effect(self, item: ast.withitem, lock_held: Held) -> Effect:
        """The take of a `with` item, the same object at each visit."""
        key = id(item) ^ hash(lock_held.resource.id)
        if key not in self.at:
            self.at[key] = [Effect("take", item.context_expr, lock_held.resource)]
        return self.at[key][0]

    def _effects_at(self, node: Node) -> list[Effect]:
        """The effects of the calls that a node evaluates, in order."""
        syntax = expressions(node)
        if syntax is None:
            return []
        if id(syntax) not in self.at:
            self.at[id(syntax)] = [m for part in _parts(syntax) for m in self.by_call.get(id(part), ())]
        return self.at[id(syntax)]

    def _record(self, effect: Effect, state: State) -> None:
        """Add an event, once per effect and state."""
        key = (id(effect), state)
        if key not in self.recorded:
            self.recorded.add(key)
            self.result.events.append(Event(effect, state))


def _without(state: State, resource: Resource) -> State:
    """One release undoes the latest take of the same lock."""
    for index in range(len(state) - 1, -1, -1):
        if state[index].resource.id == resource.id:
            return state[:index] + state[index + 1 :]
    return state


def _moved(state: State, new_locks: list[Held], dropped: list[Held]) -> State:
    """The state after a call that releases some locks of its caller and leaves others held."""
    for lock_held in dropped:
        state = _without(state, lock_held.resource)
    for lock_held in new_locks:
        if not any(h.resource.id == lock_held.resource.id and h.line == lock_held.line for h in state):
            state = (*state, lock_held)
    return state


def _stack(node: ast.expr) -> str:
    """The ExitStack of `stack.enter_context(lock)`; empty for other takes."""
    function = node.func if isinstance(node, ast.Call) else None
    entered = isinstance(function, ast.Attribute) and function.attr in ENTERS
    return dotted(function.value) if entered else ""  # type: ignore[union-attr]


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions that may call a function, in order of evaluation, without nested definitions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _parts(child)
    if isinstance(node, ast.Call | ast.Attribute | ast.Subscript | ast.Name):
        yield node


def _yields(node: Node) -> bool:
    syntax = expressions(node)
    return syntax is not None and any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(syntax))
