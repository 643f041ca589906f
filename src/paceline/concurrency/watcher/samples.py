"""What is observed of a process tree: cheap readings every second, and rare snapshots of what each thread waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

#: Threads of other kinds of waits could be woken by something that the watcher cannot see.
CLOSED = frozenset(
    {"lock", "gil", "monitor", "shared lock", "file lock", "pipe", "named pipe", "socket", "child", "task"}
)
#: These are asked for with a timeout of at most a second, and again at once: a thread that runs so does nothing else.
ASKED_AT_ONCE = frozenset({"gil", "monitor"})

#: Stands for a thread that has ended among the owners of a lock.
ENDED = 0

#: What a thread waits for that tries again and again to lock a file.
OPEN_FILE_LOCK = "a lock on a file that it has open"

#: What a thread waits for that has asked a pool of multiprocessing for results, and the thread that delivers them.
A_RESULT = "a result of a pool"
OF_A_WORKER = "a result of a worker of its pool"

#: What a thread waits for that has joined another one.
AN_END = "the end of a thread"

#: What a thread waits for at a futex of which nothing more is known.
A_LOCK = "a lock or condition variable of C code"

#: What a thread waits for that reads an event of the kernel.
EVENT = "an event of its own program"

#: What the main thread of a Java program waits for, which what a signal starts may end too.
MAIN_OF_JAVA = "a lock or notification (Java's main thread)"

#: Follows what a thread waits for that asks for it with a timeout, in a loop.
AGAIN = ", with a timeout, again and again"

#: Processes of other machines have numbers from this one on, so that no two have the same.
ELSEWHERE = 10**9


class Pace(NamedTuple):
    """What the scheduler has counted for one thread since it was started (/proc/PID/task/TID/schedstat)."""

    ran: int  # nanoseconds on a processor
    queued: int  # nanoseconds runnable without a processor
    runs: int  # how many times it was given a processor; unchanged: the thread has not executed an instruction


class ProcessWork(NamedTuple):
    """What one process has done since it was started, in pages and bytes."""

    faults: int
    read: int
    written: int


@dataclass(frozen=True)
class Counters:
    """One reading of all counters of the tree: taken every second, so it must cost little."""

    at: float  # seconds of a monotonic clock
    threads: Mapping[int, Mapping[int, Pace]]  # by process, by thread
    work: Mapping[int, ProcessWork]  # by process


class ThreadWait(NamedTuple):
    """What a thread waits for."""

    kind: str  # "running", "clock", "outside", "disk", "stopped", "unknown" or one of CLOSED
    by: tuple[int, ...] = ()  # CLOSED: every process of which some thread could end this wait
    on: str = ""  # in words: "pipe 4711", "child 4712"
    owners: tuple[int, ...] = ()  # the threads that alone can end it, where that is known: they hold the lock
    timed: bool = False  # it also ends on its own, as a lock does that is asked for with a timeout
    polls: str = ""  # of a clock: "asks" in a loop, for what one of `by` could give; "idles" in a loop without an end
    rings: bool = False  # what makes it `timed` is a signal of a clock, not a timeout of its own
    kept: bool = False  # it is for the end of a pipe that a descendant of an ended child keeps open


class Thread(NamedTuple):
    """One thread at the moment of a snapshot, or one task of an event loop."""

    tid: int
    wait: ThreadWait
    task: str = ""  # the name of a task; what is said of threads holds for it, but that the kernel does not know it


class Frame(NamedTuple):
    """One line of a Python stack."""

    file: str
    line: int
    function: str

    @property
    def standard(self) -> bool:
        """Whether it lies in Python's own library."""
        return ("/lib/python3" in self.file and "-packages/" not in self.file) or self.file.startswith("<frozen ")


#: The frames of one thread, the innermost first; the first stack of a process is that of its main thread.
Stack = tuple[Frame, ...]


def users_line(stack: Stack) -> Frame | None:
    """Return the innermost line that lies outside Python's own library; the innermost of all if there is none."""
    frames = [frame for frame in stack if "/lib/python3" not in frame.file and not frame.file.startswith("<")]
    return next(iter(frames or stack), None)


class Subject(NamedTuple):
    """What a thread that hangs waits for, as its own variables name it."""

    tid: int
    name: str = ""  # that `threading` has for the thread; "" of the main thread
    kind: str = ""  # of what would end the wait: "lock", "event", "get", ...; "" where no object is known
    what: str = ""  # the object and its state
    holder: str = ""  # what holds it, other than a thread of its program that runs
    text: str = ""  # the source line
    call: str = ""  # the source line that has called the collective that a rank is in
    handler: str = ""  # the handler of a signal that the thread runs
    owner: int = 0  # the thread that holds the object, which the object itself names


class Facts(NamedTuple):
    """What the watcher of another machine has seen of a rank."""

    still: bool
    same_stack: bool
    cores: float
    seconds: float  # since it is still


@dataclass(frozen=True)
class Process:
    """One process at the moment of a snapshot."""

    pid: int
    parent: int
    command: str
    threads: tuple[Thread, ...]
    handles_signals: bool = False  # a signal from outside may run code of the program and end the main thread's wait
    rank: int | None = None  # as a launcher has said in the process's environment
    world_size: int = 0  # ranks of the job, on all machines
    stacks: tuple[Stack, ...] = ()  # empty where they cannot be had
    tids: tuple[int, ...] = ()  # the threads of the stacks, where that is known
    name: str = ""  # that a run of Paceline gives it
    text: str = ""  # the source line that the main thread of a rank is at
    began: int = 0  # when the wait of Paceline's own began that its main thread is in, by its clock; 0 if in none
    host: str = ""  # another machine on which it runs
    facts: Facts | None = None  # of a process there
    outside: bool = False  # not of the watched tree, but something in it waits for this process
    subjects: tuple[Subject, ...] = ()  # of the threads of a process that hangs

    @property
    def main(self) -> ThreadWait:
        """What the main thread waits for; "unknown" if it has ended."""
        return next((thread.wait for thread in self.threads if thread.tid == self.pid), ThreadWait("unknown"))

    def stack_of(self, tid: int) -> Stack:
        """Return the stack of a thread; empty where it is not known."""
        if self.tids:
            return next((stack for at, stack in zip(self.tids, self.stacks, strict=True) if at == tid), ())
        return self.stacks[0] if self.stacks and tid == self.pid else ()

    @property
    def short(self) -> str:
        """The name of this process within a sentence."""
        return self.name or (f"rank {self.rank}" if self.rank is not None else f"pid {self.pid % ELSEWHERE}")

    def subject_of(self, tid: int) -> Subject:
        """Return what is known of the object that a thread waits for."""
        return next((each for each in self.subjects if each.tid == tid), Subject(tid))

    @property
    def label(self) -> str:
        """The name of this process in reports."""
        name = self.name or (f"rank {self.rank}" if self.rank is not None else "")
        where = f" on {self.host}" if self.host else ""
        return f"{name}{name and ', '}pid {self.pid % ELSEWHERE}{where} ({self.command})"


@dataclass(frozen=True)
class Snapshot:
    """What every thread of the tree waits for, at one moment."""

    at: float  # seconds of the monotonic clock of the readings
    processes: tuple[Process, ...]
    time: float = 0.0  # seconds since 1970

    def process(self, pid: int) -> Process | None:
        """Return one process of the tree."""
        return next((each for each in self.processes if each.pid == pid), None)

    def stacks_of(self, pid: int) -> tuple[Stack, ...]:
        """Return the stacks of one process."""
        process = self.process(pid)
        return process.stacks if process else ()

    def with_stacks(self, stacks: Mapping[int, tuple[Stack, ...]]) -> Snapshot:
        """Return the same snapshot with the Python stacks of further processes."""
        return replace(self, processes=tuple(replace(p, stacks=stacks.get(p.pid, p.stacks)) for p in self.processes))

    def with_names(self, names: Mapping[int, str]) -> Snapshot:
        """Return the same snapshot with names of some processes."""
        return replace(self, processes=tuple(replace(p, name=names.get(p.pid, "")) for p in self.processes))

    def threads(self) -> Iterator[tuple[Process, Thread]]:
        """Iterate over the threads of all processes."""
        return ((process, thread) for process in self.processes for thread in process.threads)


def to_json(sample: Counters | Snapshot) -> dict[str, Any]:
    """Return a sample as plain lists and dictionaries."""
    return asdict(sample)


def counters_from(data: dict[str, Any]) -> Counters:
    """Read a reading that was written as JSON, which turns keys into text."""
    threads = {int(pid): {int(tid): Pace(*pace) for tid, pace in of.items()} for pid, of in data["threads"].items()}
    return Counters(data["at"], threads, {int(pid): ProcessWork(*work) for pid, work in data["work"].items()})


def snapshot_from(data: dict[str, Any]) -> Snapshot:
    """Read a snapshot that was written as JSON."""
    return Snapshot(data["at"], tuple(process_from(each) for each in data["processes"]), data.get("time", 0.0))


def process_from(data: dict[str, Any]) -> Process:
    """Read a process that was written as JSON."""
    threads = tuple(Thread(tid, _wait_from(*wait), *task) for tid, wait, *task in data["threads"])
    stacks = tuple(tuple(Frame(*frame) for frame in stack) for stack in data["stacks"])
    facts = Facts(*data["facts"]) if data.get("facts") else None
    subjects = tuple(Subject(*each) for each in data.get("subjects", ()))
    fields = {"threads": threads, "stacks": stacks, "tids": tuple(data.get("tids", ())), "facts": facts}
    return Process(**{**data, **fields, "subjects": subjects})


def _wait_from(kind: str, by: list[int], on: str, owners: list[int] | tuple[()] = (), *more: Any) -> ThreadWait:
    return ThreadWait(kind, tuple(by), on, tuple(owners), *more)
