"""Forks of the process itself, and what only the child does after one."""

from __future__ import annotations

import ast

from paceline.concurrency.check.syntax.tree import enclosing, is_within

FORKS = ("os.fork", "os.forkpty", "pty.fork")


def on_child_side(node: ast.expr, fork: ast.Call) -> bool:
    """Whether this is under the test that only the child passes: `if pid == 0`, `if not pid`, `if os.fork() == 0`."""
    test = enclosing(node, ast.If)
    while isinstance(test, ast.If):
        condition = ast.unparse(test.test)
        child = condition.endswith("== 0") or condition.startswith("not ")
        if test.lineno >= fork.lineno and is_within(node, test.body) and child:
            return True
        test = enclosing(test, ast.If)
    return False
