"""The class of the program that an annotation, or the last part of a name, means."""

from __future__ import annotations

import ast
import sys

from paceline.concurrency.check.syntax.declarations import Class, Declarations
from paceline.concurrency.check.syntax.names import dotted, short_name


def annotated(annotation: ast.expr | None, module: Declarations) -> Class | None:
    """The class that an annotation names: `Pool`, `"Pool"`, `Optional[Pool]`, `Pool | None`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return module.classes.get(annotation.value.partition("|")[0].strip().removeprefix("Optional[").strip("]"))
    if isinstance(annotation, ast.BinOp):
        return annotated(annotation.left, module) or annotated(annotation.right, module)
    if isinstance(annotation, ast.Subscript) and short_name(annotation.value) in ("Optional", "Annotated"):
        return annotated(annotation.slice, module)
    return class_named(annotation, module) if annotation is not None else None


def class_named(node: ast.expr, module: Declarations) -> Class | None:
    """The class of the program that has the last part of a name, of which nothing else is known."""
    return None if _of_library(node, module) else module.classes.get(short_name(node))


def _of_library(node: ast.expr, module: Declarations) -> bool:
    """Whether a name is of the standard library: `sqlite3.Connection`, beside a class `Connection` of the program."""
    head = module.imports.get(dotted(node).partition(".")[0], "") if isinstance(node, ast.Attribute) else ""
    return head.partition(".")[0] in sys.stdlib_module_names
