"""Which calls are messages between two ranks, and which functions exchange anything with other ranks."""

from __future__ import annotations

import ast

from paceline.concurrency.check.ranks.sequences import Sequences
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.values.module import Module

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
