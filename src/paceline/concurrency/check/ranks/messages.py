"""The messages that the ranks of a small world send and receive, and whether they all find a partner.

A program of point-to-point messages rarely depends on anything but the rank and the number of ranks. It is followed
once for each rank of worlds of 2, 3 and 4 ranks, on whole numbers alone: what is received, read or computed otherwise
is unknown, and where such a value decides about a message, nothing is said. The traces are then played against each
other, with sends that wait for their receiver (a message that does not fit the buffer) or do not.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from paceline.concurrency.check.ranks.sequences import Sequences
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import short_name
from paceline.concurrency.check.values.module import Module

WORLDS = (2, 3, 4)
ANY = -1  # any source, any tag


class Operation(NamedTuple):
    """One step of a rank that other ranks take part in."""

    kind: str  # send, receive, or a collective by its name
    line: int
    peer: int = ANY
    tag: int = 0
    blocks: bool = True
    call: ast.Call | None = None


class Stuck(NamedTuple):
    """A rank that waits for ever, and what the rank it waits for does instead."""

    rank: int
    operation: Operation
    other: Operation | None  # None where that rank has come to its end
    alike: bool = False  # both send, or both receive, before they have exchanged anything


class _Post:
    """A message that is on offer, or asked for."""

    def __init__(self, rank: int, operation: Operation) -> None:
        self.rank, self.operation, self.done = rank, operation, False


class World:
    """The ranks of one run, each at a place of its trace."""

    def __init__(self, traces: Sequence[Sequence[Operation]], buffered: bool) -> None:
        self._traces, self._buffered = traces, buffered
        self._at = [0] * len(traces)
        self._posted: list[_Post | None] = [None] * len(traces)
        self._sends: list[_Post] = []
        self._receives: list[_Post] = []

    def stuck(self) -> list[Stuck]:
        """The ranks that wait for a message for ever; empty when all come to their end, or differ otherwise."""
        while any(self._advance(rank) for rank in range(len(self._traces))) or self._meet():
            pass
        waiting = {
            rank: trace[at]
            for rank, (trace, at) in enumerate(zip(self._traces, self._at, strict=True))
            if at < len(trace)
        }
        messages = {rank: op for rank, op in waiting.items() if op.kind in ("send", "receive")}
        others = {rank: waiting.get(op.peer) for rank, op in messages.items()}
        return [Stuck(rank, op, others[rank], self._alike(rank, op, others[rank])) for rank, op in messages.items()]

    def _alike(self, rank: int, operation: Operation, other: Operation | None) -> bool:
        """Whether two ranks do the same first, so that neither comes to what the other needs."""
        if other is None or other.kind != operation.kind or operation.peer == rank:
            return False
        before = (op for each in (rank, operation.peer) for op in self._traces[each][: self._at[each]])
        return not any(op.kind in ("send", "receive") for op in before)

    def _advance(self, rank: int) -> bool:
        """Let a rank do its next step if it can."""
        if self._at[rank] >= len(self._traces[rank]):
            return False
        operation = self._traces[rank][self._at[rank]]
        beyond = operation.peer == len(self._traces) or (operation.kind == "send" and operation.peer < 0)
        if operation.kind not in ("send", "receive") or beyond:
            return False  # a message to or from the rank after the last one, or before the first, which does not exist
        post = self._posted[rank]
        if post is None:
            post = self._posted[rank] = _Post(rank, operation)
            (self._sends if operation.kind == "send" else self._receives).append(post)
            self._match()
        if post.done or not operation.blocks or (operation.kind == "send" and self._buffered):
            self._at[rank] += 1
            self._posted[rank] = None
            return True
        return False

    def _meet(self) -> bool:
        """Let all ranks pass a collective at which all have arrived."""
        operations = [trace[at] for trace, at in zip(self._traces, self._at, strict=True) if at < len(trace)]
        if (
            len(operations) < len(self._traces)
            or len({op.kind for op in operations}) > 1
            or operations[0].kind in ("send", "receive")
        ):
            return False
        self._at = [at + 1 for at in self._at]
        return True

    def _match(self) -> None:
        """Give every receiver the first message that it may take."""
        for receive in self._receives:
            if receive.done:
                continue
            operation = receive.operation
            for send in self._sends:
                mine = not send.done and send.operation.peer == receive.rank
                if mine and operation.peer in (ANY, send.rank) and operation.tag in (ANY, send.operation.tag):
                    send.done = receive.done = True
                    break


# Which calls are messages between two ranks, and which functions exchange anything with other ranks.

#: The name of a call -> whether it waits for its partner.
SENDS = {"send": True, "Send": True, "ssend": True, "Ssend": True, "isend": False, "Isend": False, "issend": False}
RECEIVES = {"recv": True, "Recv": True, "irecv": False, "Irecv": False}
BOTH = {"sendrecv", "Sendrecv"}


def is_message(call: ast.Call, module: Module) -> bool:
    """Whether a call sends or receives a message between two ranks."""
    if short_name(call.func) not in {*SENDS, *RECEIVES, *BOTH}:
        return False
    if module.canonical(call.func).startswith("torch.distributed."):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = short_name(call.func.value).lower()
    mpi = any(origin.startswith("mpi4py") for origin in module.imports.values())
    return mpi and (owner == "comm_world" or "comm" in owner)


class Exchanges:
    """Which calls send, receive or run a collective, themselves or in functions of the file; each found once."""

    def __init__(self, module: Module, sequences: Sequences) -> None:
        self._module, self._sequences = module, sequences
        self._known: dict[int, bool] = {}

    def __call__(self, call: ast.Call, fn: Function) -> bool:
        if id(call) not in self._known:
            self._known[id(call)] = False  # what a circle of calls gets
            callee = self._module.callee(call, fn)
            self._known[id(call)] = (
                is_message(call, self._module)
                or self._sequences.collective(call, fn) is not None
                or (callee is not None and any(self(inner, callee) for inner in callee.calls))
            )
        return self._known[id(call)]
