"""Two ranks that both send first, or both receive first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.ranks.branches import condition, of_rank
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import dotted, keyword, short_name
from paceline.concurrency.check.syntax.tree import enclosing, is_within, parent

SENDS, RECEIVES = ("send", "Send", "ssend", "Ssend"), ("recv", "Recv")


def find(facts: Facts) -> Iterator[Witness]:
    """Report branches on the rank, and symmetric exchanges, in which both sides start with the same call."""
    for fn in facts.module.functions:
        messages = [c for c in fn.calls if _message(c, fn, facts)]
        if not messages:
            continue
        sides = _sides(fn, facts)
        for yes, no in sides:
            one, two = _in(messages, yes), _in(messages, no)
            if one and two and _kind(one[0]) == _kind(two[0]) and any(_kind(c) != _kind(one[0]) for c in one + two):
                yield _report(fn, one[0], two[0])
        alone = [c for c in messages if not _chosen(c, fn, facts)]
        first = alone[0] if alone else None
        if first is not None and any(_kind(c) != _kind(first) for c in alone) and _neighbour(first, fn, facts):
            yield _report(fn, first, first)


def _message(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether a call is a blocking send or receive."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in SENDS + RECEIVES:
        return False
    owner = dotted(call.func.value)
    if facts.module.canonical(call.func).startswith("torch.distributed.") or owner in ("dist", "torch.distributed"):
        return True
    mpi = any(name.startswith("mpi4py") for name in facts.module.imports.values())
    return mpi and ("comm" in short_name(call.func.value).lower() or owner.endswith("COMM_WORLD"))


def _kind(call: ast.Call) -> str:
    return "send" if short_name(call.func) in SENDS else "receive"


def _sides(fn: Function, facts: Facts) -> list[tuple[list[ast.stmt], list[ast.stmt]]]:
    """The two branches of every test of the rank; `if rank == 0: ... elif rank == 1: ...` too."""
    sides = []
    for test in fn.tests:
        if isinstance(test, ast.If) and test.orelse and condition(test.test, fn, facts.module) is not None:
            other, up = test.orelse, parent(test)
            if isinstance(up, ast.If) and test in up.orelse:
                continue  # one of three or more branches
            if len(other) == 1 and isinstance(other[0], ast.If):
                if other[0].orelse:
                    continue
                other = other[0].body
            sides.append((test.body, other))
    return sides


def _chosen(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether only some ranks reach this call."""
    at = enclosing(call, ast.If)
    while isinstance(at, ast.If):
        if facts.sequences.conditions(at.test, fn):
            return True
        at = enclosing(at, ast.If)
    return False


def _in(messages: list[ast.Call], body: list[ast.stmt]) -> list[ast.Call]:
    return [c for c in messages if is_within(c, body)]


def _neighbour(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether the peer is computed from the own rank, so that all ranks of a ring or pair run the same line."""
    sending = _kind(call) == "send"
    other = keyword(call, "dest" if sending else "source") or keyword(call, "dst" if sending else "src")
    if other is None:
        other = (
            call.args[0 if not sending and short_name(call.func) == "recv" else 1]
            if len(call.args) > 1 or (call.args and short_name(call.func) == "recv")
            else None
        )
    if isinstance(other, ast.Name):
        other = fn.bound.get(other.id, other)
    if isinstance(other, ast.BinOp) and isinstance(other.op, ast.Mod):
        other = other.left
    if not isinstance(other, ast.BinOp):
        return False
    return of_rank(other.left, fn, facts.module) is not None or of_rank(other.right, fn, facts.module) is not None


def _report(fn: Function, one: ast.Call, two: ast.Call) -> Witness:
    receives = _kind(one) == "receive"
    reason = (
        "neither ever sends"
        if receives
        else "each waits for the other to receive once a message no longer fits the buffer"
    )
    need = "send" if receives else "receive"
    confidence = 0.9 if receives else 0.7
    return Witness(one, fn, confidence=confidence, kind=_kind(one), two=two, reason=reason, need=need)
