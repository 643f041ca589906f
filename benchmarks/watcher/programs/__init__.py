"""Small programs that hang and small programs that do not, in families; `python -m programs FAMILY NAME` runs one.

The split of the families into those that the classifier learns from and those that are held out was fixed before any
program had been run.
"""

from __future__ import annotations

#: What the programs of a family do in the end.
DEADLOCKED = (
    "locks",
    "pipes",
    "files",
    "event_loops",
    "queues",
    "sockets",
    "processes",
    "shared",
    "executors",
    "polling",
)
WAITING = ("sleepers", "servers", "signals", "parents", "pools", "slow_peers")
BUSY = ("computing", "builds")
LIVELOCKED = ("politeness",)
STOPPED = ("stops",)
RANKS = ("collectives",)

VERDICT = {
    **dict.fromkeys(DEADLOCKED, "deadlocked"), **dict.fromkeys(WAITING, "waiting"), **dict.fromkeys(BUSY, "busy"),
    **dict.fromkeys(LIVELOCKED, "livelocked"), **dict.fromkeys(STOPPED, "stopped"), **dict.fromkeys(RANKS, "deadlocked"),
}  # fmt: skip
LEARNED = frozenset({"locks", "pipes", "files", "event_loops", "sleepers", "servers", "signals", "computing",
                     "politeness", "stops"})  # fmt: skip
