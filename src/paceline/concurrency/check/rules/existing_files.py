"""Checks whether a file or folder exists, and handlers for one that another process has created or removed since."""

from __future__ import annotations

import ast
import re

from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.syntax.tree import parent

ASKS = ("exists", "lexists", "isdir", "isfile", "islink", "is_dir", "is_file", "is_symlink")
_BY_NAME = {"FileExistsError", "FileNotFoundError"}
_ANY = {"OSError", "IOError", "EnvironmentError", "error", "WindowsError", "Exception", "BaseException"}
_TELLS = re.compile(r"errno|EEXIST|ENOENT|exists|isdir|isfile|is_dir|is_file|islink|Errno")


def foreseen(call: ast.Call) -> bool:
    """Whether the error of the process that comes second is caught: by its name, or by a handler that tests it."""
    at: ast.AST = call
    while (around := parent(at)) is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(around, ast.Try) and at in around.body:
            for handler in around.handlers:
                kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                names = {short_name(kind) for kind in kinds if kind is not None} or {"BaseException"}
                if names & _BY_NAME or (names & _ANY and _distinguishes(handler)):
                    return True
        if isinstance(around, ast.With) and any("suppress" in ast.unparse(i.context_expr) for i in around.items):
            return True
        at = around
    return False


def _distinguishes(handler: ast.ExceptHandler) -> bool:
    """Whether a handler asks what went wrong, or continues whatever it was."""
    text = ast.unparse(handler)
    leaves = any(isinstance(n, ast.Raise | ast.Return) for n in ast.walk(handler))
    return _TELLS.search(text) is not None or not leaves
