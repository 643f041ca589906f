"""Rewrites a syntax tree: before each access of an attribute, an item, an element or a shared variable, a call.

    self.n += 1             __explore__.at(self, "n", 12, "both", 5).n += __explore__.store(1, 5)
    if key in cache:        if key in __explore__.whole(cache, 7, "read"):
    cache[key] = value      __explore__.hold(cache, 3)[__explore__.item(key, 8, 3, "write")] = value
    items.append(x)         __explore__.method(items, "append", 9).append(x)
    for x in items:         for x in __explore__.elements(items, 10):
    total += 1              __explore__.name("total", "", 11, "read"); total += __explore__.stored(1, "total", "", 11)

The access itself stays as it is, so that descriptors, private names and
`super()` mean what they did. The calls keep Python's order of evaluation.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from paceline.concurrency.explore.finding import MARK

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: Built-in functions that read all elements of their first argument.
READERS = {
    "len", "list", "tuple", "set", "frozenset", "dict", "sorted", "sum", "min", "max", "any", "all", "iter",
    "enumerate", "reversed", "map", "filter", "zip", "str", "repr", "bool",
}  # fmt: skip


def rewritten(source: str | bytes, file: str) -> ast.Module:
    tree = ast.parse(source, file)
    _Accesses(SharedNames(tree)).visit(tree)
    return ast.fix_missing_locations(tree)


class _Accesses(ast.NodeTransformer):
    """The rewriting, with the functions around the present node."""

    def __init__(self, shared: SharedNames) -> None:
        self._shared = shared
        self._around: list[Scope] = []
        self._numbers = 0

    # ---- scopes

    def _function(self, node: Any) -> Any:
        node.args.defaults = [self.visit(each) for each in node.args.defaults]
        self._around.append(node)
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
        else:
            node.body = self._statements(node.body)
        self._around.pop()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function  # noqa: N815

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for each in body:
            new = self.visit(each)
            result += new if isinstance(new, list) else [new]
        return result

    def visit_match_case(self, node: ast.match_case) -> Any:
        node.guard = self.visit(node.guard) if node.guard is not None else None
        node.body = self._statements(node.body)
        return node  # a pattern may hold no calls

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.value = self.visit(node.value) if node.value is not None else None
        if node.value is not None and not isinstance(node.target, ast.Name):
            node.target = self.visit(node.target)
        return node

    # ---- attributes and items

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.value = self.visit(node.value)
        mode = "read" if isinstance(node.ctx, ast.Load) else "write"
        node.value = self._call("at", node, node.value, node.attr, node.lineno, mode)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.slice, ast.Slice) or any(isinstance(each, ast.Slice) for each in ast.walk(node.slice)):
            node.slice = self.visit(node.slice)
            node.value = self._call("whole", node, self.visit(node.value), node.lineno, _mode(node.ctx))
        else:
            node.value, node.slice = self._keyed(node, node.value, node.slice, _mode(node.ctx))
        return node

    def _keyed(self, node: Any, container: ast.expr, key: ast.expr, mode: str) -> tuple[ast.Call, ast.Call]:
        """Return a container and the key of an item, within the calls that announce its access."""
        container, key = self.visit(container), self.visit(key)
        self._numbers += 1
        held = self._call("hold", node, container, self._numbers)
        return held, self._call("item", node, key, node.lineno, self._numbers, mode)

    def visit_Call(self, node: ast.Call) -> Any:
        function = node.func
        key: list[ast.expr] = []
        if not isinstance(function, ast.Attribute):
            node.func = self.visit(function)
        elif function.attr == "get" and node.args and not isinstance(node.args[0], ast.Starred):
            function.value, *key = self._keyed(function, function.value, node.args.pop(0), "read")
        else:
            function.value = self._call("method", function, self.visit(function.value), function.attr, function.lineno)
        node.args = key + [self.visit(each) for each in node.args]
        node.keywords = [self.visit(each) for each in node.keywords]
        if isinstance(function, ast.Name) and function.id in READERS:
            node.args = [
                each if isinstance(each, ast.Starred) else self._call("whole", each, each, node.lineno, "read")
                for each in node.args
            ]
        return node

    # ---- elements

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        if not getattr(node, "is_async", False):
            node.iter = self._call("elements", node.iter, node.iter, node.iter.lineno)
        return node

    visit_comprehension = visit_For

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        node.comparators = [
            self._call("whole", each, each, node.lineno, "read") if isinstance(operator, ast.In | ast.NotIn) else each
            for operator, each in zip(node.ops, node.comparators, strict=True)
        ]
        return node

    def _test(self, node: Any) -> Any:
        """Let a test of a container, as in `while self.items:`, read it."""
        self.generic_visit(node)
        node.test = self._truth(node.test)
        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _test  # noqa: N815

    def _truth(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._truth(test.operand)
        elif isinstance(test, ast.BoolOp):
            test.values = [self._truth(each) for each in test.values]
        elif isinstance(test, ast.Name | ast.Attribute):
            return self._call("whole", test, test, test.lineno, "read")
        return test

    # ---- variables

    def visit_Name(self, node: ast.Name) -> Any:
        owner = self._shared.owner(node.id, self._around) if isinstance(node.ctx, ast.Load) else None
        if owner is None:
            return node
        before = self._call("name", node, node.id, owner, node.lineno, "read")  # which returns None
        return ast.copy_location(ast.BoolOp(ast.Or(), [before, node]), node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                node.value = self._stored(target, node.value)
        node.targets = [self.visit(each) for each in node.targets]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Split `target += value` into a read, the value, and a write, between which other threads can come."""
        node.value, target = self.visit(node.value), node.target
        if isinstance(target, ast.Name):
            owner = self._shared.owner(target.id, self._around)
            if owner is None:
                return node
            before = ast.Expr(self._call("name", node, target.id, owner, node.lineno, "read"))
            node.value = self._stored(target, node.value)
            return [ast.copy_location(before, node), node]
        self.visit(target)
        call = target.value if isinstance(target, ast.Attribute) else target.slice
        if isinstance(call, ast.Call) and isinstance(call.args[-1], ast.Constant):  # not a slice
            call.args[-1].value = "both"
            if isinstance(target, ast.Attribute):
                self._numbers += 1
                call.args.append(ast.copy_location(ast.Constant(self._numbers), call))
            node.value = self._call("store", node, node.value, self._numbers)
        return node

    def _stored(self, target: ast.Name, value: ast.expr) -> ast.expr:
        owner = self._shared.owner(target.id, self._around)
        if owner is None:
            return value
        return self._call("stored", target, value, target.id, owner, target.lineno)

    def _call(self, name: str, like: ast.AST, *arguments: Any) -> ast.Call:
        function = ast.Attribute(ast.Name(MARK, ast.Load()), name, ast.Load())
        values = [each if isinstance(each, ast.expr) else ast.Constant(each) for each in arguments]
        call = ast.Call(function, values, [])
        for node in (call, function, function.value, *values):
            ast.copy_location(node, like)
        return call


def _mode(context: ast.expr_context) -> str:
    return "read" if isinstance(context, ast.Load) else "write"


class SharedNames:
    """The variables that threads can share: globals that functions rebind, and variables of an enclosing function."""

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
