"""What is assigned to attributes of other objects: `server.lock = Lock()` in another function than those of its class.

The class of such an attribute is known like that of one which its own class assigns.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from paceline.concurrency.check.syntax.declarations import Class, Function
from paceline.concurrency.check.syntax.names import dotted

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
