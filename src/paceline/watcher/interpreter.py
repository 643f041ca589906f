"""Python's own state in another process: the stack of every thread, and which locks its `with` blocks hold.

The interpreter's structures are read from memory, as debuggers do, so a program need not have been started in any
special way, and does not notice. Their layout is that of a version: see `LAYOUTS`. What is read of a thread that does
not run is consistent; what is read of one that runs may be torn, and then is left out.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from paceline.watcher.memory import Memory, mappings, symbol
from paceline.watcher.samples import Frame, Stack

_DEEPEST, _MOST_THREADS, _LONGEST = 200, 1000, 1 << 20
_LOCKS = frozenset({"_thread.lock", "_thread.RLock"})
#: Local variables by which programs say which rank of how many they are, where no launcher says it.
NUMBERS = frozenset({"rank", "world_size"})
_LIBRARY = re.compile(r"/(?:libpython|python)(3)\.(\d+)[^/]*$")


class Layout(NamedTuple):
    """Where fields lie in the structures of one version of CPython, on 64-bit Linux."""

    interpreters: int  # _PyRuntimeState.interpreters.head
    gil: int  # _PyRuntimeState.ceval.gil
    threads: int  # PyInterpreterState.threads.head
    next_thread: int
    cframe: int
    native_id: int
    on_delete: int  # PyThreadState.on_delete_data: a weak reference to the lock that ends with the thread
    code: int  # _PyInterpreterFrame.f_code
    previous: int
    instruction: int
    locals: int
    names: tuple[int, int]  # PyCodeObject.co_filename, co_name
    locals_names: int
    first_line: int
    locals_count: int
    exceptions: int
    lines: int
    bytecode: int


LAYOUTS = {
    (3, 11): Layout(interpreters=40, gil=360, threads=16, next_thread=8, cframe=56, native_id=160, on_delete=192,
                    code=32, previous=48, instruction=56, locals=72, names=(112, 120), locals_names=96,
                    first_line=72, locals_count=76,
                    exceptions=40, lines=136, bytecode=184),
}  # fmt: skip


class PythonThread(NamedTuple):
    """One thread as the interpreter sees it."""

    tid: int
    stack: Stack
    holds: tuple[int, ...]  # the futexes of the locks whose `with` blocks it is in
    ends: int  # the futex that others wait for when they join it; 0 if there is none
    numbers: Mapping[str, int] = {}  # local variables of the names in `NUMBERS`, of the innermost frame that has them


class Interpreter(NamedTuple):
    """The threads of one process, and who holds the global interpreter lock."""

    threads: tuple[PythonThread, ...]
    gil: tuple[int, int] = (0, 0)  # where its futexes lie
    gil_holder: int = 0  # thread

    def owners(self, futex: int) -> tuple[int, ...]:
        """Return the threads that alone can end a wait for a futex; none if that is not known."""
        if self.gil[0] <= futex < self.gil[1]:
            return (self.gil_holder,) if self.gil_holder else ()
        return tuple(each.tid for each in self.threads if futex in each.holds)

    def ending(self, futex: int) -> tuple[int, ...]:
        """Return the thread whose end a futex stands for."""
        return tuple(each.tid for each in self.threads if futex == each.ends)

    def stack_of(self, tid: int) -> Stack:
        """Return the stack of one thread; empty if it has none."""
        return next((each.stack for each in self.threads if each.tid == tid), ())

    def numbers(self, main: int) -> Mapping[str, int]:
        """Return the numbers that the main thread has in variables of known names."""
        return next((each.numbers for each in self.threads if each.tid == main), {})

    def stacks(self, main: int) -> tuple[Stack, ...]:
        """Return the stacks, the main thread's first."""
        return tuple(each.stack for each in self._ordered(main))

    def tids(self, main: int) -> tuple[int, ...]:
        """Return the threads of the stacks."""
        return tuple(each.tid for each in self._ordered(main))

    def _ordered(self, main: int) -> list[PythonThread]:
        return sorted((each for each in self.threads if each.stack), key=lambda each: each.tid != main)


def read_interpreter(pid: int) -> Interpreter | None:
    """Read the interpreter of a process; None if it has none of a known version, or may not be read."""
    with suppress(OSError, struct.error):
        found = _runtime(pid, os.stat(f"/proc/{pid}/exe").st_ino)
        if found is not None:
            memory = Memory(pid)
            try:
                return _Reader(memory, *found).interpreter()
            finally:
                memory.close()
    return None


@lru_cache(maxsize=1024)
def _runtime(pid: int, _executable: int) -> tuple[int, Layout] | None:
    """Return the address of _PyRuntime in a process, and the layout of what it leads to."""
    seen: set[str] = set()
    for each in mappings(pid):
        version = _LIBRARY.search(each.path)
        if version is None or each.offset or each.path in seen:
            continue
        seen.add(each.path)
        layout = LAYOUTS.get((int(version[1]), int(version[2])))
        value = symbol(f"/proc/{pid}/root{each.path}", "_PyRuntime") if layout else None
        if layout and value:
            return value[0] + (each.begin if value[1] else 0), layout
    return None


class _Reader:
    """Follows the pointers of one interpreter."""

    def __init__(self, memory: Memory, runtime: int, layout: Layout) -> None:
        self._memory, self._runtime, self._at = memory, runtime, layout
        self._codes: dict[int, _Code] = {}

    def interpreter(self) -> Interpreter:
        gil = self._runtime + self._at.gil
        holder, locked = self._memory.word(gil + 8), self._memory.integer(gil + 16)
        holder_tid = self._memory.word(holder + self._at.native_id) if holder and locked == 1 else 0
        return Interpreter(tuple(self._threads()), (gil + 32, gil + 120), holder_tid)

    def _threads(self) -> Iterator[PythonThread]:
        state = self._memory.word(self._memory.word(self._runtime + self._at.interpreters) + self._at.threads)
        for _ in range(_MOST_THREADS):
            if not state:
                return
            tid = self._memory.word(state + self._at.native_id)
            stack, holds, numbers = self._stack(state)
            yield PythonThread(tid, stack, holds, self._end_of(state), numbers)
            state = self._memory.word(state + self._at.next_thread)

    def _stack(self, state: int) -> tuple[Stack, tuple[int, ...], Mapping[str, int]]:
        """Return the frames of a thread, and the futexes that it holds; nothing if it moves on meanwhile."""
        frames: list[Frame] = []
        holds: list[int] = []
        numbers: dict[str, int] = {}
        try:
            frame = self._memory.word(self._memory.word(state + self._at.cframe) + 8)
            while frame and len(frames) < _DEEPEST:
                code = self._code(self._memory.word(frame + self._at.code))
                unit = (self._memory.word(frame + self._at.instruction) - code.bytecode) // 2
                if code.file != "<shim>":
                    frames.append(Frame(code.file, code.line(unit), code.name))
                values = frame + self._at.locals
                holds += self._held(values + 8 * code.locals, code.depth(unit))
                for name, at in code.numbers:
                    if (number := self._number(self._memory.word(values + 8 * at))) >= 0:
                        numbers.setdefault(name, number)
                frame = self._memory.word(frame + self._at.previous)
        except (OSError, struct.error, IndexError, UnicodeError):
            return (), (), {}
        return tuple(frames), tuple(holds), numbers

    def _held(self, values: int, depth: int) -> Iterator[int]:
        """Iterate over the locks of which the `__exit__` lies on a frame's stack of values."""
        for value in self._memory.words(values, depth) if depth else ():
            with suppress(OSError):
                if value and self._type(value) == "builtin_function_or_method":
                    lock = self._memory.word(value + 24)
                    method = self._memory.text(self._memory.word(self._memory.word(value + 16)), 16)
                    if method == "__exit__" and lock and self._type(lock) in _LOCKS:
                        yield self._memory.word(lock + 16)
                elif value and self._type(value) == "method":
                    yield from self._semaphore(self._memory.word(value + 24))

    def _semaphore(self, instance: int) -> Iterator[int]:
        """Yield the semaphore of a lock of multiprocessing, if the instance is one and its process holds it."""
        if not self._type(instance).endswith("Lock"):
            return
        values = self._memory.word(instance - 32)  # where 3.11 keeps the attributes of an instance
        for value in self._memory.words(values, 4) if values else ():
            with suppress(OSError):
                if self._type(value) == "_multiprocessing.SemLock" and self._memory.integer(value + 32) > 0:
                    yield self._memory.word(value + 16)

    def _type(self, value: int) -> str:
        return self._memory.text(self._memory.word(self._memory.word(value + 8) + 24), 64)

    def _number(self, value: int) -> int:
        """Return a small whole number; -1 for anything else."""
        if not value or self._type(value) != "int" or self._memory.word(value + 16) > 1:
            return -1
        return self._memory.integer(value + 24) if self._memory.word(value + 16) else 0

    def _names(self, names: int) -> tuple[tuple[str, int], ...]:
        count = min(self._memory.word(names + 16), 1000)
        found = [(self._string(each), at) for at, each in enumerate(self._memory.words(names + 24, count))]
        return tuple(pair for pair in found if pair[0] in NUMBERS)

    def _end_of(self, state: int) -> int:
        with suppress(OSError):
            reference = self._memory.word(state + self._at.on_delete)
            lock = self._memory.word(reference + 16) if reference else 0
            if lock and self._type(lock) == "_thread.lock":
                return self._memory.word(lock + 16)
        return 0

    def _code(self, address: int) -> _Code:
        if address not in self._codes:
            at = self._at
            self._codes[address] = _Code(
                self._string(self._memory.word(address + at.names[0])),
                self._string(self._memory.word(address + at.names[1])),
                self._memory.integer(address + at.first_line),
                self._memory.integer(address + at.locals_count),
                self._bytes(self._memory.word(address + at.lines)),
                self._bytes(self._memory.word(address + at.exceptions)),
                address + at.bytecode,
                self._names(self._memory.word(address + at.locals_names)),
            )
        return self._codes[address]

    def _string(self, address: int) -> str:
        length, state = self._memory.word(address + 16), self._memory.word(address + 32)
        kind, ascii_only = state >> 2 & 7, state >> 6 & 1
        if length > _LONGEST or kind not in (1, 2, 4):
            raise OSError("no string")
        data = self._memory.read(address + (48 if ascii_only else 72), length * kind)
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind])

    def _bytes(self, address: int) -> bytes:
        size = self._memory.word(address + 16)
        if size > _LONGEST:
            raise OSError("no bytes")
        return self._memory.read(address + 32, size)


class _Code(NamedTuple):
    """What is needed of a code object. Positions count units of two bytes."""

    file: str
    name: str
    first_line: int
    locals: int
    lines: bytes
    exceptions: bytes
    bytecode: int
    numbers: tuple[tuple[str, int], ...]  # names and positions of local variables

    def line(self, unit: int) -> int:
        """Return the line of an instruction (Objects/locations.md in CPython's sources)."""
        line, at, position = self.first_line, 0, 0
        while at < len(self.lines):
            kind, length = self.lines[at] >> 3 & 15, (self.lines[at] & 7) + 1
            after = next((end for end in range(at + 1, len(self.lines)) if self.lines[end] & 128), len(self.lines))
            if kind in (13, 14):
                line += _signed(self.lines, at + 1)
            elif 10 <= kind <= 12:
                line += kind - 10
            position += length
            if unit < position:
                break
            at = after
        return line

    def depth(self, unit: int) -> int:
        """Return how many values a handler around an instruction keeps: those below it are alive for certain."""
        at = 0
        while at < len(self.exceptions):
            start, at = _big(self.exceptions, at)
            length, at = _big(self.exceptions, at)
            _, at = _big(self.exceptions, at)
            depth, at = _big(self.exceptions, at)
            if start <= unit < start + length:
                return depth >> 1
        return 0


def _signed(data: bytes, at: int) -> int:
    value = shift = 0
    while True:
        value |= (data[at] & 63) << shift
        if not data[at] & 64:
            break
        shift, at = shift + 6, at + 1
    return -(value >> 1) if value & 1 else value >> 1


def _big(data: bytes, at: int) -> tuple[int, int]:
    value = data[at] & 63
    while data[at] & 64:
        at += 1
        value = value << 6 | data[at] & 63
    return value, at + 1
