"""What the head records of the processes of all nodes: live.json names those that run, events.jsonl what happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from paceline.runtime.engines.cluster.control import Began, Exited
from paceline.runtime.engines.cluster.rendezvous import Node, boot
from paceline.runtime.engines.observer import Observer
from paceline.runtime.runs.live import Event, EventKind, EventLog, NodeProcess, ProcessKind, ProcessRecord, wall_time

#: Records an event.
Note: TypeAlias = Callable[[Event], None]


class ProcessLog:
    """The processes of a run, and the events of their lives."""

    def __init__(self, events: EventLog, nodes: dict[int, Node], head: int, head_pid: int) -> None:
        self.events = events
        #: The processes that run, by their kind and number.
        self.processes: dict[tuple[ProcessKind, int], NodeProcess] = {}
        #: Nanoseconds by which this process's clock is ahead of each node's.
        self._ahead = {rank: node.ahead for rank, node in nodes.items()}
        for rank, process in [(head, ProcessRecord.of(head_pid)), *((r, _agent(node)) for r, node in nodes.items())]:
            self.processes[ProcessKind.AGENT, rank] = NodeProcess(ProcessKind.AGENT, rank, rank, -1, process)

    def note(self, event: Event) -> None:
        """Record an event."""
        self.events.add(event)

    def add(self, rank: int, message: Began | Exited, observer: Observer) -> None:
        """Take what an agent says of a process."""
        at = wall_time(message.when + self._ahead.get(rank, 0))
        if isinstance(message, Began):
            node_process = NodeProcess(message.kind, rank, message.number, message.shard, message.process)
            self.processes[message.kind, message.number] = node_process
            if message.kind is ProcessKind.WORKER:
                observer.process_started(rank, message.process)
            kind, pid, shard = EventKind.STARTED, message.process.pid, message.shard
        else:
            self.processes.pop((message.kind, message.number), None)
            kind, pid, shard = EventKind.ENDED, message.pid, -1
        self.note(Event(kind, at, message.kind, rank, message.number, pid, shard))

    def node_joined(self, rank: int, node: Node) -> None:
        """Take note of a node that has come while the run goes on."""
        self._ahead[rank] = node.ahead
        self.processes[ProcessKind.AGENT, rank] = NodeProcess(ProcessKind.AGENT, rank, rank, -1, _agent(node))

    def numbers(self, kind: ProcessKind) -> set[int]:
        """Return the numbers of the processes of a kind that run."""
        return {number for each, number in self.processes if each is kind}

    def node_lost(self, rank: int, why: str) -> None:
        """Take note that the agent of a node cannot be reached any longer."""
        for key in [key for key, process in self.processes.items() if process.rank == rank]:
            del self.processes[key]
        self.note(Event(EventKind.LOST, time.time(), ProcessKind.AGENT, rank, rank, why=why))


def _agent(node: Node) -> ProcessRecord:
    """Identify the agent of another node; when it was started is known of processes of this machine alone."""
    pid = node.register.process
    return ProcessRecord.of(pid) if node.register.boot == boot() else ProcessRecord(pid, 0.0)
