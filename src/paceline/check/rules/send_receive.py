"""Two ranks that both send first, or both receive first.

A blocking receive waits for the other's send; where both sides receive first, neither ever sends. A blocking send may
wait for the other's receive, and does so as soon as the message is larger than the library's buffer; where both send
first, a test with small messages passes and the real run hangs. `sendrecv`, or one side in the other order, is safe.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.check.declared import Function
from paceline.check.findings import Finding, Step
from paceline.check.marks import said
from paceline.check.names import dotted, inside, keyword, last, parent
from paceline.check.ranks import condition, of_rank
from paceline.check.rules.rule import Rule, finding
from paceline.check.rules.some_ranks import RANK_WORDS
from paceline.check.summaries import Facts
from paceline.narrative import Wait

SENDS, RECEIVES = ("send", "Send", "ssend", "Ssend"), ("recv", "Recv")


def find(facts: Facts) -> Iterator[Finding]:
    for fn in facts.module.functions:
        messages = [c for c in fn.calls if _message(c, fn, facts)]
        if not messages:
            continue
        sides = _sides(fn, facts)
        for test, yes, no in sides:
            one, two = _in(messages, yes), _in(messages, no)
            if one and two and _kind(one[0]) == _kind(two[0]) and any(_kind(c) != _kind(one[0]) for c in one + two):
                yield _tell(fn, one[0], two[0], test.lineno)
        alone = [c for c in messages if not _chosen(c, fn, facts)]
        first = alone[0] if alone else None
        if first is not None and any(_kind(c) != _kind(first) for c in alone) and _neighbour(first, fn, facts):
            yield _tell(fn, first, first, first.lineno)


def _message(call: ast.Call, fn: Function, facts: Facts) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in SENDS + RECEIVES:
        return False
    owner = dotted(call.func.value)
    if facts.module.canonical(call.func).startswith("torch.distributed.") or owner in ("dist", "torch.distributed"):
        return True
    mpi = any(name.startswith("mpi4py") for name in facts.module.imports.values())
    return mpi and ("comm" in last(call.func.value).lower() or owner.endswith("COMM_WORLD"))


def _kind(call: ast.Call) -> str:
    return "send" if last(call.func) in SENDS else "receive"


def _sides(fn: Function, facts: Facts) -> list[tuple[ast.If, list[ast.stmt], list[ast.stmt]]]:
    """The two sides of every question about the rank; `if rank == 0: ... elif rank == 1: ...` too."""
    found = []
    for test in fn.tests:
        if isinstance(test, ast.If) and test.orelse and condition(test.test, fn, facts.module) is not None:
            other, up = test.orelse, parent(test)
            if isinstance(up, ast.If) and test in up.orelse:
                continue  # one of three or more sides
            if len(other) == 1 and isinstance(other[0], ast.If):
                if other[0].orelse:
                    continue
                other = other[0].body
            found.append((test, test.body, other))
    return found


def _chosen(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """Whether only some ranks come here."""
    at = inside(call, ast.If)
    while isinstance(at, ast.If):
        if facts.sequences.conditions(at.test, fn):
            return True
        at = inside(at, ast.If)
    return False


def _in(messages: list[ast.Call], body: list[ast.stmt]) -> list[ast.Call]:
    first, end = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    return [c for c in messages if first <= c.lineno <= end]


def _neighbour(call: ast.Call, fn: Function, facts: Facts) -> bool:
    """A partner counted from the own rank, and the whole ring or pair runs the same lines."""
    sending = _kind(call) == "send"
    other = keyword(call, "dest" if sending else "source") or keyword(call, "dst" if sending else "src")
    if other is None:
        other = (
            call.args[0 if not sending and last(call.func) == "recv" else 1]
            if len(call.args) > 1 or (call.args and last(call.func) == "recv")
            else None
        )
    if isinstance(other, ast.Name):
        other = fn.bound.get(other.id, other)
    if isinstance(other, ast.BinOp) and isinstance(other.op, ast.Mod):
        other = other.left
    if not isinstance(other, ast.BinOp):
        return False
    return of_rank(other.left, fn, facts.module) is not None or of_rank(other.right, fn, facts.module) is not None


def _tell(fn: Function, one: ast.Call, two: ast.Call, line: int) -> Finding:
    kind = _kind(one)
    sure = kind == "receive"
    waits = "send" if sure else "receive"
    return finding(
        one,
        fn,
        f"both sides {kind} first ({said(one)} at line {one.lineno}, {said(two)} at line {two.lineno}): "
        + (
            "neither ever sends"
            if sure
            else "each waits for the other to receive once a message no longer fits the buffer"
        ),
        [
            Step("rank 0", one.lineno, f"calls {said(one)}, and waits for rank 1 to {waits}"),
            Step("rank 1", two.lineno, f"calls {said(two)}, and waits for rank 0 to {waits}"),
        ],
        "let one side receive first, or use sendrecv, or isend and irecv with a wait for both",
        f"{said(one)} {said(two)}",
        0.9 if sure else 0.7,
        [
            Wait("rank 0", f"called {said(one)}", waits, "rank 1"),
            Wait("rank 1", f"called {said(two)}", waits, "rank 0"),
        ],
    )


RULE = Rule(
    "PC504",
    "both-send-first",
    "two ranks that both send first, or both receive first",
    find,
    bad="""
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        rank = comm.Get_rank()

        def swap(data):
            if rank == 0:
                other = comm.recv(source=1)
                comm.send(data, dest=1)
            else:
                other = comm.recv(source=0)
                comm.send(data, dest=0)
            return other
    """,
    good="""
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        rank = comm.Get_rank()

        def swap(data):
            if rank == 0:
                comm.send(data, dest=1)
                other = comm.recv(source=1)
            else:
                other = comm.recv(source=0)
                comm.send(data, dest=0)
            return other
    """,
    needs=RANK_WORDS,
)
