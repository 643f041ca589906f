"""The order in which other processes see what a process stores.

Shared memory is published without a lock: a process writes the data, then a counter that says that the data lie ready.
A process that sees the counter reads the data.

    writer    data = ...         reader    until counter is n
              counter = n                  ... = data

That holds where the processor keeps the order of stores and of loads, as x86-64 does (total store order). Others, such
as ARM, need a fence on both sides, which Python does not have. So what relies on the order asks here first: the tables'
offers, the mailboxes of pipelines, the rings of the trace, the lockers, and the cells of the backend.
"""

from __future__ import annotations

import platform

from paceline.errors import MachineError

KEEPS_ORDER = ("x86_64",)


def lacking() -> str:
    """Why this processor cannot be relied on, as the end of a sentence; empty where it can."""
    machine = platform.machine()
    return "" if machine in KEEPS_ORDER else f"has a {machine} processor, not an x86-64"


def require_store_order(what: str) -> None:
    """Raise MachineError where `what` would not be safe on this processor."""
    if reason := lacking():
        raise MachineError(
            f"this machine {reason}: {what} shares memory between processes and needs a processor that keeps the order "
            "of stores. Train on an x86-64, or in one process with engine='virtual'"
        )
