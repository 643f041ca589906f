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
from typing import Any

from paceline.concurrency.explore.rewriting.shared_names import Scope, SharedNames

MARK = "__explore__"
#: Built-in functions that read all elements of their first argument.
READERS = {
    "len", "list", "tuple", "set", "frozenset", "dict", "sorted", "sum", "min", "max", "any", "all", "iter",
    "enumerate", "reversed", "map", "filter", "zip", "str", "repr", "bool",
}  # fmt: skip


def rewritten(source: str | bytes, file: str) -> ast.Module:
    """Return the rewritten syntax tree of a module."""
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
        node.value = self.visit(node.value)
        if isinstance(node.slice, ast.Slice) or any(isinstance(each, ast.Slice) for each in ast.walk(node.slice)):
            node.slice = self.visit(node.slice)
            node.value = self._call("whole", node, node.value, node.lineno, _mode(node.ctx))
            return node
        index = self.visit(node.slice)
        self._numbers += 1
        node.value = self._call("hold", node, node.value, self._numbers)
        node.slice = self._call("item", node, index, node.lineno, self._numbers, _mode(node.ctx))
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Attribute):
            function.value = self._call("method", function, self.visit(function.value), function.attr, function.lineno)
        else:
            node.func = self.visit(function)
        node.args = [self.visit(each) for each in node.args]
        node.keywords = [self.visit(each) for each in node.keywords]
        if isinstance(function, ast.Name) and function.id in READERS:
            node.args = [
                each if isinstance(each, ast.Starred) else self._call("whole", each, each, node.lineno, "read")
                for each in node.args
            ]
        return node

    # ---- elements

    def visit_For(self, node: ast.For) -> Any:
        node.target = self.visit(node.target)
        node.iter = self._call("elements", node.iter, self.visit(node.iter), node.lineno)
        node.body, node.orelse = self._statements(node.body), self._statements(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        node.target = self.visit(node.target)
        line = node.iter.lineno
        node.iter = self.visit(node.iter)
        if not node.is_async:
            node.iter = self._call("elements", node.iter, node.iter, line)
        node.ifs = [self.visit(each) for each in node.ifs]
        return node

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
