"""A file that is removed to make room for the new one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.rules.existing_files import ASKS, foreseen
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing, parent

#: What puts a file in the place of another one.
MOVES = ("rename", "renames", "move", "symlink", "link", "symlink_to", "hardlink_to")


def find(facts: Facts) -> Iterator[Witness]:
    """Report removals under a test of existence that are followed by a move to the same path."""
    for fn in facts.module.functions:
        moves = [c for c in fn.calls if short_name(c.func) in MOVES and len(c.args) + len(c.keywords) > 1]
        for removal in fn.calls if moves else ():
            path = _removed(removal)
            test = enclosing(removal, ast.If)
            if not path or not isinstance(test, ast.If) or _of_one_system(removal) or foreseen(removal):
                continue
            is_tested = any(isinstance(n, ast.Call) and short_name(n.func) in ASKS for n in ast.walk(test.test))
            move = next((m for m in moves if m.lineno > removal.lineno and _follows(m, test) and _to(m, path)), None)
            if is_tested and move is not None and path in ast.unparse(test.test) and not facts.held_at(removal, fn):
                yield _report(fn, removal, move, path)
                break


def _removed(call: ast.Call) -> str:
    """The path that a call removes."""
    if short_name(call.func) not in ("remove", "unlink"):
        return ""
    if call.args:
        return ast.unparse(call.args[0])
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _follows(move: ast.Call, test: ast.If) -> bool:
    """Whether a call comes after the test in the same block, or in a block there."""
    at: ast.AST | None = move
    while at is not None and parent(at) is not parent(test):
        at = parent(at)
    return at is not None and at is not test


def _to(move: ast.Call, path: str) -> bool:
    """Whether a call puts a file at this path."""
    target = keyword(move, "dst", 1)
    if target is None:
        target = keyword(move, "target", 0)
    return target is not None and ast.unparse(target) == path


def _of_one_system(node: ast.AST) -> bool:
    """Whether this is done on one operating system only: where no file can take the place of another one."""
    test = enclosing(node, ast.If)
    while isinstance(test, ast.If):
        if _SYSTEM.search(ast.unparse(test.test)):
            return True
        test = enclosing(test, ast.If)
    return False


_SYSTEM = re.compile(r"os\.name|platform|windows|win32|\bnt\b", re.I)


def _report(fn: Function, removal: ast.Call, move: ast.Call, path: str) -> Witness:
    links = short_name(move.func) in ("symlink", "link")
    return Witness(
        removal,
        fn,
        path=path,
        action="linked" if links else "moved there",
        move=move,
        instead="make the link under another name, then call" if links else "use",
    )
