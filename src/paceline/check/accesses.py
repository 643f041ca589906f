"""Who reads and changes which shared thing, and under which locks.

A thing is an attribute of a class (`Pool.free`, through `self`) or a global that some function assigns. What happens
in `__init__` does not count, since nobody else has the object yet.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from paceline.check.declared import Class, Function
from paceline.check.names import is_constant, last, parent
from paceline.check.summaries import Facts

GROWS = {"append", "add", "insert", "extend", "update", "setdefault", "appendleft", "push"}
SHRINKS = {"pop", "popitem", "remove", "discard", "clear", "popleft"}
VIEWS = {"items", "keys", "values", "iteritems", "iterkeys", "itervalues"}
ENDINGS = (
    "stop",
    "close",
    "shutdown",
    "join",
    "terminate",
    "fork",
    "final",
    "cleanup",
    "__exit__",
    "__del__",
    "dispose",
)
BEGINNINGS = {"__init__", "__new__", "__init_subclass__", "__setstate__", "__post_init__", "setUp", "setup"}


class Access(NamedTuple):
    thing: str
    kind: str  # read, item, view, iterate, write, none (a write of None), update, grow, shrink
    node: ast.AST
    fn: Function
    locks: frozenset[str]

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)

    @property
    def changes(self) -> bool:
        return self.kind in ("write", "none", "update", "grow", "shrink")


def of_class(cls: Class, facts: Facts) -> dict[str, list[Access]]:
    """Attribute -> its accesses through `self` in the methods of this class, and in functions inside them."""
    if cls.name in facts.kept:
        return facts.kept[cls.name]
    found: dict[str, list[Access]] = {}
    facts.kept[cls.name] = found
    for fn in facts.module.functions:
        if fn.cls is not cls or fn.name in BEGINNINGS or not fn.me:
            continue
        for node in fn.attributes:
            if isinstance(node.value, ast.Name) and node.value.id == fn.me and node.attr not in cls.methods:
                kind = kind_of(node)
                found.setdefault(node.attr, []).append(
                    Access(f"{cls.name}.{node.attr}", kind, node, fn, facts.held_at(node, fn))
                )
    return found


def of_globals(facts: Facts) -> dict[str, list[Access]]:
    """Global -> its accesses in functions; only of globals that some function assigns, and of containers."""
    if "" in facts.kept:
        return facts.kept[""]
    module = facts.module
    shared = {name for fn in module.functions if fn is not module.top for name in fn.globals}
    shared |= {name for name, value in module.top.bound.items() if _is_container(value)}
    found: dict[str, list[Access]] = {}
    facts.kept[""] = found
    if not shared:
        return found
    for fn in module.functions:
        if fn is module.top:
            continue
        own = {n.id for n in fn.stores} - fn.globals | set(fn.parameters)
        for node in fn.names:
            if node.id in shared and node.id not in own:
                found.setdefault(node.id, []).append(Access(node.id, kind_of(node), node, fn, facts.held_at(node, fn)))
    return found


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return True
    return isinstance(value, ast.Call) and last(value.func) in (
        "dict",
        "list",
        "set",
        "deque",
        "defaultdict",
        "OrderedDict",
    )


def kind_of(node: ast.Attribute | ast.Name) -> str:
    up = parent(node)
    if isinstance(node.ctx, ast.Store):
        if isinstance(up, ast.AugAssign):
            return "update"
        return "none" if isinstance(up, ast.Assign) and is_constant(up.value, None) else "write"
    if isinstance(node.ctx, ast.Del):
        return "none"
    if isinstance(up, ast.Subscript) and up.value is node:
        around = parent(up)
        if isinstance(up.ctx, ast.Del):
            return "shrink"
        if isinstance(around, ast.AugAssign) and around.target is up:
            return "update"
        return "grow" if isinstance(up.ctx, ast.Store) else "item"
    if isinstance(up, ast.Attribute) and isinstance(parent(up), ast.Call) and parent(up).func is up:  # type: ignore[union-attr]
        if up.attr in GROWS:
            return "grow"
        if up.attr in SHRINKS:
            return "shrink"
        if up.attr in VIEWS:
            return "view"
    if isinstance(up, ast.For | ast.AsyncFor | ast.comprehension) and up.iter is node:
        return "iterate"
    return "read"


def iterates(access: Access) -> bool:
    """Whether the thing itself is gone through, or a view of it is; a copy made in one step is none."""
    if access.kind == "iterate":
        return True
    if access.kind != "view":
        return False
    call = parent(parent(access.node))  # type: ignore[arg-type]
    up = parent(call) if call is not None else None
    if isinstance(up, ast.For | ast.AsyncFor | ast.comprehension):
        return True
    return isinstance(up, ast.Return)


def is_shared(cls: Class, facts: Facts) -> bool:
    """Whether anything says that several threads use an object of this class: it has a lock, or runs in a thread."""
    module = facts.module
    if cls.is_a("threading.Thread", "Thread", "threading.Timer"):
        return True
    for values in cls.values.values():
        for value, fn in values:
            made = module.made(value, fn)
            if made is not None and made[0] in ("Lock", "RLock", "Condition", "Thread"):
                return True
    return any(root.kind == "thread" and root.function.cls is cls for root in facts.roots)


def own_locks(locks: frozenset[str], cls: Class | None) -> list[str]:
    """Those of the locks that are the object's own; whoever calls it may well hold another's already.

    Without a class, those of the module.
    """
    if cls is None:
        return sorted(lock for lock in locks if "." not in lock and ":" not in lock)
    owners = {c.name for c in cls.ancestry}
    return sorted(lock for lock in locks if lock.rpartition(".")[0] in owners)


def ends(fn: Function) -> bool:
    """A function that takes things down: the others are taken to have stopped by then."""
    return any(word in fn.name.lower() for word in ENDINGS)


def catches(node: ast.AST, *names: str) -> bool:
    """Whether this stands in a `try` that catches one of these, or everything."""
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):
        around = parent(at)
        if isinstance(around, ast.Try) and at in around.body:
            for handler in around.handlers:
                kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                if any(kind is None or last(kind) in (*names, "Exception", "BaseException") for kind in kinds):
                    return True
        at = around
    return False
