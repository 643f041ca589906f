"""Reads coroutines of before `async def` as coroutines, so that every rule of tasks holds for them too.

A generator that asyncio, tornado or Twisted runs as a coroutine (`@asyncio.coroutine`, `@gen.coroutine`,
`@defer.inlineCallbacks`) lets others run at `yield from` or `yield`, as `async def` does at `await`. Lines stay.
"""

from __future__ import annotations

import ast

from paceline.concurrency.check.syntax.names import dotted, short_name

DECORATORS = ("coroutine", "inlineCallbacks")
LAZY = ("asyncio.coroutine", "types.coroutine")  # nothing runs before it is awaited; of the others, the call starts it


def with_coroutines(tree: ast.Module) -> ast.Module:
    """The tree with decorated generators as `async def`."""
    return _Functions().visit(tree)  # type: ignore[no-any-return]


class _Functions(ast.NodeTransformer):
    """Rewrites the decorated functions, inner ones first."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        decorator = next((d for d in node.decorator_list if short_name(d) in DECORATORS), None)
        if decorator is None:
            return node
        eager = dotted(decorator) not in LAZY
        coroutine = ast.AsyncFunctionDef(**{name: getattr(node, name) for name in node._fields})
        coroutine.body = [_Yields().visit(statement) for statement in node.body]
        coroutine.decorator_list = [d for d in node.decorator_list if d is not decorator or eager]
        return ast.copy_location(coroutine, node)


class _Yields(ast.NodeTransformer):
    """Rewrites what a coroutine waits for, in its own scope."""

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        self.generic_visit(node)
        value = node.value or ast.copy_location(ast.Constant(None), node)
        return ast.copy_location(ast.Await(value), node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.Await(node.value), node)

    def visit_With(self, node: ast.With) -> ast.AST:
        """`with (yield from lock):` takes a lock of asyncio."""
        waits = [item for item in node.items if isinstance(item.context_expr, ast.YieldFrom | ast.Yield)]
        locks = [item.context_expr.value for item in waits]  # type: ignore[attr-defined]
        if len(locks) != len(node.items) or None in locks or any(isinstance(lock, ast.Call) for lock in locks):
            return self.generic_visit(node)
        for item, lock in zip(waits, locks, strict=True):
            item.context_expr = lock
        self.generic_visit(node)
        return ast.copy_location(ast.AsyncWith(node.items, node.body), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node
