"""Effects: what a call means to other threads and processes.

lock.acquire()          take (or try, with a timeout or without blocking)
lock.release()          free
queue.get()             wait: for another thread or process, for ever unless it has a timeout
self._callback(x)       call: of a function of this file, or of an unknown one
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries.catalogue import ASYNC_LOCKS, LOCKS, NOTIFY, PAUSES, TAKE_ITEM, WAITS
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.tree import (
    contexts_around,
    dotted,
    enclosing,
    is_constant,
    keyword,
    parent,
    short_name,
)
from paceline.concurrency.check.values.calls import functions_of, targets
from paceline.concurrency.check.values.module import Module


@dataclass(eq=False, slots=True)
class Effect:
    """One call, or an expression that calls implicitly, and its effect."""

    kind: str  # take, try, free, wait, pause (a wait that is awaited), call
    node: ast.expr
    resource: Resource | None = None
    callee: Function | None = None
    waits_for: str = ""  # what a wait needs: who has to do what
    timeout: bool = False
    perhaps: bool = False  # one of several functions that the call may run
    implicit: bool = False  # the callee runs without a call of it: a block is entered, a generator iterated over

    @property
    def line(self) -> int:
        return self.node.lineno


def effects_of(call: ast.Call, fn: Function, module: Module) -> list[Effect]:
    """The effects of one call: of a resource, or of every function that it may run."""
    effect = _of_resource(call, fn, module)
    if effect is not None:
        return [effect]
    callees = targets(call, fn, module)
    if not callees and dotted(call.func) == "map" and call.args:
        callees = functions_of(call.args[0], fn, module)
    if not callees:
        return [Effect("call", call)]
    return [Effect("call", call, None, callee, perhaps=callee is not callees[0]) for callee in callees]


def _of_resource(call: ast.Call, fn: Function, module: Module) -> Effect | None:
    """The effect of a call on a lock, queue or another resource; None when it is none."""
    function = call.func
    if isinstance(function, ast.Attribute):
        method = function.attr
        if method in TAKES or method in FREES or method in TRIES:
            resource = module.resource(function.value, fn)
            # Methods called `lock` and `unlock` are those of many other things.
            if resource is not None and resource.kind in LOCKS and (resource.sure or method not in _ALSO):
                if method in FREES:
                    return Effect("free", call, resource)
                # A coroutine that is passed on takes nothing here:
                # `wait_for(lock.acquire(), 1)` gives up, a task takes it later.
                if resource.kind in ASYNC_LOCKS and isinstance(parent(call), ast.Call):
                    return Effect("try" if short_name(parent(call).func) == "wait_for" else "call", call)  # type: ignore[union-attr]
                return Effect("try" if method in TRIES or gives_up(call) else "take", call, resource)
        elif method in ENTERS and call.args:
            resource = module.resource(call.args[0], fn)
            if resource is not None and resource.kind in LOCKS:
                return Effect("take", call, resource)
        elif method in _WAITING:
            resource = module.resource(function.value, fn)
            if resource is not None and resource.kind in _PAUSING and isinstance(parent(call), ast.Await):
                room = TAKE_ITEM if method == "put" and resource.bounded else None
                whom = PAUSES.get((resource.kind, method)) or room
                return None if whom is None else Effect("pause", call, resource, None, whom)
            if resource is not None:
                whom = WAITS.get((resource.kind, method)) or (
                    TAKE_ITEM if method == "put" and resource.bounded else None
                )
                if whom is not None:
                    return Effect("wait", call, resource, None, whom, has_timeout(call, method))
                if method in ("wait", "wait_for") and resource.kind in ("Condition", "AsyncCondition"):
                    return Effect("wait", call, resource, None, NOTIFY, has_timeout(call, method))
    return None


def implicit_calls(fn: Function, module: Module) -> list[Effect]:
    """Calls without call syntax: properties of known objects, `self[key]` and `len(self)`."""
    effects = [
        Effect("call", node, None, owner.method(node.attr))
        for node in (fn.attributes if module.properties else ())
        if node.attr in module.properties and isinstance(node.ctx, ast.Load)
        if (owner := module.type_of(node.value, fn)) is not None
        if any(node.attr in cls.properties for cls in owner.ancestry)
    ]
    effects += [
        Effect("call", node, None, callee, implicit=True)
        for node, names in _entered_or_iterated(fn)
        for callee in module.objects.run_by(node, fn, names)
    ]
    cls = fn.cls
    if cls is None or not fn.self_name:
        return effects
    length = cls.method("__len__")
    effects += [
        Effect("call", item, None, method)
        for item in fn.subscripts
        if _is_self(item.value, fn) and (method := cls.method(_ITEMS[type(item.ctx)])) is not None
    ]
    effects += [
        Effect("call", call, None, length)
        for call in (fn.calls if length is not None else ())
        if isinstance(call.func, ast.Name) and call.func.id == "len" and call.args and _is_self(call.args[0], fn)
    ]
    return effects


def _entered_or_iterated(fn: Function) -> Iterator[tuple[ast.expr, tuple[str, ...]]]:
    """What blocks enter and loops go through, each with the methods of it that run."""
    for block in fn.withs:
        names = _ENTERING if isinstance(block, ast.With) else _ENTERING_LATER
        yield from ((item.context_expr, names) for item in block.items)
    for loop in fn.loops:
        if not isinstance(loop, ast.While):
            yield loop.iter, _ITERATING
    for call in fn.calls:
        if isinstance(call.func, ast.Name) and call.func.id in _EXHAUSTS:
            yield from ((given, _ITERATING) for given in call.args if not isinstance(given, ast.Constant))
    yield from ((given.value, _ITERATING) for given in fn.yields if isinstance(given, ast.YieldFrom))


def _is_self(node: ast.expr, fn: Function) -> bool:
    return isinstance(node, ast.Name) and node.id == fn.self_name


def gives_up(call: ast.Call) -> bool:
    """Whether an acquire has a timeout or does not block."""
    blocking = keyword(call, "blocking", 0)
    timeout = keyword(call, "timeout", 1)
    if keyword(call, "block") is not None:
        blocking = keyword(call, "block")
    if blocking is not None and not (isinstance(blocking, ast.Constant) and blocking.value):
        return True  # any number but 0 blocks: `acquire(5)` has no timeout
    return timeout is not None and not is_constant(timeout, None) and not _is_minus_one(timeout)


def has_timeout(call: ast.Call, method: str) -> bool:
    """Whether a wait has a timeout or does not block."""
    if method == "shutdown":
        wait = keyword(call, "wait", 0)
        return is_constant(wait, False)
    if method in ("get", "put"):
        block = keyword(call, "block", 0 if method == "get" else 1)
        if is_constant(block, False):
            return True
        timeout = keyword(call, "timeout", 1 if method == "get" else 2)
    elif method == "wait_for":
        timeout = keyword(call, "timeout", 1)
    else:
        timeout = keyword(call, "timeout", 0)
    return timeout is not None and not is_constant(timeout, None)


def is_limited(call: ast.AST) -> bool:
    """Whether a wait has a timeout from outside: `asyncio.wait_for(event.wait(), 5)`, or a block with a deadline."""
    around = enclosing(call, ast.Call)
    if isinstance(around, ast.Call) and short_name(around.func) in ("wait_for", "wait", "timeout"):
        return True
    return any(isinstance(c, ast.Call) and short_name(c.func) in _DEADLINES for c in contexts_around(call))


def _is_minus_one(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def lock_expression(node: ast.expr) -> ast.expr:
    """The lock of `with lock:`, of `lock.acquire()` or of `stack.enter_context(lock)`."""
    entered = isinstance(parent(node), ast.withitem)
    if entered or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return node
    if node.func.attr in ENTERS and node.args:
        return node.args[0]
    return node.func.value if node.func.attr in TAKES | FREES | TRIES else node


def runs_now(effect: Effect) -> bool:
    """Whether the callee runs before the call returns: not so for generators, nor for coroutines unless awaited."""
    callee = effect.callee
    if callee is None or (callee.generator and not effect.implicit):
        return False
    return effect.implicit or not callee.asynchronous or isinstance(parent(effect.node), ast.Await)


def ends_first(effect: Effect) -> bool:
    """Whether the callee ends before its caller continues: it runs now, or as a task that an await waits for."""
    up = parent(effect.node)
    while isinstance(up, _GATHERED) or (isinstance(up, ast.Call) and short_name(up.func) in _WAITS_FOR_ALL):
        up = parent(up)
    return runs_now(effect) or (effect.callee is not None and not effect.callee.generator and isinstance(up, ast.Await))


def text_of(node: ast.expr) -> str:
    """A call or name as text without arguments: `self._lock.acquire()`."""
    text = dotted(node.func if isinstance(node, ast.Call) else node)
    return text + "()" if isinstance(node, ast.Call) else text


TAKES = {"acquire", "acquire_lock", "__enter__", "lock"}
FREES = {"release", "release_lock", "__exit__", "unlock"}
TRIES = {"tryLock", "try_lock", "try_acquire"}
_ALSO = {"lock", "unlock", *TRIES}  # of locks whose creation was seen; others of these names may do anything
ENTERS = {"enter_context", "enter_async_context"}  # of a contextlib.ExitStack
_ENTERING = ("__enter__", "__exit__")
_ENTERING_LATER = ("__aenter__", "__aexit__")
_ITERATING = ("__iter__", "__next__", "__aiter__", "__anext__")
#: Functions that go through an iterable, or a part of it.
_EXHAUSTS = {"list", "tuple", "set", "sorted", "next", "sum", "any", "all", "max", "min", "dict", "enumerate", "zip"}
_ITEMS = {ast.Load: "__getitem__", ast.Store: "__setitem__", ast.Del: "__delitem__"}
_PAUSING = {kind for kind, _ in PAUSES}
_WAITING = {method for _, method in (*WAITS, *PAUSES)} | {"wait", "wait_for", "put"}
#: Calls that return when all that they are given has ended, and what may hold it on the way to them.
_WAITS_FOR_ALL = libraries.names("functions that wait for all awaitables")
_GATHERED = (ast.Starred, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp)
#: Context managers after whose time a wait in them ends: of asyncio, async_timeout, anyio, trio and curio.
_DEADLINES = (
    *("timeout", "timeout_at", "timeout_after", "ignore_after", "ignore_at"),
    *("move_on_after", "move_on_at", "fail_after", "fail_at"),
)


# Propagates what functions do to their callers, over the whole call graph, until nothing changes.
# Callees come before their callers, so an acyclic call graph is done in one pass, however deep it is; functions that
# call each other recursively take as many passes as their cycle needs. The result depends neither on the order of the
# functions in the file nor on which of them is asked for first.


class Path(Protocol):
    """Something that a function does, and the calls that lead there."""

    @property
    def steps(self) -> tuple[tuple[Function, ast.expr], ...]: ...


P = TypeVar("P", bound=Path)


class Propagated(Generic[P]):
    """Function -> {what it does: the shortest path to it}.

    `own` gives what a function does itself, `runs` the calls that it makes, and `through` prepends such a call to a
    path of its callee.
    """

    def __init__(
        self,
        own: Callable[[Function], dict[str, P]],
        runs: Callable[[Function], list[Effect]],
        through: Callable[[Function, Effect, P], P],
    ) -> None:
        self._own, self._runs, self._through = own, runs, through
        #: What is known, by the id of the function; complete for every function in it.
        self._known: dict[int, dict[str, P]] = {}

    def of(self, fn: Function) -> dict[str, P]:
        """What a function does, itself or through its callees."""
        if id(fn) not in self._known:
            order = reached(fn, lambda at: [m.callee for m in self._runs(at) if m.callee is not None], self._known)
            self._known |= {id(at): self._own(at) for at in order}
            # The length of the paths only falls, so this ends; `sum`
            # joins all of them, where `any` would stop at the first.
            while sum(self._join(at) for at in order):
                pass
        return self._known[id(fn)]

    def _join(self, fn: Function) -> bool:
        """Add what the callees do; whether that changed anything."""
        mine, changed = self._known[id(fn)], False
        for effect in self._runs(fn):
            for what, path in self._known[id(effect.callee)].items():
                if what not in mine or len(mine[what].steps) > len(path.steps) + 1:
                    mine[what] = self._through(fn, effect, path)
                    changed = True
        return changed


def reached(
    fn: Function, following: Callable[[Function], Iterable[Function]], boundary: Container[int] = ()
) -> list[Function]:
    """The function and all that it reaches without passing through a known one, in post-order."""
    order: list[Function] = []
    visited: set[int] = set()
    todo = [(fn, False)]
    while todo:
        at, done = todo.pop()
        if done:
            order.append(at)
        elif id(at) not in visited and id(at) not in boundary:
            visited.add(id(at))
            todo.append((at, True))
            todo += [(each, False) for each in following(at)]
    return order
