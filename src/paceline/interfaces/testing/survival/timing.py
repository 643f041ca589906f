"""How long a fault took to be noticed and to be repaired, from the events of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.interfaces.testing.survival.faults import Fault, FaultKind
from paceline.runtime.runs.events import Event, EventKind, ProcessKind


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


def times_of(fault: Fault, events: Sequence[Event], copies: int) -> Times:
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


def _replaced(fault: Fault, later: Sequence[Event]) -> float | None:
    if fault.process is ProcessKind.DESK:
        return _first(fault, (e for e in later if e.kind is EventKind.LEASING and e.number > fault.number))
    grouped = _first(fault, (e for e in later if e.kind is EventKind.GROUP and fault.rank not in e.members))
    if grouped is None and fault.kind is FaultKind.KILL_WORKER:
        return _first(fault, (e for e in later if _starts(e, fault)))
    return grouped


def _starts(event: Event, fault: Fault) -> bool:
    return (event.kind, event.process, event.rank) == (EventKind.STARTED, fault.process, fault.rank)


def _concerns(event: Event, fault: Fault) -> bool:
    """Whether an event says that the process is gone; where nodes part, that a shard has other servers."""
    if fault.kind is FaultKind.PART_NODES:
        return event.kind is EventKind.VIEW
    if event.kind not in (EventKind.ENDED, EventKind.LOST):
        return False
    if fault.process is ProcessKind.AGENT:
        return event.rank == fault.rank
    return (event.process, event.number) == (fault.process, fault.number)


def _first(fault: Fault, events: Iterable[Event]) -> float | None:
    return min((event.at - fault.at for event in events), default=None)


def _all(values: Iterable[float | None]) -> float | None:
    """Return the last of some times; None if one has not come."""
    times = list(values)
    return None if None in times or not times else max(each for each in times if each is not None)
