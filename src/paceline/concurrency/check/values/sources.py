"""Where the values of variables and containers come from, as the syntax of a function says it.

`for name, part in parts.items()` gives `part` the elements of `parts`, `with opened() as store` gives `store` what
entering returns. A source names an expression and what is taken of its value; `objects` follows it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import parent

Slot = str | int | None  # a constant key or index; None for any


class Source(NamedTuple):
    """An expression from which a value comes, and what of it."""

    take: str  # is, element, item, part (an item of an element), enter, result (of calling it)
    node: ast.expr
    fn: Function
    slot: Slot = None


#: Methods that put an argument into a container or queue -> its position, and whether it is its elements that go in.
FILLS = {
    "append": (0, False),
    "add": (0, False),
    "appendleft": (0, False),
    "put": (0, False),
    "insert": (1, False),
    "put_nowait": (0, False),
    "setdefault": (1, False),
    "extend": (0, True),
    "update": (0, True),
    "push": (0, False),
}
#: Methods that take an element out of a container or queue, or look one up.
LOOKS_UP = {"get", "pop", "popleft", "setdefault", "get_nowait", "popitem", "__getitem__"}
#: Functions whose result has the elements of an argument -> its position.
SAME_ELEMENTS = {"list": 0, "tuple": 0, "set": 0, "frozenset": 0, "sorted": 0, "reversed": 0, "deque": 0, "dict": 0,
                 "OrderedDict": 0, "filter": 1, "WeakSet": 0, "islice": 0, "cycle": 0}  # fmt: skip
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
            bind(target, "enter" if id(value) in entered else "is", value)
    for loop in fn.loops:
        if not isinstance(loop, ast.While):
            for target, over in _turns(loop.target, loop.iter):
                bind(target, "element", over)
    return sources


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
