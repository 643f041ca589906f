"""Which variables several threads can share: globals that functions rebind, and variables of an enclosing function."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class SharedNames:
    """The shared variables of a module."""

    def __init__(self, tree: ast.Module) -> None:
        declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        rebound = {name for name, count in Counter(_bound(tree.body)).items() if count > 1}
        self._globals = declared | rebound
        self._enclosing: dict[ast.AST, set[str]] = {}
        self._find(tree, [])

    def _find(self, node: ast.AST, around: list[Scope]) -> None:
        """Note, for each function, which of its variables an inner function rebinds."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Nonlocal):
                for name in child.names:
                    owner = next((each for each in reversed(around[:-1]) if name in variables(each)), None)
                    if owner is not None:
                        self._enclosing.setdefault(owner, set()).add(name)
            self._find(child, [*around, child] if isinstance(child, FUNCTIONS) else around)

    def owner(self, name: str, around: list[Scope]) -> str | None:
        """Return a label of the scope that shares a name, as seen from inside these functions; None if none does."""
        for scope in reversed(around):
            if name in self._enclosing.get(scope, ()):
                return f"{getattr(scope, 'name', 'lambda')}:{scope.lineno}"
            if name in variables(scope):
                return None
        return "" if name in self._globals else None


def variables(scope: Scope) -> set[str]:
    """Return the local variables of a function, parameters included."""
    arguments = scope.args
    names = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    names |= {each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None}
    body = [] if isinstance(scope, ast.Lambda) else scope.body
    elsewhere = {name for node in _own(body) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    return (names | set(_bound(body))) - elsewhere


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, once for each time, without those of inner functions and classes."""
    for node in _own(body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    nodes: list[ast.AST] = list(body)
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            nodes.extend(ast.iter_child_nodes(node))
