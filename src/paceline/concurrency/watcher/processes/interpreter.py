"""Python's own state in another process: the stack of every thread and coroutine, and the locks that they hold.

The interpreter's structures are read from memory, as debuggers do, so a program need not have been started in any
special way, and does not notice. What is torn because a thread runs meanwhile is left out.
"""

from __future__ import annotations

import os
import re
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.watcher.processes.coroutines import Loop, read_loop
from paceline.concurrency.watcher.processes.memory import ProcessMemory, mappings, symbol
from paceline.concurrency.watcher.processes.objects import LAYOUTS, CodeFrame, Layout, Objects
from paceline.concurrency.watcher.samples import ENDED, Frame, Stack

_MOST_THREADS, _NEAR = 1000, 4  # threads that are read, frames among which one function is called by another
_START_OF_CODE = 23  # among the fields of /proc/PID/stat after the name
_TIMEOUT_OF_WAIT = 2  # the item of the named tuple `AcquireWait` of filelock
#: Lists of the garbage collector, and where an object begins behind its links in one.
_GENERATIONS, _BEHIND_HEAD = 3, 16
_LOCKS = frozenset({"_thread.lock", "_thread.RLock"})
_LIBRARY = re.compile(r"/(?:libpython|python)(3)\.(\d+)(?:\.|$)[^/]*$")  # not "3.13t", which has no interpreter lock
TORN = (OSError, struct.error, IndexError, UnicodeError, OverflowError)


class PythonThread(NamedTuple):
    """One thread as the interpreter sees it."""

    tid: int
    stack: Stack
    holds: tuple[int, ...]  # the futexes of the locks whose `with` blocks it is in
    ends: int  # the futex that others wait for when they join it; 0 if there is none
    standing: Standing | None = None  # which rank its local variables say that it is
    loop: Loop | None = None  # the event loop that it runs
    lock_file: str = ""  # that it asks for without an end, by the library filelock
    joined: int = 0  # the thread that it joins, where no futex says so
    began: int = 0  # when Paceline's own wait began that it is in, by its clock: such a wait looks around in between
    loads: bool = False  # it asks the workers of a DataLoader again and again

    @property
    def delivers(self) -> bool:
        """Whether it delivers the results of a pool of multiprocessing."""
        return any(_is_of_pool(each, "_handle_results") for each in self.stack)


class Interpreter(NamedTuple):
    """The threads of one process, and who holds the global interpreter lock."""

    threads: tuple[PythonThread, ...]
    gil: tuple[int, int] = (0, 0)  # where its futexes lie
    gil_holder: int = 0  # thread
    group: Standing | None = None  # in PyTorch's default process group

    def owners(self, futex: int) -> tuple[int, ...]:
        """Return the threads that alone can end a wait for a futex; none if that is not known."""
        if self.gil[0] <= futex < self.gil[1]:
            return (self.gil_holder,) if self.gil_holder else ()
        return tuple(each.tid for each in self.threads if futex in each.holds)

    def ending(self, tid: int, futex: int) -> tuple[int, ...]:
        """Return the thread whose end another one waits for at a futex."""
        joined = next((each.joined for each in self.threads if each.tid == tid), 0)
        return tuple(each.tid for each in self.threads if futex == each.ends or each.tid == joined)

    def delivering(self, tid: int) -> tuple[int, ...]:
        """Return the threads that alone deliver the result of a pool of multiprocessing which a thread waits for.

        `ENDED` if there is none left: it ends when a result cannot be read. Nothing is said while any stack is unknown.
        """
        thread = self.thread(tid)
        if thread is None or not any(_is_of_pool(each, "wait", "next") for each in thread.stack[:_NEAR]):
            return ()
        tids = tuple(each.tid for each in self.threads if each.delivers)
        # A thread whose stack could not be read may be the one.
        return (tids or (ENDED,)) if all(each.stack for each in self.threads) else ()

    def thread(self, tid: int) -> PythonThread | None:
        """Return one thread."""
        return next((each for each in self.threads if each.tid == tid), None)

    def standing(self, main: int) -> Standing | None:
        """Return which rank the main thread's variables say that it is."""
        return next((each.standing for each in self.threads if each.tid == main), None)

    def began(self, main: int) -> int:
        """Return when the wait of Paceline's own began that the main thread is in; 0 if it is in none."""
        return next((each.began for each in self.threads if each.tid == main), 0)

    def stacks(self, main: int) -> dict[int, Stack]:
        """Return the stacks of threads and tasks, the main thread's first."""
        threads = sorted((each for each in self.threads if each.stack), key=lambda each: each.tid != main)
        tasks = (task for each in self.threads if each.loop for task in each.loop.tasks)
        return {each.tid: each.stack for each in threads} | {task.number: task.stack for task in tasks}


def _is_of_pool(frame: Frame, *functions: str) -> bool:
    return frame.function in functions and frame.file.endswith("/multiprocessing/pool.py")


def _is_wait(frame: CodeFrame) -> bool:
    return frame.code.name == "wait" and frame.code.file.endswith("/paceline/runtime/links/waiting.py")


def read_interpreter(pid: int) -> Interpreter | None:
    """Read the interpreter of a process; None if it has none of a known version, or may not be read."""
    with suppress(OSError, struct.error, LookupError), reading(pid) as reader:
        interpreter = reader.interpreter((pid, image(pid)))
        return (
            interpreter if any(os.path.exists(f"/proc/{pid}/task/{each.tid}") for each in interpreter.threads) else None
        )
    return None


@contextmanager
def reading(pid: int) -> Iterator[ThreadReader]:
    """Open the memory of a process for as long as its interpreter is read.

    Raises:
        LookupError: It has none of a known version.
    """
    address, layout = _runtime(pid, image(pid))
    memory = ProcessMemory(pid)
    try:
        yield ThreadReader(Objects(memory, layout), address)
    finally:
        memory.close()


def image(pid: int) -> str:
    """Return where the code of a process begins: it lies elsewhere after a process has been forked and calls exec."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[_START_OF_CODE]


@lru_cache(maxsize=1024)
def _runtime(pid: int, _image: str) -> tuple[int, Layout]:
    """Return the address of _PyRuntime in a process, and the layout of what it leads to.

    Raises:
        LookupError: It has none of a known version, or has not loaded it yet: what is raised is not kept.
    """
    visited: set[str] = set()
    for each in mappings(pid):
        version = _LIBRARY.search(each.path)
        # A library is mapped in several pieces; symbols count from the one of its beginning.
        if version is None or each.offset or each.path in visited:
            continue
        visited.add(each.path)
        layout = LAYOUTS.get((int(version[1]), int(version[2])))
        # The process may be in a container, where the path names another file.
        value = symbol(f"/proc/{pid}/root{each.path}", "_PyRuntime") if layout else None
        if layout and value:
            return value[0] + (each.begin if value[1] else 0), layout
    raise LookupError("no Python of a known version")


class ThreadReader:
    """Reads the threads of one interpreter."""

    def __init__(self, objects: Objects, runtime: int) -> None:
        self.objects, self._memory, self._at, self._runtime = objects, objects.memory, objects.at, runtime
        self._state = self._memory.word(runtime + self._at.interpreters)

    def interpreter(self, process: tuple[int, str]) -> Interpreter:
        inside, at = self._at.gil
        gil = self._runtime + at if inside else self._memory.word(self._state + at)
        holder, locked = self._memory.word(gil + 8), self._memory.integer(gil + 16)
        # The last holder stays written there after it has released the lock.
        holder_tid = self._memory.word(holder + self._at.native_id) if holder and locked == 1 else 0
        group = None
        with suppress(*TORN):
            modules = self._memory.word(self._state + self._at.modules)
            group = of_group(self.objects, modules, process)
        return Interpreter(tuple(map(self._thread, self.states())), (gil + 32, gil + 120), holder_tid, group)

    def states(self) -> Iterator[int]:
        """Iterate over the states of all threads."""
        state = self._memory.word(self._state + self._at.threads)
        for _ in range(_MOST_THREADS):
            if not state:
                return
            yield state
            state = self._memory.word(state + self._at.next_thread)

    def tid(self, state: int) -> int:
        """Return the number that the kernel has for a thread."""
        return self._memory.word(state + self._at.native_id)

    def thread_of(self, identity: int) -> int:
        """Return the thread that Python knows by an identity; 0 if there is none."""
        # PyThreadState.thread_id, which Python knows a thread by, lies before native_thread_id in every version.
        states = (each for each in self.states() if self._memory.word(each + self._at.native_id - 8) == identity)
        return next((self.tid(each) for each in states), 0)

    def thread_names(self) -> Iterator[tuple[int, str]]:
        """Iterate over the threads that `threading` knows, and their names."""
        module = self.objects.items(self._memory.word(self._state + self._at.modules)).get("threading", 0)
        active = self.objects.items(self._memory.word(module + 16)).get("_active", 0) if module else 0
        for _, thread in self.objects.pairs(active):
            with suppress(*TORN, KeyError):
                attributes = self.objects.attributes(thread)
                yield self.objects.number(attributes["_native_id"]), self.objects.string(attributes["_name"])

    def name_of(self, tid: int) -> str:
        """Return how reports name a thread."""
        name = dict(self.thread_names()).get(tid, str(tid))
        return "the main thread" if name == "MainThread" else f"thread {name}"

    def collected(self, most: int) -> Iterator[tuple[int, int]]:
        """Iterate over the objects that the garbage collector knows, at most so many, and their types."""
        for generation in range(_GENERATIONS):
            head = self._state + self._at.collector + 24 * generation
            at = self._memory.word(head)
            while at != head and most > 0:
                following, _, _, kind = self._memory.words(at, 4)
                yield at + _BEHIND_HEAD, kind
                # The lowest bit of a link is a flag of the collector.
                at, most = following & ~1, most - 1

    def frames(self, state: int) -> Iterator[CodeFrame]:
        """Iterate over the frames of a thread, the innermost first."""
        return self.objects.frames(self._current_frame(state))

    def _thread(self, state: int) -> PythonThread:
        tid, ends = self.tid(state), self._end_of(state)
        try:
            frames = list(self.frames(state))
            stack = tuple(Frame(each.code.file, each.line, each.code.name) for each in frames)
            holds = tuple(lock for each in frames for lock in self.held(each))
            standing = of_frames(self.objects, frames)
            lock_file = next(filter(None, map(self._lock_file, frames)), "")
            loads = any(map(self._loads, frames))
            began = next((self.objects.number(self.objects.local(f, "start")) for f in frames if _is_wait(f)), 0)
        except TORN:
            return PythonThread(tid, (), (), ends)
        return PythonThread(
            tid, stack, holds, ends, standing, self._loop(frames), lock_file, self._joined(frames), began, loads
        )

    def _current_frame(self, state: int) -> int:
        for offset in self._at.current_frame:
            state = self._memory.word(state + offset)
        return state

    def _joined(self, frames: list[CodeFrame]) -> int:
        """Return the thread that a thread joins, of versions in which no lock ends with a thread; 0 if none."""
        if self._at.on_delete or not frames or frames[0].code.name != "join":
            return 0
        with suppress(*TORN):
            if os.path.basename(frames[0].code.file) == "threading.py":
                thread = self.objects.attributes(self.objects.local(frames[0], "self"))
                return max(self.objects.number(thread.get("_native_id", 0)), 0)
        return 0

    def _loop(self, frames: list[CodeFrame]) -> Loop | None:
        with suppress(*TORN):
            return read_loop(self.objects, frames, self._memory.word(self._state + self._at.modules))
        return None

    def _lock_file(self, frame: CodeFrame) -> str:
        """Return the file that `FileLock.acquire` polls without an end; the variables are those of versions 3 and 4."""
        if frame.code.file.endswith("/filelock/_core/_acquire.py") and frame.code.name == "_poll_until_acquired":
            timeout = self.objects.item(self.objects.local(frame, "wait"), _TIMEOUT_OF_WAIT)
        elif frame.code.file.endswith("/filelock/_api.py") and frame.code.name == "acquire":
            timeout = self.objects.local(frame, "timeout")
        else:
            return ""
        kind = self.objects.type_of(timeout) if timeout else ""
        if kind == "float" and struct.unpack("=d", self._memory.read(timeout + 16, 8))[0] >= 0:
            return ""
        if kind != "float" and (kind != "int" or self.objects.number(timeout) >= 0):
            return ""
        name = self.objects.local(frame, "lock_filename") or self.objects.local(frame, "canonical_path")
        return self.objects.string(name) if name and self.objects.type_of(name) == "str" else ""

    def _loads(self, frame: CodeFrame) -> bool:
        """Whether a frame asks the workers of a DataLoader every five seconds, and has no timeout that would end it."""
        if not frame.code.file.endswith("/torch/utils/data/dataloader.py") or frame.code.name != "_try_get_data":
            return False
        loader = self.objects.attributes(self.objects.local(frame, "self"))
        return self.objects.number(loader.get("_timeout", 0)) == 0

    def held(self, frame: CodeFrame) -> Iterator[int]:
        """Iterate over the futexes of the locks in whose `with` blocks a frame is."""
        values, depth = frame.address + self._at.locals + 8 * frame.code.locals, frame.code.depth(frame.unit)
        return self.held_by(self._memory.words(values, depth) if depth else ())

    def held_by(self, values: Iterable[int]) -> Iterator[int]:
        """Iterate over the futexes of the locks of which the `__exit__` is among the values on a frame's stack."""
        for value in values:
            with suppress(OSError):
                if value and self.objects.type_of(value) == "builtin_function_or_method":
                    lock = self.objects.receiver(value)
                    method = self._memory.text(self._memory.word(self._memory.word(value + 16)), 16)
                    if method == "__exit__" and lock and self.objects.type_of(lock) in _LOCKS:
                        yield self._memory.word(lock + 16)
                elif value and self.objects.type_of(value) == "method":
                    yield from self._semaphore(self.objects.receiver(value))

    def _semaphore(self, instance: int) -> Iterator[int]:
        """Yield the semaphore of a lock of multiprocessing, if the instance is one and its process holds it."""
        if not self.objects.type_of(instance).endswith("Lock"):
            return
        value = self.objects.attributes(instance).get("_semlock", 0)
        if value and self._memory.integer(value + 32) > 0:
            yield self._memory.word(value + 16)

    def _end_of(self, state: int) -> int:
        with suppress(OSError):
            reference = self._memory.word(state + self._at.on_delete) if self._at.on_delete else 0
            lock = self._memory.word(reference + 16) if reference else 0
            if lock and self.objects.type_of(lock) == "_thread.lock":
                return self._memory.word(lock + 16)
        return 0


# Which rank of how many a process is, as PyTorch's default process group in its memory says it.
# A process need not have been told its rank when it was started: `torch.multiprocessing.spawn` passes it as an
# argument, and notebook launchers set the environment afterwards. Every backend, of PyTorch or not, has such a group.

_MODULE = "torch.distributed.distributed_c10d"
#: Where the C++ object begins in one of pybind11; where its rank lies, and after it its size: behind the store and
#: the counters of references, which are two halves of a word or two words.
_VALUE, _RANKS = 16, (24, 32)
#: The files whose `_wrap` runs what a launcher starts in a process of its own, and the variable that has its number.
_STARTERS = {
    "/torch/multiprocessing/spawn.py": "i",
    "/torch/distributed/elastic/multiprocessing/api.py": "local_rank",
}
_MOST_PROCESSES = 1024


class Standing(NamedTuple):
    """Which rank of how many a process is."""

    rank: int
    world_size: int = 0  # 0 where only the rank is known


#: By process: how many modules it had, and where the globals of the module are, so that they are searched for rarely.
_globals: OrderedDict[tuple[int, str], tuple[int, int]] = OrderedDict()


def of_group(objects: Objects, modules: int, process: tuple[int, str]) -> Standing | None:
    """Return the standing of a process in its default process group; None if it has none.

    Args:
        objects: The interpreter.
        modules: The dictionary of the interpreter's modules.
        process: Its number, and where its image begins.
    """
    namespace = _globals_of(objects, modules, process)
    if not namespace:
        return None
    variables = objects.items(namespace)
    group = objects.attributes(variables["_world"]).get("_default_pg", 0) if "_world" in variables else 0
    ranks = dict(objects.pairs(variables.get("_pg_group_ranks", 0))).get(group, 0) if group else 0
    if not ranks or not objects.type_of(group).endswith("ProcessGroup"):
        return None
    value, size = objects.memory.word(group + _VALUE), objects.length(ranks)
    pairs = (tuple(objects.memory.integer(value + at + half) for half in (0, 4)) for at in _RANKS)
    return next((Standing(rank, size) for rank, other in pairs if other == size and 0 <= rank < size), None)


def of_frames(objects: Objects, frames: list[CodeFrame]) -> Standing | None:
    """Return the standing that local variables of a thread name, where there is no group yet; None if none does."""
    rank, size = (_number(objects, frames, name) for name in ("rank", "world_size"))
    if rank < 0:
        started = [f for f in frames if f.code.name == "_wrap"]
        numbers = [_number(objects, [f], name) for f in started for file, name in _STARTERS.items() if _is_in(f, file)]
        rank = next((each for each in numbers if each >= 0), -1)
    return Standing(rank, max(size, 0)) if rank >= 0 else None


def _globals_of(objects: Objects, modules: int, process: tuple[int, str]) -> int:
    count = objects.length(modules)
    before, namespace = _globals.get(process, (-1, 0))
    # A module appears only when the number of modules has changed: the dictionary is searched no more often.
    if not namespace and before != count:
        module = objects.items(modules).get(_MODULE, 0)
        namespace = objects.memory.word(module + 16) if module else 0
        _globals[process] = count, namespace
        if len(_globals) > _MOST_PROCESSES:
            _globals.popitem(last=False)
    return namespace


def _is_in(frame: CodeFrame, file: str) -> bool:
    return frame.code.file.endswith(file)


def _number(objects: Objects, frames: list[CodeFrame], name: str) -> int:
    """Return the number in a local variable of the innermost frame that has one; -1 if none has."""
    for frame in frames:
        with suppress(OSError):
            if (value := objects.number(objects.local(frame, name))) >= 0:
                return value
    return -1
