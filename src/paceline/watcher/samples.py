"""What is observed of a process tree: cheap glances every second, and rare looks at what each thread waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

#: Threads of other kinds of waits could be woken by something that the watcher cannot see.
CLOSED = frozenset({"lock", "shared lock", "file lock", "pipe", "socket", "child"})


class Pace(NamedTuple):
    """What the scheduler has counted for one thread since it was started (/proc/PID/task/TID/schedstat)."""

    ran: int  # nanoseconds on a processor
    queued: int  # nanoseconds runnable without a processor
    runs: int  # how many times it was given a processor; unchanged: the thread has not executed an instruction


class Work(NamedTuple):
    """What one process has done since it was started, in pages and bytes."""

    faults: int
    read: int
    written: int


@dataclass(frozen=True)
class Glance:
    """One reading of all counters of the tree: taken every second, so it must cost little."""

    at: float  # seconds of a monotonic clock
    threads: Mapping[int, Mapping[int, Pace]]  # by process, by thread
    work: Mapping[int, Work]  # by process


class Wait(NamedTuple):
    """What a thread waits for."""

    kind: str  # "running", "clock", "outside", "disk", "stopped", "unknown" or one of CLOSED
    by: tuple[int, ...] = ()  # CLOSED: every process of which some thread could end this wait
    on: str = ""  # in words: "pipe 4711", "child 4712"


class Thread(NamedTuple):
    """One thread at the moment of a look."""

    tid: int
    wait: Wait


class Frame(NamedTuple):
    """One line of a Python stack."""

    file: str
    line: int
    function: str


#: The frames of one thread, the innermost first; the first stack of a process is that of its main thread.
Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Process:
    """One process at the moment of a look."""

    pid: int
    parent: int
    command: str
    threads: tuple[Thread, ...]
    handles_signals: bool = False  # a signal from outside may run code of the program and end the main thread's wait
    rank: int | None = None  # as a launcher has said in the process's environment
    world_size: int = 0  # ranks of the job, on all machines
    stacks: tuple[Stack, ...] = ()  # empty where they cannot be had
    name: str = ""  # that a run of Paceline gives it

    @property
    def main(self) -> Wait:
        """What the main thread waits for; "unknown" if it has ended."""
        return next((thread.wait for thread in self.threads if thread.tid == self.pid), Wait("unknown"))

    @property
    def label(self) -> str:
        """How people are told of this process."""
        name = self.name or (f"rank {self.rank}" if self.rank is not None else "")
        return f"{name}{name and ', '}pid {self.pid} ({self.command})"


@dataclass(frozen=True)
class Look:
    """What every thread of the tree waits for, at one moment."""

    at: float  # seconds of the monotonic clock of the glances
    processes: tuple[Process, ...]
    time: float = 0.0  # seconds since 1970

    def process(self, pid: int) -> Process | None:
        """Return one process of the tree."""
        return next((each for each in self.processes if each.pid == pid), None)

    def with_stacks(self, stacks: Mapping[int, tuple[Stack, ...]]) -> Look:
        """Return the same look with the Python stacks of some processes."""
        return replace(self, processes=tuple(replace(p, stacks=stacks.get(p.pid, ())) for p in self.processes))

    def with_names(self, names: Mapping[int, str]) -> Look:
        """Return the same look with names of some processes."""
        return replace(self, processes=tuple(replace(p, name=names.get(p.pid, "")) for p in self.processes))

    def threads(self) -> Iterator[tuple[Process, Thread]]:
        """Iterate over the threads of all processes."""
        return ((process, thread) for process in self.processes for thread in process.threads)


def to_json(sample: Glance | Look) -> dict[str, Any]:
    """Return a sample as plain lists and dictionaries."""
    return asdict(sample)


def glance_from(data: dict[str, Any]) -> Glance:
    """Read a glance that was written as JSON, which turns keys into text."""
    threads = {int(pid): {int(tid): Pace(*pace) for tid, pace in of.items()} for pid, of in data["threads"].items()}
    return Glance(data["at"], threads, {int(pid): Work(*work) for pid, work in data["work"].items()})


def look_from(data: dict[str, Any]) -> Look:
    """Read a look that was written as JSON."""
    return Look(data["at"], tuple(_process_from(each) for each in data["processes"]), data.get("time", 0.0))


def _process_from(data: dict[str, Any]) -> Process:
    threads = tuple(Thread(tid, Wait(kind, tuple(by), on)) for tid, (kind, by, on) in data["threads"])
    stacks = tuple(tuple(Frame(*frame) for frame in stack) for stack in data["stacks"])
    return Process(**{**data, "threads": threads, "stacks": stacks})
