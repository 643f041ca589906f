"""Faults: which process of a run is meant, and what is done to it."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from paceline.interfaces.testing.survival.hosts import Host
from paceline.interfaces.testing.survival.nodes import Nodes
from paceline.runtime.runs.live import EventKind, ProcessKind, RunEvent
from paceline.runtime.runs.schema import StrEnum


class FaultKind(StrEnum):
    """What is done, and to which process."""

    KILL_WORKER = "kill worker"
    KILL_HELPER = "kill helper"
    KILL_PRIMARY = "kill primary"
    KILL_BACKUP = "kill backup"
    KILL_DESK = "kill desk"
    KILL_NODE = "kill node"  # the agent of a node other than the head's; its processes end with it
    STOP_WORKER = "stop worker"
    STOP_HELPER = "stop helper"
    STOP_PRIMARY = "stop primary"
    STOP_BACKUP = "stop backup"
    STOP_DESK = "stop desk"
    STOP_NODE = "stop node"
    CUT_LINK = "cut link"  # of a node other than the head's
    PART_NODES = "part nodes"  # all but the head's reach the head alone, and not each other
    SLOW_LINK = "slow link"  # to a node other than the head's

    @property
    def lasts(self) -> bool:
        """Whether the fault is taken back after a while."""
        return not self.value.startswith("kill")


#: Faults of synchronous plans, of links, and of plans with servers.
IN_STEP = (FaultKind.KILL_WORKER, FaultKind.KILL_NODE, FaultKind.STOP_WORKER)
LINKS = (FaultKind.CUT_LINK, FaultKind.PART_NODES, FaultKind.SLOW_LINK)
HELPED = (FaultKind.KILL_HELPER, FaultKind.STOP_HELPER)  # of plans whose batches have chunks
SERVED = tuple(kind for kind in FaultKind if kind not in LINKS + HELPED)


@dataclass(frozen=True)
class Fault:
    """One fault that was done."""

    kind: FaultKind
    #: When, in seconds since 1970.
    at: float
    process: ProcessKind
    rank: int
    number: int
    #: The shards of the process, or of the servers of a node.
    shards: tuple[int, ...] = ()
    #: Seconds until it was taken back; 0 if never.
    seconds: float = 0.0


class Picture:
    """The processes and the views of a run, as its events tell."""

    def __init__(self, events: Sequence[RunEvent]) -> None:
        self.alive: dict[tuple[ProcessKind, int], RunEvent] = {}
        #: The servers of each shard, the primary first, of the view that was established last.
        self.views: dict[int, tuple[int, ...]] = {}
        #: The ranks of the last group.
        self.group: tuple[int, ...] = ()
        for event in events:
            if event.kind is EventKind.STARTED and event.process is not None:
                self.alive[event.process, event.number] = event
            elif event.kind is EventKind.ENDED and event.process is not None:
                self.alive.pop((event.process, event.number), None)
            elif event.kind is EventKind.LOST and event.process is ProcessKind.AGENT:
                self.alive = {key: each for key, each in self.alive.items() if each.rank != event.rank}
            elif event.kind is EventKind.SERVING:
                self.views[event.shard] = event.members
            elif event.kind is EventKind.GROUP:
                self.group = event.members

    @property
    def ranks(self) -> set[int]:
        """The nodes that have processes."""
        return {event.rank for event in self.alive.values()}

    def of(self, process: ProcessKind, number: int) -> list[RunEvent]:
        """Return the process, if it is alive."""
        return [event for key, event in self.alive.items() if key == (process, number)]

    def candidates(self, kind: FaultKind) -> list[tuple[RunEvent, tuple[int, ...]]]:
        """Return the processes that a fault of this kind may meet, with the shards that they hold."""
        what = kind.value.split()[1]
        if what in ("worker", "helper", "desk"):
            return [(event, ()) for event in self.alive.values() if event.process == what]
        if what in ("primary", "backup"):
            return [
                (event, (shard,))
                for shard, members in self.views.items()
                for number in (members[:1] if what == "primary" else members[1:])
                for event in self.of(ProcessKind.SERVER, number)
            ]
        others = sorted(self.ranks - {0})
        if kind is FaultKind.PART_NODES and len(others) < 2:
            return []
        return [(self._agent(rank), self._shards_on(rank)) for rank in others]

    def _agent(self, rank: int) -> RunEvent:
        return RunEvent(EventKind.STARTED, 0.0, ProcessKind.AGENT, rank, rank)

    def _shards_on(self, rank: int) -> tuple[int, ...]:
        return tuple(
            shard
            for shard, members in self.views.items()
            if any(event.rank == rank for number in members for event in self.of(ProcessKind.SERVER, number))
        )


def _nothing() -> None: ...


@dataclass
class Injector:
    """Does faults to a run, and takes back those that last."""

    nodes: Nodes
    chance: random.Random
    hosts: Sequence[Host] = ()
    bridge: str = ""
    done: list[Fault] = field(default_factory=list)
    #: When faults end, with the processes to wake and what else takes them back.
    _ends: list[tuple[float, list[int], Callable[[], None]]] = field(default_factory=list)

    def inject(self, kind: FaultKind, picture: Picture, seconds: float = 0.0) -> Fault | None:
        """Do a fault to a process that chance chooses; None if there is none, or it has ended meanwhile."""
        candidates = picture.candidates(kind)
        if not candidates:
            return None
        victim, shards = self.chance.choice(candidates)
        assert victim.process is not None
        agent = next((node.pid for node in self.nodes.running if node.rank == victim.rank), 0)
        pids = [agent] if victim.process is ProcessKind.AGENT else [victim.pid]
        if kind is FaultKind.STOP_NODE:
            pids += [event.pid for event in picture.alive.values() if event.rank == victim.rank]
        at, undo = time.time(), _nothing
        try:
            if kind in LINKS:
                pids, undo = [], self._hurt(kind, victim.rank)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP if kind.lasts else signal.SIGKILL)
        except ProcessLookupError:
            return None
        lasts = seconds if kind.lasts else 0.0
        fault = Fault(kind, at, victim.process, victim.rank, victim.number, shards, lasts)
        if kind.lasts:
            self._ends.append((at + seconds, pids, undo))
        self.done.append(fault)
        return fault

    def _hurt(self, kind: FaultKind, rank: int) -> Callable[[], None]:
        """Do a fault to the links of hosts; return what takes it back."""
        host = self.hosts[rank]
        if kind is FaultKind.CUT_LINK:
            host.cut()
            return partial(host.mend, self.bridge)
        if kind is FaultKind.SLOW_LINK:
            host.slow(True)
            return partial(host.slow, False)

        def part(parted: bool) -> None:
            for each in self.hosts[1:]:
                each.part(parted)

        part(True)
        return partial(part, False)

    def poll(self, everything: bool = False) -> bool:
        """Take back what is due, or everything; whether nothing is left to take back."""
        now = time.time()
        for entry in [each for each in self._ends if everything or each[0] <= now]:
            self._ends.remove(entry)
            _, pids, undo = entry
            undo()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        return not self._ends


# How long a fault took to be noticed and to be repaired, from the events of the run.


@dataclass(frozen=True)
class Times:
    """Seconds from a fault; None where it has not come to that before the end of the run, or does not apply."""

    #: Until a process of the run knew.
    noticed: float | None = None
    #: Until another primary served each shard whose primary was met.
    served: float | None = None
    #: Until each shard that was met had all its backups again.
    replicated: float | None = None
    #: Until a worker, a desk or a group was there in the place of the one that was met.
    replaced: float | None = None


def times_of(fault: Fault, events: Sequence[RunEvent], copies: int) -> Times:
    """Return the times of a fault."""
    later = [event for event in events if event.at >= fault.at]
    until = fault.at + fault.seconds + 1.0 if fault.seconds else math.inf  # what is noted later has another cause
    noticed = _first(fault, (e for e in later if e.at <= until and _concerns(e, fault)))
    if noticed is None and fault.seconds:
        return Times()  # it was over before anyone minded
    serving = [e for e in later if e.kind is EventKind.SERVING]
    served = replicated = None
    if fault.kind in (FaultKind.KILL_PRIMARY, FaultKind.STOP_PRIMARY):
        served = _all(
            _first(fault, (e for e in serving if e.shard == shard and e.members[0] != fault.number))
            for shard in fault.shards
        )
    if fault.shards and fault.process is ProcessKind.SERVER:
        replicated = _all(
            _first(fault, (e for e in serving if e.shard == shard and len(e.members) >= copies))
            for shard in fault.shards
        )
    return Times(noticed, served, replicated, _replaced(fault, later))


def _replaced(fault: Fault, later: Sequence[RunEvent]) -> float | None:
    if fault.process is ProcessKind.DESK:
        return _first(fault, (e for e in later if e.kind is EventKind.LEASING and e.number > fault.number))
    grouped = _first(fault, (e for e in later if e.kind is EventKind.GROUP and fault.rank not in e.members))
    if grouped is None and fault.kind is FaultKind.KILL_WORKER:
        return _first(fault, (e for e in later if _starts(e, fault)))
    return grouped


def _starts(event: RunEvent, fault: Fault) -> bool:
    return (event.kind, event.process, event.rank) == (EventKind.STARTED, fault.process, fault.rank)


def _concerns(event: RunEvent, fault: Fault) -> bool:
    """Whether an event says that the process is gone; where nodes part, that a shard has other servers."""
    if fault.kind is FaultKind.PART_NODES:
        return event.kind is EventKind.VIEW
    if event.kind not in (EventKind.ENDED, EventKind.LOST):
        return False
    if fault.process is ProcessKind.AGENT:
        return event.rank == fault.rank
    return (event.process, event.number) == (fault.process, fault.number)


def _first(fault: Fault, events: Iterable[RunEvent]) -> float | None:
    return min((event.at - fault.at for event in events), default=None)


def _all(values: Iterable[float | None]) -> float | None:
    """Return the last of some times; None if one has not come."""
    times = list(values)
    return None if None in times or not times else max(each for each in times if each is not None)
