"""The method that a call runs by its name alone, where nothing in the file says more of the object.

`callback.on_epoch_end()` runs the only method of the file that is called so.
"""

from __future__ import annotations

import ast
from functools import cached_property

from paceline.check.syntax.declarations import Declarations, Function
from paceline.check.syntax.names import dotted
from paceline.check.values.by_use import COMMON


class ByName:
    """The methods of one file by their names."""

    def __init__(self, module: Declarations) -> None:
        self._module = module

    def method(self, node: ast.Attribute, fn: Function) -> Function | None:
        """The only method with such a name, of an object of which nothing is known."""
        if not isinstance(node.value, ast.Name | ast.Subscript) or "_" not in node.attr.strip("_"):
            return None
        if node.attr in COMMON:
            return None
        head = dotted(node.value).partition("[")[0].partition(".")[0]
        if head in self._module.imports or any(head in scope.bound for scope in fn.scopes()):
            return None
        found = self._methods.get(node.attr, [])
        return found[0] if len(found) == 1 else None

    @cached_property
    def _methods(self) -> dict[str, list[Function]]:
        """The methods that do something, by their names."""
        found: dict[str, list[Function]] = {}
        for cls in self._module.classes.values():
            for name, method in cls.methods.items():
                if not name.startswith("__") and not all(_is_idle(statement) for statement in method.body):
                    found.setdefault(name, []).append(method)
        return found


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement is `pass`, a docstring or an ellipsis, as in a method that subclasses replace."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
