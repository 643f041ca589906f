"""live.json, what the processes of a run are at, and events.jsonl, what has happened to them, for other programs.

The parent replaces the file atomically when the phase of the run changes, and every two seconds while workers train. It
removes the file at the end of the run, however it ends, when run.json has the outcome. A run that was killed leaves its
last state: the parent's process is not alive then. Where the folder is shared, a reader on another machine sees no
process, and goes by the age of the heartbeat.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.errors import RunFolderError
from paceline.runtime.runs.schema import SCHEMA_VERSION, StrEnum, from_dict, read_as, to_dict, write_json

#: Seconds between two heartbeats while workers train, at least.
INTERVAL = 2.0
#: Seconds without a heartbeat after which a run of another machine has ended: an evaluation writes none, clocks differ.
ABSENT = 600.0
FILE = "live.json"
#: What `paceline watch` found, in a run's folder.
HANG = "hang.txt"


class Phase(StrEnum):
    """What the run is at."""

    STARTING = "starting"  # workers are started, import the job and make the model
    TRAINING = "training"
    EVALUATING = "evaluating"  # no worker is left; the parent evaluates and writes the result


class WorkerStatus(StrEnum):
    """What a worker is doing."""

    STARTING = "starting"
    TRAINING = "training"
    WAITING = "waiting"  # asleep until another worker or the parent rings
    FINISHED = "finished"
    DEAD = "dead"


@dataclass(frozen=True)
class ProcessRecord:
    """One process: the pid alone may belong to another process by now, the pair cannot."""

    pid: int
    started: float  # seconds since 1970, as the kernel counts them (psutil's create_time)

    @staticmethod
    def of(pid: int) -> ProcessRecord:
        """Identify a process of this machine."""
        return ProcessRecord(pid, _started(pid) or 0.0)

    @property
    def alive(self) -> bool:
        """Whether this very process still runs on this machine."""
        started = _started(self.pid)
        # The kernel computes the time of boot from the clock, so it moves a little when the clock is adjusted.
        return started is not None and abs(started - self.started) < 2.0


@dataclass(frozen=True)
class WorkerLive:
    """One worker at the moment of the heartbeat."""

    number: int
    process: ProcessRecord
    status: WorkerStatus
    update: int  # (synchronous) or batch (asynchronous) that it computes; -1: before the first


@dataclass(frozen=True)
class NodeProcess:
    """One process of a run on a cluster."""

    kind: ProcessKind
    rank: int  # its node
    number: int  # no two processes of a kind have the same in one run
    shard: int  # that a server held when it was started; -1 for a spare, and for other processes
    process: ProcessRecord  # on its node


@dataclass(frozen=True)
class LiveRecord:
    """The state of a run that goes on."""

    phase: Phase
    heartbeat: float  # seconds since 1970 when this was written
    process: ProcessRecord  # the parent, which writes this
    updates: int
    total_updates: int
    workers: tuple[WorkerLive, ...] = ()  # empty where no processes of their own train, as under the virtual engine
    processes: tuple[NodeProcess, ...] = ()  # of all nodes, on a cluster
    machine: str = ""  # where the parent runs
    schema_version: int = SCHEMA_VERSION

    @property
    def active(self) -> bool:
        """Whether the run goes on: its parent lives on this machine, or has written lately on another."""
        if self.machine in ("", _machine()):
            return self.process.alive
        return time.time() - self.heartbeat < ABSENT


class Heartbeat:
    """Writes live.json for as long as the block lasts, seldom enough to cost nothing."""

    def __init__(self, run: Path | None, total_updates: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = run / FILE if run else None
        self._total, self._clock = total_updates, clock
        self._process, self._machine = ProcessRecord.of(os.getpid()), _machine()
        self._phase: Phase | None = None  # as it was written last, `_beaten` by this clock
        self._beaten = 0.0
        #: The processes of all nodes that run, on a cluster; kept up to date by the engine.
        self.processes: Collection[NodeProcess] = ()

    def __enter__(self) -> Heartbeat:
        self.beat(Phase.STARTING, 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def beat(
        self, phase: Phase, updates: int, workers: Callable[[], Sequence[WorkerLive]] = tuple, now: bool = False
    ) -> None:
        """Write the state if the phase is another one, if the last heartbeat is `INTERVAL` seconds old, or `now`."""
        at = self._clock()
        if self._file is None or not (now or phase != self._phase or at >= self._beaten + INTERVAL):
            return
        self._phase, self._beaten = phase, at
        record = LiveRecord(
            phase,
            time.time(),
            self._process,
            updates,
            self._total,
            tuple(workers()),
            tuple(self.processes),
            machine=self._machine,
        )
        with suppress(OSError):  # a full disk is no reason to stop a training
            write_json(self._file, to_dict(record))


def read_live(run: Path) -> LiveRecord | None:
    """Read the newest state of a run; None if the run has ended, or does not write one."""
    try:
        return read_as(LiveRecord, run / FILE)
    except FileNotFoundError:
        return None


def read_hang(run: Path) -> str:
    """Read what `paceline watch` found; empty if it found nothing."""
    file = run / HANG
    if not file.is_file() or file.is_symlink():  # a link may lead to any file of the reader
        return ""
    return file.read_text(errors="replace").strip()


def _machine() -> str:
    """Return what names this start of this machine, or container: processes with the same answer see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _started(pid: int) -> float | None:
    """When a process was started; None if there is no such process, or only a zombie of one."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = next(
            line for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines() if line.startswith("btime ")
        )
    except (OSError, ValueError, StopIteration):
        return None
    if state == "Z":
        return None
    # Field 22 of stat; `rest` begins with field 4.
    return int(boot.split()[1]) + int(rest[18]) / os.sysconf("SC_CLK_TCK")


# events.jsonl: what happened to the processes of a run, one line per event, in the order they were noted.
#
# How long a death went unnoticed, and when a shard had its backup again, follows from the times here. The
# trace has no place for them: an event is of a process or of a shard, and may come before the first update.

EVENTS_FILE = "events.jsonl"


class EventKind(StrEnum):
    """What an event is about."""

    STARTED = "started"  # an agent has started a process
    ENDED = "ended"  # an agent has noticed the end of a process that it had started
    LOST = "lost"  # the desk or the head lost a process: its connection has ended, or it is silent
    VIEW = "view"  # the desk wants these servers to hold a shard, the primary first
    SERVING = "serving"  # they all do
    LEASING = "leasing"  # the desk leases batches; its number is its epoch
    AGAIN = "again"  # batches are computed again, since their pushes were lost with the servers that had them
    SHARD_LOST = "shard lost"  # no server holds the shard any longer
    HUNG = "hung"  # `paceline watch` has found that the process hangs
    GROUP = "group"  # ranks begin a group; its number is its epoch


class ProcessKind(StrEnum):
    """What a process of a run on a cluster does."""

    AGENT = "agent"
    WORKER = "worker"
    HELPER = "helper"  # of a worker: it computes chunks of the same batches
    SERVER = "server"
    DESK = "desk"


@dataclass(frozen=True)
class RunEvent:
    """One event. -1 stands for a number that does not apply to its kind."""

    kind: EventKind
    #: When it was noted, in seconds since 1970 of the head's clock.
    at: float
    #: The process that it is about.
    process: ProcessKind | None = None
    #: The node of the process.
    rank: int = -1
    #: The number of the process: no two of a kind have the same in one run.
    number: int = -1
    #: The process's pid on its node.
    pid: int = -1
    shard: int = -1
    #: The number of the view.
    view: int = -1
    #: The servers of the view, the primary first; or the ranks of a group.
    members: tuple[int, ...] = ()
    #: Whether acknowledged pushes may be missing in the view, so that they are computed again.
    lossy: bool = False
    #: Why, as the end of a sentence.
    why: str = ""


class EventLog:
    """Writes the events of a run into its folder, after those before it was resumed; without one it only keeps them."""

    def __init__(self, run: Path | None) -> None:
        self.events: list[RunEvent] = []
        #: Called with every event that is added.
        self.copy: Callable[[RunEvent], None] = lambda event: None
        self._file: IO[str] | None = (run / EVENTS_FILE).open("a", buffering=1) if run else None

    def add(self, event: RunEvent) -> None:
        """Append an event."""
        self.events.append(event)
        self.copy(event)
        if self._file is not None:
            self._file.write(json.dumps(to_dict(event)) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_events(run: Path) -> list[RunEvent]:
    """Read the events of a run, up to the last whole line; none where the run was not on a cluster."""
    try:
        lines = (run / EVENTS_FILE).read_text(encoding="utf-8").split("\n")[:-1]
        return [from_dict(RunEvent, json.loads(line)) for line in lines]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise RunFolderError(f"{run / EVENTS_FILE} is damaged: {error}") from None


def wall_time(nanoseconds: int) -> float:
    """Return the time of this process's monotonic clock as seconds since 1970."""
    return time.time() - (time.perf_counter_ns() - nanoseconds) / 1e9
