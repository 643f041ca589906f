"""A message or collective that is started and never waited for, or too late."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing, last_line, on_different_branches, parent

BEGIN = ("isend", "irecv", "Isend", "Irecv", "issend", "Issend")
ADDS = ("append", "add", "appendleft", "extend", "insert")
DEPTH = 6  # names, lists and calls through which a value is followed


#: What may be asked of a tensor while a message is under way.
FORM = {"shape", "dtype", "device", "ndim", "size", "numel", "dim", "element_size", "is_cuda", "nbytes"}


def find(facts: Facts) -> Iterator[Witness]:
    """Report calls whose handle is dropped, and buffers that are used before the handle is waited for."""
    for fn in facts.module.functions:
        for call in fn.calls:
            if not _begins(call, fn, facts):
                continue
            if _is_dropped(call, fn, facts):
                how = "dropped" if isinstance(parent(call), ast.Expr) else "never waited for"
                yield Witness(
                    call, fn, message=f"{text_of(call)} returns a handle that is {how}: the program cannot tell when"
                )
            elif (use := _used_early(call, fn, facts)) is not None:
                yield _report_early(call, fn, *use)


def _used_early(call: ast.Call, fn: Function, facts: Facts) -> tuple[ast.AST, int] | None:
    """Where the buffer of a call is used before its handle is waited for, and the line of the wait."""
    up = parent(call)
    handle = dotted(up.targets[0]) if isinstance(up, ast.Assign) and isinstance(up.targets[0], ast.Name) else ""
    buffer = dotted(call.args[0]) if call.args and isinstance(call.args[0], ast.Name | ast.Attribute) else ""
    last = last_line(call)
    reads = [n.lineno for n in fn.names if n.id == handle and isinstance(n.ctx, ast.Load) and n.lineno > last]
    if not handle or not buffer or not reads:
        return None
    sends = "send" in short_name(call.func).lower()
    uses: list[ast.Name | ast.Attribute] = [*fn.names, *fn.attributes]
    for node in sorted(uses, key=lambda n: n.lineno):
        if not last < node.lineno < min(reads) or dotted(node) != buffer or on_different_branches(call, node):
            continue
        if isinstance(node.ctx, ast.Store):
            return None if not isinstance(parent(node), ast.AugAssign) else (node, min(reads))
        if (_changes(node) if sends else _reads(node)) and not _in_message(node, fn, facts):
            return node, min(reads)
    return None


def _changes(node: ast.AST) -> bool:
    """Whether a tensor is changed in place here."""
    up = parent(node)
    if isinstance(up, ast.Subscript) and up.value is node:
        return isinstance(up.ctx, ast.Store)
    called = isinstance(up, ast.Attribute) and isinstance(parent(up), ast.Call)
    return called and up.attr.endswith("_") and not up.attr.endswith("__")  # type: ignore[union-attr]


def _reads(node: ast.AST) -> bool:
    """Whether what is in a tensor is read here, rather than its form."""
    up = parent(node)
    return not (isinstance(up, ast.Attribute) and up.attr in FORM) and not isinstance(up, ast.Delete)


def _in_message(node: ast.AST, fn: Function, facts: Facts) -> bool:
    """Whether this is an argument of another message."""
    around = enclosing(node, ast.Call)
    return isinstance(around, ast.Call) and (_begins(around, fn, facts) or short_name(around.func) in ("P2POp", "len"))


def _report_early(call: ast.Call, fn: Function, use: ast.AST, wait: int) -> Witness:
    return Witness(use, fn, "early", wait=wait, call=call, line=getattr(use, "lineno", call.lineno))


def _begins(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call starts a message or collective and returns a handle."""
    if short_name(call.func) in BEGIN and isinstance(call.func, ast.Attribute):
        owner = dotted(call.func.value)
        mpi = any(name.startswith("mpi4py") for name in facts.module.imports.values())
        return owner in ("dist", "torch.distributed") or (mpi and "comm" in owner.lower())
    return is_constant(keyword(call, "async_op"), True) and facts.sequences.collective(call, fn) is not None


def _is_dropped(node: ast.AST, fn: Function, facts: Facts, depth: int = 0) -> bool:
    """Whether nothing in the file ever reads what an expression returns."""
    up = parent(node)
    if isinstance(up, ast.Expr):
        return True
    if depth > DEPTH:
        return False
    if isinstance(up, ast.List | ast.Tuple | ast.Set | ast.ListComp | ast.IfExp):
        is_test = isinstance(up, ast.IfExp) and up.test is node
        return not is_test and _is_dropped(up, fn, facts, depth + 1)
    if isinstance(up, ast.Assign) and up.value is node:
        return all(_is_unread(target, fn, facts, depth + 1) for target in up.targets)
    if isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr in ADDS and node in up.args:
        return _is_unread(up.func.value, fn, facts, depth + 1)
    if isinstance(up, ast.Return):
        sites = facts.callers.get(id(fn), ())
        return bool(sites) and all(_is_dropped(event.effect.node, caller, facts, depth + 1) for caller, event in sites)
    return False


def _is_unread(target: ast.AST, fn: Function, facts: Facts, depth: int) -> bool:
    """Whether what a name or an attribute of the own object holds is never read."""
    if isinstance(target, ast.Name):
        if target.id in fn.globals or target.id in fn.nonlocals or fn is facts.module.top:
            return False
        inner = [f for f in facts.module.functions if fn in f.scopes()]
        if target.id in fn.parameters:
            return False
        reads: list[tuple[ast.AST, Function]] = [(n, f) for f in inner for n in f.names if n.id == target.id]
    elif isinstance(target, ast.Attribute) and fn.self_name and dotted(target.value) == fn.self_name:
        reads = [(n, f) for f in facts.module.functions for n in f.attributes if n.attr == target.attr]
    else:
        return False
    loads = [(n, f) for n, f in reads if isinstance(n.ctx, ast.Load)]  # type: ignore[attr-defined]
    return all(_is_filled(n) or _is_dropped(n, f, facts, depth) for n, f in loads)


def _is_filled(node: ast.AST) -> bool:
    """Whether this only adds to a container."""
    up = parent(node)
    return isinstance(up, ast.Attribute) and up.attr in ADDS and isinstance(parent(up), ast.Call)
