"""Where the values of variables and containers come from, as the syntax of a function says it.

`for name, part in parts.items()` gives `part` the elements of `parts`, `with opened() as store` gives `store` what
entering returns. A source names an expression and what is taken of its value; `objects` follows it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.syntax.declarations import Class, Declarations, Function
from paceline.concurrency.check.syntax.tree import dotted, keyword, parent, short_name

Slot = str | int | None  # a constant key or index; None for any


class Source(NamedTuple):
    """An expression from which a value comes, and what of it."""

    take: str  # is, element, item, part (an item of an element), enter, result (of calling it)
    node: ast.expr
    fn: Function
    slot: Slot = None


#: Methods that put an argument into a container or queue -> its position, and whether it is its elements that go in.
FILLS = libraries.table("methods that fill a container")
#: Methods that take an element out of a container or queue, or look one up.
LOOKS_UP = {"get", "pop", "popleft", "setdefault", "get_nowait", "popitem", "__getitem__"}
#: Functions whose result has the elements of an argument -> its position.
SAME_ELEMENTS: dict[str, int] = libraries.table("functions whose result has the elements of an argument")
#: Methods of containers whose result has the same elements.
SAME_VIEWS = {"values", "copy", "items", "most_common"}
EMPTY = {"list", "dict", "set", "deque", "OrderedDict", "WeakValueDictionary"}
REFERENCES = {"ref", "WeakMethod"}


def of_variables(fn: Function) -> dict[str, list[Source]]:
    """Variable -> the sources of its values, as the statements of a function bind it."""
    sources: dict[str, list[Source]] = {}

    def bind(target: ast.expr, take: str, value: ast.expr, slot: Slot = None) -> None:
        if isinstance(target, ast.Name):
            sources.setdefault(target.id, []).append(Source(take, value, fn, slot))
        elif isinstance(target, ast.Tuple | ast.List) and take in ("is", "element"):
            inner = "item" if take == "is" else "part"
            for number, each in enumerate(target.elts):
                if isinstance(each, ast.Starred):
                    break
                bind(each, inner, value, number)

    entered = {id(item.context_expr) for block in fn.withs for item in block.items}
    for target, value in fn.assigns:
        if not isinstance(parent(parent(value) or value), ast.ClassDef):
            part = part_of(value, short_name(target))
            bind(target, "enter" if id(value) in entered else "is" if part is None else "item", value, part)
    for loop in fn.loops:
        if not isinstance(loop, ast.While):
            for target, over in _turns(loop.target, loop.iter):
                bind(target, "element", over)
    return sources


def part_of(value: ast.expr, name: str) -> int | None:
    """Which of several results an assignment gives to a variable or attribute; None where it gives all of it."""
    target = getattr(parent(value), "targets", (None,))[0]
    parts = target.elts if isinstance(target, ast.Tuple) else ()
    return next((number for number, part in enumerate(parts) if short_name(part) == name), None)


def _turns(target: ast.expr, over: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of a loop, each with what it goes over: through `enumerate`, `zip` and `items`."""
    if isinstance(target, ast.Tuple) and isinstance(over, ast.Call):
        name, arguments = short_name(over.func), over.args
        if name == "enumerate" and arguments and len(target.elts) == 2:
            yield from _turns(target.elts[1], arguments[0])
            return
        if name == "items" and isinstance(over.func, ast.Attribute) and len(target.elts) == 2:
            yield from _turns(target.elts[1], over.func.value)
            return
        if name in SAME_ELEMENTS and len(arguments) > SAME_ELEMENTS[name]:
            yield from _turns(target, arguments[SAME_ELEMENTS[name]])
            return
        if name == "zip":
            for each, argument in zip(target.elts, arguments, strict=False):
                yield from _turns(each, argument)
            return
    yield target, over


def of_container(node: ast.AST, fn: Function) -> Iterator[tuple[Slot, Source]]:
    """What the expression that makes a container puts into it, by constant index or key."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        for number, each in enumerate(node.elts):
            if isinstance(each, ast.Starred):
                yield None, Source("element", each.value, fn)
            elif not isinstance(each, ast.Constant):
                yield number, Source("is", each, fn)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        yield None, Source("is", node.elt, fn)
    elif isinstance(node, ast.DictComp):
        yield None, Source("is", node.value, fn)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                yield None, Source("element", value, fn)
            elif not isinstance(value, ast.Constant):
                yield slot_of(key), Source("is", value, fn)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, fn)


def _of_call(call: ast.Call, fn: Function) -> Iterator[tuple[Slot, Source]]:
    name, arguments = short_name(call.func), call.args
    if name in ("defaultdict", "map", "starmap") and arguments:
        yield None, Source("result", arguments[0], fn)
    elif name in REFERENCES and arguments:
        yield None, Source("is", arguments[0], fn)
    elif name == "chain":
        yield from ((None, Source("element", each, fn)) for each in arguments if not isinstance(each, ast.Starred))
    elif name in SAME_ELEMENTS and len(arguments) > SAME_ELEMENTS[name]:
        yield None, Source("element", arguments[SAME_ELEMENTS[name]], fn)
    elif name in SAME_VIEWS and isinstance(call.func, ast.Attribute):
        yield None, Source("element", call.func.value, fn)
    if name in ("dict", "OrderedDict", "SimpleNamespace"):
        yield from ((k.arg, Source("is", k.value, fn)) for k in call.keywords if k.arg)


def is_container(node: ast.expr) -> bool:
    """Whether an expression makes a container whose elements are known by its syntax."""
    if isinstance(node, ast.Call):
        name = short_name(node.func)
        makes_container = name in SAME_ELEMENTS or name in EMPTY or name in REFERENCES
        makes_container = makes_container or name in ("defaultdict", "map", "starmap", "chain")
        if isinstance(node.func, ast.Attribute) and short_name(node.func.value) not in _MODULES:
            makes_container = False  # a method of that name: `manager.dict()`
        return makes_container or (name in SAME_VIEWS and isinstance(node.func, ast.Attribute) and not node.args)
    return isinstance(node, _DISPLAYS)


_MODULES = {"collections", "itertools", "weakref", "builtins"}
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def slot_of(key: ast.expr | None) -> Slot:
    """A constant key or index; None for any other."""
    value = key.value if isinstance(key, ast.Constant) else None
    return value if isinstance(value, str | int) else None


# What the syntax of a program says about variables, classes and containers, looked up by name.
# Everything here is read off the declarations once, when it is first needed; nothing is followed.


class Index:
    """The declarations of a program, by what reads them."""

    def __init__(self, module: Declarations) -> None:
        self._module = module
        self._variables: dict[Function, dict[str, list[Source]]] = {}
        self._locals: dict[Function, frozenset[str]] = {}
        self._scopes: dict[tuple[Function, str], Function] = {}

    def scope(self, name: str, fn: Function) -> Function:
        """The function in which a name that another one uses is bound; the top level of the file for all others."""
        owner = self._scopes.get((fn, name))
        if owner is None:
            owner = self._scopes[fn, name] = self._scope(name, fn)
        return owner

    def _scope(self, name: str, fn: Function) -> Function:
        """The unremembered part of `scope`."""
        shared = fn.globals
        for scope in fn.scopes():
            if name in shared or scope is self._module.top:
                break
            if name in self._bound(scope):
                return scope
            shared = shared | scope.globals
        return self._module.top

    def _bound(self, fn: Function) -> frozenset[str]:
        """The names that a function binds."""
        if fn not in self._locals:
            bound = {*fn.parameters, *fn.nested, *fn.bound, *fn.looped, *fn.imported, *(n.id for n in fn.stores)}
            self._locals[fn] = frozenset(bound - fn.globals - fn.nonlocals)
        return self._locals[fn]

    def variable(self, scope: Function, name: str) -> list[Source]:
        """Where the values of a variable come from: its own statements, and those that share it as a global."""
        return [*self._own(scope).get(name, ()), *self._shared.get((scope, name), ())]

    def _own(self, fn: Function) -> dict[str, list[Source]]:
        if fn not in self._variables:
            self._variables[fn] = of_variables(fn)
        return self._variables[fn]

    @cached_property
    def _shared(self) -> dict[tuple[Function, str], list[Source]]:
        """What functions assign to variables that they declare `global` or `nonlocal`."""
        sources: dict[tuple[Function, str], list[Source]] = {}
        for fn in self._module.functions:
            for name in fn.globals | fn.nonlocals if fn is not self._module.top else ():
                owner = self.scope(name, fn.outer if name in fn.nonlocals and fn.outer is not None else fn)
                sources.setdefault((owner, name), []).extend(self._own(fn).get(name, ()))
        return sources

    # -- classes

    def family(self, cls: Class) -> list[Class]:
        """All classes that may set an attribute of an object of a class: its bases, the derived ones, and theirs."""
        return list(dict.fromkeys([*cls.ancestry, *(c for each in self.derived(cls) for c in each.ancestry)]))

    def derived(self, cls: Class) -> list[Class]:
        """The classes that are derived from a class."""
        return self._derived.get(cls, [])

    @cached_property
    def _derived(self) -> dict[Class, list[Class]]:
        subclasses: dict[Class, list[Class]] = {}
        for cls in self._module.classes.values():
            for base in cls.ancestry[1:]:
                subclasses.setdefault(base, []).append(cls)
        return subclasses

    @cached_property
    def members(self) -> set[str]:
        """The names of all methods and attributes of the program's classes, and of what it assigns to others."""
        names = set(self._assigned)
        for cls in self._module.classes.values():
            names |= {*cls.methods, *cls.values, *cls.annotations}
        return names

    # -- what is assigned and filled elsewhere

    def assigned(self, attribute: str) -> list[tuple[ast.expr, Source]]:
        """(object, value) of the assignments to an attribute that its class does not know of."""
        return self._assigned.get(attribute, [])

    @cached_property
    def _assigned(self) -> dict[str, list[tuple[ast.expr, Source]]]:
        assignments: dict[str, list[tuple[ast.expr, Source]]] = {}
        for fn in self._module.functions:
            for target, value in fn.assigns:
                if isinstance(target, ast.Attribute) and not self._is_own(target, fn):
                    assignments.setdefault(target.attr, []).append((target.value, Source("is", value, fn)))
                for number, part in enumerate(target.elts if isinstance(target, ast.Tuple) else ()):
                    if isinstance(part, ast.Attribute):
                        assignments.setdefault(part.attr, []).append((part.value, Source("item", value, fn, number)))
            for call in fn.calls:
                if isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3:
                    name = str(slot_of(call.args[1]))
                    assignments.setdefault(name, []).append((call.args[0], Source("is", call.args[2], fn)))
        return assignments

    @staticmethod
    def _is_own(target: ast.Attribute, fn: Function) -> bool:
        return fn.cls is not None and dotted(target.value) in (fn.self_name, fn.cls.name, "cls")

    @cached_property
    def fills(self) -> list[tuple[ast.expr, Slot, Source]]:
        """(container, key, value) of everything that is put into a container or queue."""
        entries: list[tuple[ast.expr, Slot, Source]] = []
        for fn in self._module.functions:
            for call in fn.calls:
                if not isinstance(call.func, ast.Attribute) or call.func.attr not in FILLS:
                    continue
                position, unpacked = FILLS[call.func.attr]
                value = call.args[position] if position < len(call.args) else keyword(call, "item")
                if value is not None and not isinstance(value, ast.Constant):
                    key = slot_of(call.args[0]) if call.func.attr == "setdefault" else None
                    entries.append((call.func.value, key, Source("element" if unpacked else "is", value, fn)))
            for target, value in fn.assigns:
                if isinstance(target, ast.Subscript) and not isinstance(value, ast.Constant):
                    entries.append((target.value, slot_of(target.slice), Source("is", value, fn)))
        return entries


# What is assigned to attributes of other objects: `server.lock = Lock()` in another function than those of its class.
# The class of such an attribute is known like that of one which its own class assigns.

_VALUES = (ast.Call, ast.Dict, ast.List, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Name, ast.Attribute)


def adopt(functions: Iterable[Function], type_of: Callable[[ast.expr, Function], Class | None]) -> None:
    """Note the values of attributes that are assigned from outside with the class of their object."""
    assignments: list[tuple[Class, str, ast.expr, Function]] = []
    for fn in functions:
        for target, value in fn.assigns:
            if isinstance(target, ast.Attribute) and isinstance(value, _VALUES) and not _own(target, fn):
                owner = type_of(target.value, fn)
                if owner is not None:
                    assignments.append((owner, target.attr, value, fn))
    for owner, attribute, value, fn in assignments:
        owner.values.setdefault(attribute, []).append((value, fn))


def _own(target: ast.Attribute, fn: Function) -> bool:
    """Whether the attribute is one of the function's own object, which its declaration has noted already."""
    return fn.cls is not None and dotted(target.value) in (fn.self_name, fn.cls.name, "cls")


# Futures of an event loop: where they are made, and from which attribute of an object one is taken.

TAKES = ("pop", "get", "popleft")


def parts(value: ast.expr) -> list[ast.expr]:
    """The elements of a tuple, or the value alone."""
    return value.elts if isinstance(value, ast.Tuple) else [value]


def attribute_of(node: ast.expr, fn: Function) -> str:
    """The attribute of the own object that an expression or a local name takes its value from."""
    if isinstance(node, ast.Name):
        value = fn.bound.get(node.id) or fn.looped.get(node.id) or _unpacked(node.id, fn)
        return attribute_of(value, fn) if value is not None and not isinstance(value, ast.Name) else ""
    if isinstance(node, ast.Call) and short_name(node.func) in ("next", "iter", "list", "tuple") and node.args:
        return attribute_of(node.args[0], fn)
    while not isinstance(node, ast.Attribute) or dotted(node.value) != fn.self_name:
        inner = node.func if isinstance(node, ast.Call) else getattr(node, "value", None)
        unknown = isinstance(node, ast.Call) and short_name(inner or node) not in (*TAKES, "values")
        if not isinstance(inner, ast.expr) or unknown:
            return ""
        node = inner
    return node.attr


def _unpacked(name: str, fn: Function) -> ast.expr | None:
    """The tuple that a name is unpacked from: `sent, future = self.pending`."""
    for target, value in fn.assigns:
        if isinstance(target, ast.Tuple) and any(dotted(part) == name for part in target.elts):
            return value if isinstance(value, ast.Attribute) else None
    return None


def makes_future(value: ast.expr | None) -> bool:
    """Whether this makes a future of a loop."""
    return isinstance(value, ast.Call) and short_name(value.func) in ("create_future", "Future")
