"""What a thread waits for, and which processes could end that wait: the system call it is in, and its descriptors.

Whatever is not understood counts as a wait that something outside can end, so that ignorance never accuses.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.watcher.processes.holders import Holders, file_of
from paceline.concurrency.watcher.processes.interpreter import Interpreter, read_interpreter
from paceline.concurrency.watcher.processes.java import JavaThreads, read_java
from paceline.concurrency.watcher.processes.memory import peek
from paceline.concurrency.watcher.samples import (
    A_LOCK,
    A_RESULT,
    AN_END,
    ASKED_AT_ONCE,
    CLOSED,
    ENDED,
    EVENT,
    MAIN_OF_JAVA,
    ThreadWait,
)

# Who holds a mutex of glibc, which C and C++ use: the mutex itself says so.

_CONTENDED = 2
_PROCESS_SHARED, _KINDS = 128, (0, 1, 2, 3)  # normal, recursive, error-checking, adaptive


def owner_of_mutex(pid: int, address: int) -> tuple[int, ...]:
    """Return the thread that holds the mutex at an address, or `ENDED`; none if no mutex lies there.

    A semaphore or a condition variable may lie there as well, so every field must be as it is in a locked mutex.
    """
    data = peek(pid, address, 20)
    if len(data) < 20:
        return ()
    lock, count, owner, users, kind = struct.unpack("=iIiIi", data)
    plain = kind & ~_PROCESS_SHARED in _KINDS and count <= 10_000 and 1 <= users <= 10_000
    if lock != _CONTENDED or not plain or owner < 2:
        return ()
    if kind & _PROCESS_SHARED:
        return (owner if os.path.exists(f"/proc/{owner}") else ENDED,)
    return (owner,) if os.path.exists(f"/proc/{pid}/task/{owner}") else ()


#: How Python's `mkdtemp` and the shell's `mktemp -d` name a folder that only their program knows.
_RANDOM = re.compile(r"tmp[a-z0-9_]{8}|tmp\.[A-Za-z0-9]{10}")
_POLLIN, _POLLOUT = 1, 4
#: Seconds: one that sleeps for longer is not meant to wake.
LONGEST_SLEEP = 30 * 24 * 3600
#: What a thread waits for that sleeps for ever.
NO_END = "a signal"
_STATES = {"R": "running", "T": "stopped"}
_CALLS = {
    "nanosleep": "clock",
    "clock_nanosleep": "clock",
    "restart_syscall": "clock",
    "pause": "outside",
    "rt_sigsuspend": "outside",
    "connect": "outside",
    "fsync": "disk",
    "fdatasync": "disk",
}


class Waits:
    """The state of the machine at one moment, on behalf of a process tree."""

    def __init__(self, tree: tuple[int, ...]) -> None:
        self.tree = tree
        self.holders = Holders(tree)
        self._interpreters: dict[int, Interpreter | None] = {}
        self._java: dict[int, JavaThreads | None] = {}

    def interpreter(self, pid: int) -> Interpreter | None:
        """Return the state of Python in a process, read once."""
        if pid not in self._interpreters:
            self._interpreters[pid] = read_interpreter(pid)
        return self._interpreters[pid]

    def java(self, pid: int) -> JavaThreads | None:
        """Return the threads of a Java virtual machine, read once; None if a process is none."""
        if pid not in self._java:
            self._java[pid] = read_java(pid)
        return self._java[pid]

    def of(self, pid: int, tid: int, state: str) -> ThreadWait:
        """Return what a thread in a scheduler state (R, S, D, T, ...) waits for."""
        if state in _STATES:
            return ThreadWait(_STATES[state])
        call = call_of(pid, tid)
        if call is None:
            return ThreadWait("unknown", on="its system call cannot be read")
        if call.name in _CALLS:
            return ThreadWait(_CALLS[call.name], on=NO_END if _sleeps_for_ever(pid, call) else call.name)
        if state == "D":
            return ThreadWait("disk", on=call.name)
        if call.ends_by_itself:
            wait = self._futex(pid, tid, call) if call.name == "futex" else None
            if wait is not None and wait.owners:
                return wait._replace(timed=wait.kind not in ASKED_AT_ONCE)
            return ThreadWait("clock", on=f"{call.name} with a timeout")
        return self.without_timeout(pid, tid, call)

    def without_timeout(self, pid: int, tid: int, call: SystemCall) -> ThreadWait:
        """Return what a thread would wait for in its system call if that had no timeout."""
        first = call.arguments[0]
        if call.name in READS or call.name in ACCEPTS:
            return self._descriptor(pid, first, reads=True)
        if call.name in WRITES:
            return self._descriptor(pid, first, reads=False)
        if call.name == "futex":
            return self._futex(pid, tid, call)
        if call.name in ("wait4", "waitid"):
            return self._child(pid, call)
        if call.name in OPENS:
            return self._opening(pid, call)
        if call.name == "flock" or (call.name == "fcntl" and call.arguments[1] in (F_SETLKW, F_OFD_SETLKW)):
            return self._file_lock(pid, tid, first)
        polled = _polled(pid, call)
        return self._any(self._descriptor(pid, fd, reads) for fd, reads in polled) if polled else ThreadWait("unknown")

    def _futex(self, pid: int, tid: int, call: SystemCall) -> ThreadWait:
        address = call.arguments[0]
        interpreter = self.interpreter(pid)
        java = self.java(pid)
        if call.is_private and java is not None:
            return _of_java(pid, tid, java)
        if call.is_private:
            if interpreter is not None and interpreter.gil[0] <= address < interpreter.gil[1]:
                return ThreadWait("gil", (pid,), "Python's interpreter lock", interpreter.owners(address))
            if interpreter is not None and (joined := interpreter.ending(tid, address)):
                return ThreadWait("lock", (pid,), AN_END, joined)
            if interpreter is not None and (delivering := interpreter.delivering(tid)):
                return ThreadWait("lock", (pid,), A_RESULT, delivering)
            owners = (interpreter.owners(address) if interpreter else ()) or owner_of_mutex(pid, address)
            return ThreadWait("lock", (pid,), A_LOCK, owners)
        holders = self.holders.of_memory(pid, address)
        if not holders:  # glibc waits for the end of a thread in this way: for its number to become 0
            ending = call.arguments[2] & 0xFFFFFFFF
            owners = (ending,) if os.path.exists(f"/proc/{pid}/task/{ending}") else ()
            return ThreadWait("lock", (pid,), AN_END, owners)
        owners = owner_of_mutex(pid, address) or self._owners_of_semaphore(pid, address, holders)
        return ThreadWait("shared lock", holders, "a lock in shared memory", owners)

    def _owners_of_semaphore(self, pid: int, address: int, holders: tuple[int, ...]) -> tuple[int, ...]:
        """Return the threads in whose `with` block a lock of multiprocessing is."""
        place = self.holders.place(pid, address)
        read = [(each, interpreter) for each in holders if (interpreter := self.interpreter(each)) is not None]
        return tuple(
            thread.tid
            for each, process in read
            for thread in process.threads
            if any(self.holders.place(each, lock) == place for lock in thread.holds)
        )

    def _child(self, pid: int, call: SystemCall) -> ThreadWait:
        child = call.arguments[0 if call.name == "wait4" else 1] & 0xFFFFFFFF
        one = child < 0x80000000 and (call.name == "wait4" or call.arguments[0] == 1) and child > 0
        # Any child: -1 and 0 of wait4, and all kinds of waitid but P_PID, which is 1.
        children = (child,) if one else children_of(pid)
        return (
            ThreadWait("child", children, "child " + ", ".join(map(str, children)))
            if children
            else ThreadWait("unknown")
        )

    def _opening(self, pid: int, call: SystemCall) -> ThreadWait:
        """Return the wait for the other end of a named pipe, if processes of the tree wait for each other's ends.

        Any process of the machine may open an end. One that waits alone, or several that all wait for a process that
        writes, serve the outside. But what lies in a folder that the tree made for itself is known to it alone.
        """
        name = _named_pipe(pid, call)
        if name and self._is_private(os.path.dirname(name)):
            return ThreadWait("named pipe", self.tree, f"the other end of the named pipe {name}")
        if not name or len(self._openers) < 2 or not any(self._openers.values()):
            return (
                ThreadWait("outside", on=f"the other end of the named pipe {name}") if name else ThreadWait("unknown")
            )
        return ThreadWait("pipe", tuple(self._openers), f"the other end of the named pipe {name}")

    def _is_private(self, folder: str) -> bool:
        """Whether a folder has a random name that the tree was not told when it was started."""
        name = os.path.basename(folder)
        if not _RANDOM.fullmatch(name):
            return False
        roots = [pid for pid in self.tree if parent_of(pid) not in self.tree]
        return not any(name in text for pid in roots for text in _launch_arguments(pid))

    @cached_property
    def _openers(self) -> dict[int, bool]:
        """The processes of the tree of which a thread waits to open a named pipe, and whether one does to write."""
        openers: dict[int, bool] = {}
        for pid, call in ((each, call_of(each, tid)) for each in self.tree for tid in threads_of(each)):
            if call is not None and call.name in OPENS and _named_pipe(pid, call):
                writes = call.arguments[OPENS[call.name][1]] & os.O_ACCMODE != os.O_RDONLY
                openers[pid] = openers.get(pid, False) or writes
        return openers

    def _file_lock(self, pid: int, tid: int, fd: int) -> ThreadWait:
        holders = self.holders.locks.get(pid) or self.holders.locks.get(tid)
        if not holders or any(holder < 1 for holder, _ in holders):  # an open-file-description lock has no process
            return ThreadWait("unknown", on="a lock on a file")
        file = os.readlink(f"/proc/{pid}/fd/{fd}")
        return ThreadWait("file lock", tuple(holder for holder, _ in holders), f"a lock on the file {file}")

    def _descriptor(self, pid: int, fd: int, reads: bool) -> ThreadWait:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            return ThreadWait("unknown")
        kind, _, inode = target.rstrip("]").partition(":[")
        if kind == "pipe":
            holders = self.holders.of_pipe(target, to_write=reads)
            return ThreadWait("pipe", holders, f"{'data in' if reads else 'room in'} pipe {inode}")
        if kind == "socket":
            private = int(inode) in self.holders.private_listeners
            holders = self.tree if private else self.holders.of_peer(int(inode))
            return (
                ThreadWait("socket", holders, f"socket {inode}")
                if holders
                else ThreadWait("outside", on=f"socket {inode}")
            )
        if target.startswith("/dev/pt"):
            holders = self.holders.of_terminal(pid, fd, target)
            return ThreadWait("pipe", holders, target) if holders else ThreadWait("outside", on=target)
        if target == "anon_inode:[eventpoll]":
            return self._any(self._descriptor(pid, each, True) for each in _registered(pid, fd))
        if target == "anon_inode:[eventfd]":
            return ThreadWait("lock", self.holders.of_event(pid, fd), EVENT)
        if target == "anon_inode:[pidfd]":
            child = re.search(r"^Pid:\s+(\d+)", _fdinfo(pid, fd), re.M)
            return ThreadWait("child", (int(child[1]),), f"process {child[1]}") if child else ThreadWait("unknown")
        return ThreadWait("clock") if target == "anon_inode:[timerfd]" else ThreadWait("outside", on=target)

    def _any(self, waits: Iterable[ThreadWait]) -> ThreadWait:
        """Return the wait for whichever of several comes first."""
        distinct = list(dict.fromkeys(waits))
        # One that the outside can end is enough to end the whole wait.
        opened = next((wait for wait in distinct if wait.kind not in CLOSED), None)
        if opened is not None or not distinct:
            return opened or ThreadWait("unknown")
        by = tuple(sorted({pid for wait in distinct for pid in wait.by}))
        kind = next((wait.kind for wait in distinct if wait.kind != "lock"), "lock")
        return ThreadWait(kind, by, " or ".join(dict.fromkeys(wait.on for wait in distinct[:3])))


def _of_java(pid: int, tid: int, java: JavaThreads) -> ThreadWait:
    if tid in java.inside:
        return ThreadWait("monitor", (pid,), "a monitor of Java", (java.inside[tid],))
    if tid in java.joined:
        return ThreadWait("lock", (pid,), AN_END, (java.joined[tid],))
    return ThreadWait("lock", (pid,), MAIN_OF_JAVA if tid == java.main else A_LOCK)


def _sleeps_for_ever(pid: int, call: SystemCall) -> bool:
    """Whether a thread sleeps for longer than a program is meant to run, or until a signal comes."""
    if call.name not in SLEPT:
        return call.name in ("pause", "rt_sigsuspend")
    at, flags = SLEPT[call.name]
    data = peek(pid, call.arguments[at], 8)
    moment = flags is not None and call.arguments[flags] & 1
    now = time.clock_gettime(call.arguments[0]) if moment else 0
    return len(data) == 8 and struct.unpack("=q", data)[0] - now > LONGEST_SLEEP


def call_of(pid: int, tid: int) -> SystemCall | None:
    """Return the system call that a thread is in; None if it is in none, or that may not be read."""
    try:
        return parse_call(Path(f"/proc/{pid}/task/{tid}/syscall").read_text(encoding="utf-8"))
    except OSError:
        return None


def _named_pipe(pid: int, call: SystemCall) -> str:
    """Return the path of the named pipe that a process opens; empty if it opens anything else."""
    at = call.arguments[OPENS[call.name][0]]
    path = peek(pid, at, min(4096 - at % 4096, 1024)).partition(b"\0")[0].decode(errors="replace")
    with suppress(OSError):
        if stat.S_ISFIFO(os.stat(file_of(pid, path)).st_mode):
            return path
    return ""


def parent_of(pid: int) -> int:
    """Return the parent of a process, 0 if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return 0


def _launch_arguments(pid: int) -> Iterator[str]:
    """Iterate over what a process was told by the one that started it: its command and its environment."""
    for file in ("cmdline", "environ"):
        with suppress(OSError):
            yield Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8", errors="replace")


def state_of(pid: int, tid: int) -> str:
    """Return the scheduler's state of a thread, "" if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{tid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return ""


def threads_of(pid: int) -> list[int]:
    """Return the threads of a process."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def children_of(pid: int) -> tuple[int, ...]:
    """Return the children of a process, also those that have ended."""
    children: set[int] = set()
    for tid in threads_of(pid):
        with suppress(OSError):
            children |= set(map(int, Path(f"/proc/{pid}/task/{tid}/children").read_text(encoding="utf-8").split()))
    return tuple(sorted(children))


def _fdinfo(pid: int, fd: int) -> str:
    try:
        return Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="utf-8")
    except OSError:
        return ""


def _registered(pid: int, fd: int) -> list[int]:
    """Return the descriptors that an epoll descriptor waits for."""
    return [int(each) for each in re.findall(r"^tfd:\s+(\d+)", _fdinfo(pid, fd), re.M)]


def _polled(pid: int, call: SystemCall) -> list[tuple[int, bool]]:
    """Return the descriptors that a call waits for any of, and whether to read from them; empty if unknown."""
    if call.name.startswith("epoll"):
        return [(call.arguments[0], True)]
    if call.name in ("poll", "ppoll"):
        data = peek(pid, call.arguments[0], 8 * min(call.arguments[1], 4096))
        entries = [struct.unpack_from("=iH", data, at) for at in range(0, len(data), 8)]
        # The kernel ignores negative descriptors, by which programs leave an entry out.
        return [(fd, bool(events & _POLLIN)) for fd, events in entries if fd >= 0 and events & (_POLLIN | _POLLOUT)]
    if call.name in ("select", "pselect6"):
        size = (min(call.arguments[0], 1024) + 7) // 8
        sets = [(peek(pid, call.arguments[at], size), at == 1) for at in (1, 2) if call.arguments[at]]
        return [
            (8 * at + bit, reads)
            for data, reads in sets
            for at, byte in enumerate(data)
            for bit in range(8)
            if byte >> bit & 1
        ]
    return []


# The system calls in which a thread waits, by their numbers, and what their arguments say.

#: name: number on x86-64 and on 64-bit ARM; -1 where the processor has no such call.
_NUMBERS = {
    "read": (0, 63),
    "readv": (19, 65),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "write": (1, 64),
    "writev": (20, 66),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendfile": (40, 71),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    "poll": (7, -1),
    "ppoll": (271, 73),
    "select": (23, -1),
    "pselect6": (270, 72),
    "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "open": (2, -1),
    "openat": (257, 56),
    "flock": (73, 32),
    "fcntl": (72, 25),
    "futex": (202, 98),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "restart_syscall": (219, 128),
    "pause": (34, -1),
    "rt_sigsuspend": (130, 133),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
}
NAMES = {numbers[platform.machine() == "aarch64"]: name for name, numbers in _NUMBERS.items()}

READS = frozenset({"read", "readv", "recvfrom", "recvmsg"})
ACCEPTS = frozenset({"accept", "accept4"})
SLEEPS = frozenset({"nanosleep", "clock_nanosleep", "restart_syscall"})
WRITES = frozenset({"write", "writev", "sendto", "sendmsg", "sendfile"})
#: The argument that holds the timeout: a number of milliseconds, or the address of a timespec (none: 0).
MILLISECONDS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
TIMESPEC = {"ppoll": 2, "select": 4, "pselect6": 4, "epoll_pwait2": 3, "futex": 3}

#: The arguments that hold the path and how to open it.
OPENS = {"open": (0, 1), "openat": (1, 2)}

#: The argument with the address of the time to sleep, and the one with flags: whether that is a moment.
SLEPT = {"nanosleep": (0, None), "clock_nanosleep": (2, 1)}

_FUTEX_PRIVATE = 128
F_SETLKW, F_OFD_SETLKW = 7, 38


class SystemCall(NamedTuple):
    """The system call that a thread is in; the name is empty for those that this module does not know."""

    name: str
    arguments: tuple[int, ...]

    @property
    def ends_by_itself(self) -> bool:
        """Whether a timeout will end it."""
        if self.name in MILLISECONDS:
            # A negative number of 32 bits waits for ever.
            return self.arguments[MILLISECONDS[self.name]] & 0xFFFFFFFF < 0x80000000
        return self.name in TIMESPEC and self.arguments[TIMESPEC[self.name]] != 0

    @property
    def is_private(self) -> bool:
        """Whether only threads of the same process can end it, of a futex."""
        return self.arguments[1] & _FUTEX_PRIVATE != 0


def parse_call(text: str) -> SystemCall | None:
    """Parse /proc/PID/task/TID/syscall; None where it may not be read, or the thread runs or is in no system call."""
    fields = text.split()
    if len(fields) < 7 or not fields[0].isdecimal():
        return None
    return SystemCall(NAMES.get(int(fields[0]), ""), tuple(int(field, 16) for field in fields[1:7]))
