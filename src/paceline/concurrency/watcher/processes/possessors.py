"""Who holds a lock that no running thread has in a `with` block.

It may be a suspended generator, a thread that a fork has left behind, or a process that has ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress

from paceline.concurrency.watcher.processes.holders import Holders, file_of
from paceline.concurrency.watcher.processes.interpreter import TORN, ThreadReader, reading
from paceline.concurrency.watcher.processes.objects import Objects
from paceline.concurrency.watcher.samples import Process, Snapshot

_LOCKS = ("_thread.lock", "_thread.RLock", "_queue.SimpleQueue")
_GENERATORS = frozenset({"generator", "coroutine", "async_generator"})
_MOST_OBJECTS, _LONGEST_SOURCE = 400_000, 1 << 20
_WITH_DICTIONARY = 1 << 2 | 1 << 4  # Py_TPFLAGS_INLINE_VALUES, Py_TPFLAGS_MANAGED_DICT
_FLAGS = 168  # PyTypeObject.tp_flags
_OWNER = 24  # of rlockobject: the identity of the thread
_START_OF_STACK = 25  # among the fields of /proc/PID/stat after the name: exec moves it, a fork does not
_HANDLE, _LAST_THREAD, _TIMES_HELD = 16, 24, 32  # of SemLockObject


def is_lock(objects: Objects, value: int, futex: int) -> bool:
    """Whether an object is a lock, or has one, that threads wait for at a futex."""
    return bool(value) and objects.type_of(value) in _LOCKS and objects.memory.word(value + 16) == futex


def has_dictionary(objects: Objects, value: int) -> bool:
    """Whether an object is of a class that is written in Python, so that its attributes can be read."""
    return objects.memory.word(objects.memory.word(value + 8) + _FLAGS) & _WITH_DICTIONARY != 0


def semaphore_of(objects: Objects, value: int) -> int:
    """Return where the semaphore of a lock of multiprocessing lies; 0 if an object is none."""
    lock = objects.attributes(value).get("_semlock", 0) if has_dictionary(objects, value) else 0
    return objects.memory.word(lock + _HANDLE) if lock else 0


class Possessors:
    """The holders of locks in the processes of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._stack = ExitStack()
        self._readers: dict[int, ThreadReader | None] = {}
        self._objects: dict[int, list[tuple[str, int]]] = {}
        self._holders = Holders()

    def close(self) -> None:
        """Close the memory of all processes that were read."""
        self._stack.close()

    def of(self, process: Process, kind: str, value: int, futex: int) -> tuple[int, str]:
        """Return who holds an object that a process waits for: a thread, or else in words; 0 and "" if not known."""
        reader = self.reader(process.pid)
        with suppress(*TORN, LookupError):
            if reader is not None and kind == "import":
                return reader.thread_of(reader.objects.number(reader.objects.attributes(value)["owner"])), ""
            if reader is not None and kind == "lock" and reader.objects.type_of(value) == "_thread.RLock":
                tid = reader.thread_of(reader.objects.memory.word(value + _OWNER))
                return tid, "" if tid else self._forked(process, value, futex) or "a thread that has ended"
            if kind == "lock":
                return 0, self._suspended(process, futex) or self._forked(process, value, futex)
            if kind == "shared lock":
                return self._sharing(process, futex)
        return 0, ""

    def reader(self, pid: int) -> ThreadReader | None:
        """Return the interpreter of a process, opened once; None if it has none of a known version."""
        if pid not in self._readers:
            self._readers[pid] = None
            with suppress(*TORN, LookupError):
                self._readers[pid] = self._stack.enter_context(reading(pid))
        return self._readers[pid]

    def _collected(self, pid: int) -> list[tuple[str, int]]:
        """Return the generators, locks and processes of multiprocessing that Python's garbage collector knows."""
        if pid not in self._objects:
            reader = self.reader(pid)
            self._objects[pid] = [] if reader is None else list(_interesting(reader))
        return self._objects[pid]

    def _suspended(self, process: Process, futex: int) -> str:
        """Return the suspended generator or coroutine in whose `with` block a lock is."""
        reader = self.reader(process.pid)
        for kind, value in self._collected(process.pid) if reader is not None else ():
            if kind not in _GENERATORS or reader is None:
                continue
            with suppress(*TORN):
                frame = reader.objects.frame(value + reader.objects.at.coroutine_frame)
                if futex in reader.held_by(reader.objects.values(frame)):
                    place = f"{os.path.basename(frame.code.file)}:{frame.line}"
                    return f"the suspended {kind.replace('_', ' ')} {frame.code.name} ({place})"
        return ""

    def _forked(self, process: Process, value: int, futex: int) -> str:
        """Return the thread that held a lock when a process was forked, in the parent, where it still runs or not."""
        parent, reader = self._snapshot.process(process.parent), self.reader(process.parent)
        if parent is None or reader is None or _stack_of(process.pid) != _stack_of(parent.pid):
            return ""
        if not is_lock(reader.objects, value, futex):
            return ""
        for state in reader.states():
            if futex in {lock for frame in reader.frames(state) for lock in reader.held(frame)}:
                name = reader.name_of(reader.tid(state))
                return f"{name} of pid {parent.pid}, which forked this process meanwhile: the copy stays locked"
        if self._acquires(process):
            return ""
        return f"a thread of pid {parent.pid} at the moment of the fork: the copy stays locked"

    def _acquires(self, process: Process) -> bool:
        """Whether a file that a process executes calls `acquire()`: then it may have taken the lock itself."""
        files = {frame.file for stack in process.stacks for frame in stack if not frame.standard}
        for file in files:
            with suppress(OSError), open(file_of(process.pid, file), encoding="utf-8", errors="replace") as text:
                if ".acquire(" in text.read(_LONGEST_SOURCE):
                    return True
        return False

    def _sharing(self, process: Process, futex: int) -> tuple[int, str]:
        """Return the process that has taken a lock of multiprocessing, or those that have ended and may have."""
        place = self._holders.place(process.pid, futex)
        ended: list[str] = []
        for each in self._snapshot.processes:
            reader = self.reader(each.pid)
            for kind, value in self._collected(each.pid) if reader is not None and each.stacks else ():
                assert reader is not None
                with suppress(*TORN, KeyError):
                    attributes = reader.objects.attributes(value)
                    if "_semlock" in attributes:
                        lock = attributes["_semlock"]
                        is_locked = reader.objects.memory.integer(lock + _TIMES_HELD) > 0
                        handle = reader.objects.memory.word(lock + _HANDLE)
                        if is_locked and self._holders.place(each.pid, handle) == place:
                            return reader.thread_of(reader.objects.memory.word(lock + _LAST_THREAD)), each.label
                    elif kind.endswith("Process"):
                        ended += _ended(reader.objects, attributes)
        names = " or ".join(dict.fromkeys(ended))
        return 0, names and f"{names}, which has ended"


def _ended(objects: Objects, attributes: Mapping[str, int]) -> Iterator[str]:
    """Yield the name of a process of multiprocessing that failed or was killed."""
    popen = objects.attributes(attributes["_popen"])
    code = popen.get("returncode", 0)
    if code and objects.type_of(code) == "int" and objects.number(code) != 0:
        yield f"process {objects.string(attributes['_name'])} (pid {objects.number(popen['pid'])})"


def _interesting(reader: ThreadReader) -> Iterator[tuple[str, int]]:
    names: dict[int, str] = {}
    for value, kind in reader.collected(_MOST_OBJECTS):
        if kind not in names:
            names[kind] = ""
            with suppress(OSError):
                names[kind] = reader.objects.memory.text(reader.objects.memory.word(kind + 24), 64)
        name = names[kind]
        if name in _GENERATORS or name.endswith(("Process", "Lock", "Semaphore")):
            yield name, value


def _stack_of(pid: int) -> str:
    """Return where the stack of a process begins."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[_START_OF_STACK]
    return os.devnull
