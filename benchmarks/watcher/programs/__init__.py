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
    **dict.fromkeys(LIVELOCKED, "livelocked"),
    **dict.fromkeys(STOPPED, "stopped"), **dict.fromkeys(RANKS, "deadlocked"),
}  # fmt: skip
LEARNED = frozenset({"locks", "pipes", "files", "event_loops", "sleepers", "servers", "signals", "computing",
                     "politeness", "stops"})  # fmt: skip

#: The processes that hold each other: all of the program, but in these programs.
CAUSE = {
    "processes.forked_with_a_lock": "children", "shared.circle": "children", "shared.held_by_the_dead": "children",
    "shared.one_missing": "children", "stops.child": "children", "collectives.skipped": "rank 1",
    "collectives.receives_first": "ranks",
}  # fmt: skip
