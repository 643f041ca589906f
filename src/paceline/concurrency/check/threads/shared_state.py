"""Shared state: which functions read and change which attribute or global, and under which locks.

Shared state is an attribute of a class (`Pool.free`, through `self`) or a global that some function assigns. What
happens in `__init__` does not count, since no other thread has the object yet.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check import libraries
from paceline.concurrency.check.libraries.catalogue import EVENTS
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.tree import dotted, is_constant, parent, short_name
from paceline.concurrency.check.threads.accesses import Access, kind_of
from paceline.concurrency.check.threads.evidence import OWNS_LOCK, of_threads

ENDINGS = libraries.words("words of functions that end something")
BEGINNINGS = {"__init__", "__new__", "__init_subclass__", "__setstate__", "__post_init__", "setUp", "setup"}


def accesses_of_class(cls: Class, facts: Facts) -> dict[str, list[Access]]:
    """Attribute -> its accesses, through `self` in the methods of this class or through an object of it elsewhere."""
    if cls.name in facts.accesses:
        return facts.accesses[cls.name]
    accesses: dict[str, list[Access]] = {}
    facts.accesses[cls.name] = accesses
    methods = [fn for fn in facts.module.functions if fn.cls is cls and fn.self_name]
    uses = [
        (n, fn) for fn in methods for n in fn.attributes if isinstance(n.value, ast.Name) and n.value.id == fn.self_name
    ]
    for attribute in {**cls.values, **dict.fromkeys(sorted(cls.properties))}:
        others = facts.attributes_of_others.get(attribute, ())
        uses += [(n, fn) for n, fn in others if _of_object(n, fn, facts) is cls]
    for node, fn in uses:
        kind = kind_of(node)
        is_state = node.attr not in cls.methods or _is_kept(cls.methods[node.attr])
        # Reading a property runs a method, whose own accesses
        # count; `self.count += 1` of one is an update all the same.
        if fn.name not in BEGINNINGS and (is_state or (kind == "update" and node.attr in cls.properties)):
            if kind == "shrink" and (resource := facts.module.attribute(cls, node.attr)) and resource.kind in EVENTS:
                kind = "read"  # clear() of an event
            accesses.setdefault(node.attr, []).append(
                Access(f"{cls.name}.{node.attr}", kind, node, fn, facts.held_at(node, fn))
            )
    for attribute, name, to in _given_to_threads(cls, facts):
        thing = f"{cls.name}.{attribute}"
        accesses.setdefault(attribute, []).append(Access(thing, kind_of(name), name, to, facts.held_at(name, to)))
    return accesses


def _is_kept(method: Function) -> bool:
    """Whether the result of a property is kept, as an attribute."""
    return method.decorated("cached_property")


def _given_to_threads(cls: Class, facts: Facts) -> Iterator[tuple[str, ast.Name, Function]]:
    """The uses of a parameter by which a thread gets the object in an attribute: `submit(self._save, self.data)`.

    Likewise of a private method that adds to several attributes of its object: `self._add(key, self.data)`.
    """
    for fn in facts.module.functions:
        private = fn.cls is cls and fn.name.startswith("_") and not fn.name.startswith("__")
        if not private and not facts.threads_of(fn):
            continue
        for parameter in fn.parameters:
            texts = {dotted(a.value) for a in facts.module.objects.arguments(fn, parameter) if a.caller.cls is cls}
            names = {text.rpartition(".") for text in texts}
            uses = [n for n in fn.names if n.id == parameter] if names and (private or len(names) == 1) else []
            are_attributes = all(owner == "self" and name in cls.values for owner, _, name in names)
            if are_attributes and all(isinstance(n.ctx, ast.Load) for n in uses):
                yield from ((name, n, fn) for _, _, name in names for n in uses)


def shared_things(facts: Facts) -> Iterator[tuple[list[Access], Class | None]]:
    """The accesses of every attribute, with its class, and of every global."""
    for cls in facts.module.classes.values():
        yield from ((accesses, cls) for accesses in accesses_of_class(cls, facts).values())
    yield from ((accesses, None) for accesses in accesses_of_globals(facts).values())


def is_keyed(access: Access, facts: Facts) -> bool:
    """Whether a container is a set or a dictionary, which cannot change while it is iterated over."""
    cls, _, name = access.thing.removesuffix("[...]").rpartition(".")
    owner = facts.module.classes.get(cls)
    values = [v for v, _ in owner.values.get(name, ())] if owner else [facts.module.top.bound.get(name)]
    kinds = {short_name(v.func) if isinstance(v, ast.Call) else type(v).__name__ for v in values}
    if access.thing.endswith("[...]"):  # an element of a container: of `defaultdict(set)`
        kinds = {short_name(a) for v in values if isinstance(v, ast.Call) for a in v.args[:1]}
    return access.kind == "view" or not kinds.isdisjoint(_KEYED)


_KEYED = {"set", "dict", "defaultdict", "OrderedDict", "WeakSet", "WeakValueDictionary", "Set", "Dict"}


def makes_empty(value: ast.expr | None) -> bool:
    """Whether a value is a new container without elements."""
    if isinstance(value, ast.Call):
        name = short_name(value.func)
        return name == "defaultdict" or (name in _CONTAINERS and not value.args)
    return (isinstance(value, ast.List | ast.Set) and not value.elts) or (
        isinstance(value, ast.Dict) and not value.keys
    )


_CONTAINERS = {"list", "dict", "set", "deque", "OrderedDict", "Counter", "StringIO", "BytesIO", "bytearray"}


def accesses_of_elements(cls: Class, facts: Facts) -> Iterator[list[Access]]:
    """The accesses of the containers that are elements of a container: `found = self.by_user[name]; found[key] = x`."""
    accesses: dict[str, list[Access]] = {}
    for fn in facts.module.functions:
        if fn.cls is not cls or fn.name in BEGINNINGS:
            continue
        for item in fn.subscripts:
            of, up = item.value, parent(item)
            used = isinstance(up, ast.Attribute | ast.For | ast.comprehension | ast.Subscript)
            if used and isinstance(of, ast.Attribute) and dotted(of.value) == fn.self_name:
                kind = kind_of(item)
                if kind in ("grow", "shrink", "iterate", "view"):
                    thing = f"{cls.name}.{of.attr}[...]"
                    accesses.setdefault(of.attr, []).append(Access(thing, kind, item, fn, facts.held_at(item, fn)))
        for name, value in fn.bound.items():
            container = value.value if isinstance(value, ast.Subscript) else None
            if isinstance(value, ast.Call) and short_name(value.func) in ("get", "setdefault"):
                container = getattr(value.func, "value", None)
            if not isinstance(container, ast.Attribute) or dotted(container.value) != fn.self_name:
                continue
            uses = [n for n in fn.names if n.id == name and isinstance(n.ctx, ast.Load)]
            thing = f"{cls.name}.{container.attr}[...]"
            accesses.setdefault(container.attr, []).extend(
                Access(thing, kind_of(n), n, fn, facts.held_at(n, fn)) for n in uses if n.lineno >= value.lineno
            )
    yield from accesses.values()


def _of_object(node: ast.Attribute, fn: Function, facts: Facts) -> Class | None:
    """The class of the object whose attribute this is: by its type, or as the only one that has such an attribute."""
    cls = facts.module.type_of(node.value, fn)
    if cls is not None or "_" not in node.attr.strip("_") or not isinstance(node.value, ast.Name):
        return cls
    # `module.value` is no attribute of an object.
    bound = node.value.id in fn.parameters or any(name.id == node.value.id for name in fn.stores)
    if not bound and (node.value.id in facts.module.imports or node.value.id in facts.module.classes):
        return None
    return facts.only_owner(node)


def accesses_of_locals(facts: Facts) -> Iterator[list[Access]]:
    """The accesses of each local variable that nested functions share, where they run in threads."""
    accesses: dict[tuple[int, str], list[Access]] = {}
    for fn in facts.module.functions:
        if fn.outer in (None, facts.module.top) or not facts.threads_of(fn):
            continue
        local_names = ({n.id for n in fn.stores} - fn.nonlocals) | set(fn.parameters) | fn.globals
        around = [scope for scope in fn.scopes() if scope is not fn and scope is not facts.module.top]
        for node in fn.names:
            owner = next((s for s in around if node.id in s.bound), None) if node.id not in local_names else None
            if owner is not None:
                thing = f"{owner.qualname}.{node.id}"
                access = Access(thing, kind_of(node), node, fn, facts.held_at(node, fn))
                accesses.setdefault((id(owner), node.id), []).append(access)
    yield from accesses.values()


def accesses_of_arguments(facts: Facts) -> Iterator[list[Access]]:
    """The accesses of each parameter of a function that is started in several threads with the same container."""
    for fn in {id(r.function): r.function for r in facts.roots if r.kind == "thread" and r.several}.values():
        stored = {n.id for n in fn.stores}
        for name in (p for p in fn.parameters if p not in stored):
            passed = [(a.value, a.caller) for a in facts.module.objects.arguments(fn, name)]
            uses = [n for n in fn.names if n.id == name]
            if uses and any(isinstance(v, ast.Name) and is_container(caller.bound.get(v.id)) for v, caller in passed):
                thing = f"{fn.qualname}.{name}"
                yield [Access(thing, kind_of(node), node, fn, facts.held_at(node, fn)) for node in uses]


def accesses_of_globals(facts: Facts) -> dict[str, list[Access]]:
    """Global -> its accesses in functions, for globals that some function assigns and for containers."""
    if "" in facts.accesses:
        return facts.accesses[""]
    module = facts.module
    shared = {name for fn in module.functions if fn is not module.top for name in fn.globals}
    shared |= {name for name, value in module.top.bound.items() if is_container(value)}
    accesses: dict[str, list[Access]] = {}
    facts.accesses[""] = accesses
    if not shared:
        return accesses
    for fn in module.functions:
        if fn is module.top:
            continue
        local_names = {n.id for n in fn.stores} - fn.globals | set(fn.parameters)
        for node in fn.names:
            if node.id in shared and node.id not in local_names:
                accesses.setdefault(node.id, []).append(
                    Access(node.id, kind_of(node), node, fn, facts.held_at(node, fn))
                )
    return accesses


def is_container(value: ast.expr | None) -> bool:
    """Whether this makes a dictionary, list or set."""
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return True
    if not isinstance(value, ast.Call):
        return False
    plain = isinstance(value.func, ast.Name) or dotted(value.func).startswith("collections.")
    return plain and short_name(value.func) in (
        "dict",
        "list",
        "set",
        "deque",
        "defaultdict",
        "OrderedDict",
    )


def is_shared(cls: Class, facts: Facts) -> bool:
    """Whether there is a sign that several threads use an object of this class: it has a lock or runs in a thread."""
    if of_threads(cls, facts) >= OWNS_LOCK:
        return True
    constructions = (facts.module.constructed(value, fn) for values in cls.values.values() for value, fn in values)
    return any(m is not None and m[0] == "Thread" for m in constructions) or any(
        root.kind == "thread" and root.function.cls is cls for root in facts.roots
    )


def own_locks(locks: frozenset[str], cls: Class | None) -> list[str]:
    """The locks that belong to the object itself, or without a class to the module.

    Locks of other objects do not count, since a caller may hold them already.
    """
    if cls is None:
        return sorted(lock for lock in locks if "." not in lock and ":" not in lock)
    owners = {c.name: c for c in cls.ancestry}
    parts = {lock: lock.rpartition(".") for lock in locks}
    object_locks = (lock for lock, (owner, _, _) in parts.items() if owner in owners)
    return sorted(lock for lock in object_locks if not _gives_slots(owners[parts[lock][0]], parts[lock][2]))


def _gives_slots(cls: Class, name: str) -> bool:
    """Whether an attribute is a semaphore that lets several in at once, and so protects nothing."""
    calls = [value for value, _ in cls.values.get(name, ()) if isinstance(value, ast.Call)]
    return any(
        short_name(v.func).endswith("Semaphore")
        and bool(v.args or v.keywords)
        and not is_constant(v.args[0] if v.args else None, 1)
        for v in calls
    )


def is_teardown(fn: Function) -> bool:
    """Whether a function tears its object down: other threads are assumed to have stopped by then."""
    named = fn.name.strip("_") == "end" or any(word in fn.name.lower() for word in ENDINGS)
    return named and (fn.name.startswith("__") or not _ends_one(fn))


def _ends_one(fn: Function) -> bool:
    """Whether a function needs to be given which of several things it ends: `close(key)`."""
    arguments = getattr(fn.node, "args", None)
    if arguments is None:
        return False
    needed = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    needed = needed[: len(needed) - len(arguments.defaults)]
    return any(name != fn.self_name and not name.strip("_").startswith(_HOW) for name in needed)


#: Parameters that say how to end, rather than what.
_HOW = libraries.words("words of parameters that say how to end something")


def is_caught(node: ast.AST, *names: str) -> bool:
    """Whether this is in a `try` that catches one of these exceptions, or all."""
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):
        around = parent(at)
        if isinstance(around, ast.Try) and at in around.body:
            for handler in around.handlers:
                kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                if any(kind is None or short_name(kind) in (*names, "Exception", "BaseException") for kind in kinds):
                    return True
        at = around
    return False


def starts_or_ends(fn: Function) -> bool:
    """Whether a method is there to start or end something, so that its caller takes care: `open`, `run_forever`."""
    name = fn.name.strip("_")
    return any(name == word or name.startswith(f"{word}_") for word in _LIFE_CYCLE)


_LIFE_CYCLE = libraries.words("words of functions that begin or end something")
