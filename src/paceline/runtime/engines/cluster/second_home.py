"""The second home of a run: what the head records, its deputy has, too, so that it can lead from there.

    head                                        deputy: the rank that leads next
    ----                                        ------
    rows that were put into the trace --------> in memory, with how many of each agent there are
    events of the processes ------------------> in memory
    snapshots, for evaluations ---------------> in its file of snapshots

A rank that becomes the deputy later is sent all of it first. The rows of a resumed run's earlier lives, which no node
of this one has written, are with every node before it may lead. Nothing is confirmed: nodes keep their own rows, so
what was under way when the head was lost is asked of them again. Of the rows of the head's own worker the last ones may
be missing, on which no model and no replay depends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from paceline.algorithms.cluster.numbered_rows import NumberedRows, Writer
from paceline.runtime.engines.cluster.control import CopiedRows, Noted, Snapshot, ToRank
from paceline.runtime.engines.cluster.remote_workers import RemoteWorkers
from paceline.runtime.engines.workers.state_buffers import SnapshotFile
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.runs.live import EventLog, RunEvent
from paceline.runtime.runs.trace import DTYPE, Columns, Kind

PAUSE = 0.2  # seconds between two messages with rows: each costs the head and the deputy more than its rows do


class SecondHome:
    """The head's side."""

    def __init__(
        self,
        to_rank: ToRank,
        workers: RemoteWorkers,
        log: EventLog,
        snapshots: SnapshotFile | None,
        known: Sequence[int],
    ) -> None:
        """`known` are the updates of the snapshots that there are already."""
        self.to_rank, self.workers, self.log, self.snapshots = to_rank, workers, log, snapshots
        self.deputy: int | None = None
        #: The updates of the snapshots that are in the file.
        self.known = list(known)
        #: Rows that were not sent yet, and when others were.
        self._unsent: list[Columns] = []
        self._sent_at = 0.0

    def move(self, deputy: int | None) -> None:
        """Make this rank the deputy, and send it all that there is."""
        if deputy == self.deputy:
            return
        self.deputy = deputy
        writer = self.workers.observer.writer
        self._send_rows([writer.so_far().rows] if writer is not None else [], whole=True)
        for event in self.log.events:
            self.event(event)
        for updates in self.known:
            self._send_snapshot(updates)

    def welcome(self, rank: int) -> None:
        """Let a node that may come to lead have the rows of earlier lives; as the deputy it needs all of them anew."""
        self.deputy = None if self.deputy == rank else self.deputy
        writer = self.workers.observer.writer
        earlier = earlier_lives(writer.so_far().rows) if writer is not None else None
        if earlier is not None and len(earlier):
            self.to_rank(rank, CopiedRows((), whole=True), [earlier.tobytes()])

    def rows(self, parts: Sequence[Columns]) -> None:
        """Take rows that were put into the trace; called several times a second, also with none."""
        self._unsent += [part for part in parts if len(part)]
        if self._unsent and monotonic() - self._sent_at >= PAUSE:
            self._send_rows(self._unsent)

    def event(self, event: RunEvent) -> None:
        """Take an event."""
        if self.deputy is not None:
            self.to_rank(self.deputy, Noted(event))

    def snapshot(self, updates: int) -> None:
        """Take note of a snapshot that is in the file now."""
        self.known.append(updates)
        self._send_snapshot(updates)

    def _send_snapshot(self, updates: int) -> None:
        if self.deputy is not None and self.snapshots is not None:
            tensors = [raw(tensor.contiguous().flatten()) for tensor in self.snapshots.read(updates)]
            self.to_rank(self.deputy, Snapshot(updates), tensors)

    def _send_rows(self, parts: Sequence[Columns], whole: bool = False) -> None:
        self._unsent, self._sent_at = [], monotonic()
        if self.deputy is not None:
            counts = tuple((*writer, count) for writer, count in self.workers.numbered.counts.items())
            self.to_rank(self.deputy, CopiedRows(counts, whole), [part.tobytes() for part in parts])


def earlier_lives(rows: Columns) -> Columns:
    """Return the rows of a trace up to where the run was resumed last; none if it was not."""
    resumed = np.flatnonzero(rows["kind"] == Kind.RESUME)
    return rows[: resumed[-1] + 1 if len(resumed) else 0]


@dataclass(frozen=True)
class Succeeds:
    """What the parts of a head have to know if it has taken over."""

    term: int
    #: The ranks that belong to the run.
    ranks: tuple[int, ...]
    #: Returns the numbers of the shard servers that run on their nodes.
    servers: Callable[[], set[int]]


@dataclass(frozen=True)
class Office:
    """What the head leads a run with, whatever the plan."""

    workers: RemoteWorkers
    to_rank: ToRank
    #: The file of snapshots, if the run is evaluated; and where events are written.
    snapshots: SnapshotFile | None
    note: Callable[[RunEvent], None]
    second_home: SecondHome
    #: None unless this head has taken over.
    succeeds: Succeeds | None = None


@dataclass
class RunCopy:
    """The deputy's side: what it has of the head's records."""

    parts: list[Columns] = field(default_factory=list)
    numbered: NumberedRows = field(default_factory=NumberedRows)
    events: list[RunEvent] = field(default_factory=list)
    #: The updates of the snapshots that its file has of other nodes.
    snapshots: list[int] = field(default_factory=list)

    @property
    def rows(self) -> Columns:
        """The rows of the trace, whose times count from the start of the run."""
        return np.concatenate([np.empty(0, DTYPE), *self.parts])

    def take_rows(self, message: CopiedRows, content: memoryview) -> None:
        """Take rows of the head's trace."""
        if message.whole:
            self.parts, self.events, self.snapshots = [], [], []
        self.parts.append(np.array(np.frombuffer(content, DTYPE)) if len(content) else np.empty(0, DTYPE))
        self.numbered = NumberedRows({Writer(rank, agent): count for rank, agent, count in message.counts})
