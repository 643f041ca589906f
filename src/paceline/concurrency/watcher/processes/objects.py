"""Objects of CPython in another process: their types, attributes, code and frames, as its memory holds them.

Their layout is that of a version: see `layouts`. What is read of a thread that does not run is consistent; what is read
of one that runs may be torn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from paceline.concurrency.watcher.processes.memory import ProcessMemory


class Layout(NamedTuple):
    """Where fields lie in the structures of each known version of CPython, on 64-bit Linux.

    The numbers are those of the headers, by `offsetof` with `Py_BUILD_CORE`; of tasks, those of `_asynciomodule.c`.

    The layout of one version; what is not named has not changed in any of them.
    """

    interpreters: int  # _PyRuntimeState.interpreters.head
    gil: tuple[bool, int]  # whether it lies in _PyRuntimeState, else PyInterpreterState points to it; and where
    threads: int  # PyInterpreterState.threads.head
    modules: int  # PyInterpreterState.imports.modules
    collector: int  # PyInterpreterState.gc.generations
    next_thread: int
    native_id: int
    on_delete: int  # PyThreadState.on_delete_data: a weak reference to the lock that ends with the thread; 0 if gone
    current_frame: tuple[int, ...]  # pointers to follow from PyThreadState
    code: int  # _PyInterpreterFrame.f_code
    previous: int
    instruction: int
    stack_top: int
    owner: int
    globals: int  # _PyInterpreterFrame.f_globals
    locals: int
    names: tuple[int, int]  # PyCodeObject.co_filename, co_name
    locals_names: int
    first_line: int
    locals_count: int
    exceptions: int
    lines: int
    bytecode: int
    cached_keys: int  # PyHeapTypeObject.ht_cached_keys
    coroutine_frame: int  # PyCoroObject.cr_iframe
    text: tuple[int, int]  # where the characters of a string lie: ASCII, others
    tagged_numbers: bool  # whether an int has a tag with its size and sign, and not a signed size
    values: str  # of an instance without a dictionary: "beside" the pointer to one, "instead" of it, or "inline"
    every_task: tuple[str, str]  # of asyncio.tasks: a weak set of tasks, and a set of those that began eagerly
    task_state: int  # 0: pending; of TaskObj, as those below
    task_waits_for: int
    task_coroutine: int
    task_name: int


_3_11 = Layout(
    interpreters=40,
    gil=(True, 360),
    threads=16,
    modules=888,
    collector=672,
    next_thread=8,
    native_id=160,
    on_delete=192,
    current_frame=(56, 8),
    code=32,
    previous=48,
    instruction=56,
    stack_top=64,
    owner=69,
    globals=8,
    locals=72,
    names=(112, 120),
    locals_names=96,
    first_line=72,
    locals_count=76,
    exceptions=40,
    lines=136,
    bytecode=184,
    cached_keys=872,
    coroutine_frame=80,
    text=(48, 72),
    tagged_numbers=False,
    values="beside",
    every_task=("_all_tasks", ""),
    task_state=88,
    task_waits_for=128,
    task_coroutine=136,
    task_name=144,
)
_3_12 = _3_11._replace(
    gil=(False, 384),
    threads=72,
    modules=944,
    collector=136,
    native_id=144,
    on_delete=176,
    current_frame=(56, 0),
    code=0,
    previous=8,
    owner=70,
    globals=24,
    first_line=68,
    locals_count=72,
    bytecode=192,
    cached_keys=880,
    coroutine_frame=72,
    text=(40, 56),
    tagged_numbers=True,
    values="instead",
    every_task=("_scheduled_tasks", "_eager_tasks"),
)
_3_13 = _3_12._replace(
    interpreters=632,
    gil=(False, 16),
    threads=7344,
    modules=7656,
    collector=7424,
    native_id=160,
    on_delete=0,
    current_frame=(72,),
    bytecode=200,
    values="inline",
    task_state=96,
    task_waits_for=112,
    task_coroutine=120,
    task_name=128,
)
LAYOUTS = {(3, 11): _3_11, (3, 12): _3_12, (3, 13): _3_13}


_DEEPEST, _LONGEST, _MOST = 200, 1 << 20, 10_000
_DIGITS = 4  # of 30 bits, of a number
_DELEGATES = frozenset({"coroutine", "generator"})
#: The owner of a frame that belongs to the interpreter itself; and where a type has its size.
_OWN_FRAME, _BASIC_SIZE = 3, 32


class CodeFrame(NamedTuple):
    """One frame: where it lies, and what it executes."""

    address: int
    code: Code
    unit: int  # the instruction that it is at

    @property
    def line(self) -> int:
        """The line that it is at."""
        return self.code.line(self.unit)


class Objects:
    """Follows the pointers of one interpreter. What cannot be read raises OSError."""

    def __init__(self, memory: ProcessMemory, layout: Layout) -> None:
        self.memory, self.at = memory, layout
        self._codes: dict[int, Code] = {}

    def type_of(self, value: int) -> str:
        """Return the name of an object's type, without the module of one that is written in Python."""
        # PyObject.ob_type, PyTypeObject.tp_name: neither has moved in any of these versions.
        return self.memory.text(self.memory.word(self.memory.word(value + 8) + 24), 64)

    def number(self, value: int) -> int:
        """Return a whole number of at most four digits of CPython, 120 bits; -1 for anything else."""
        if not value or self.type_of(value) != "int":
            return -1
        size = self.memory.word(value + 16)  # digits; less than none of a negative number
        if self.at.tagged_numbers:
            # Since 3.12 the low three bits are a tag, of which two are the sign: 2 is negative.
            size = size >> 3 if size & 3 != 2 else _MOST
        if size > _DIGITS:
            return -1
        return sum(self.memory.integer(value + 24 + 4 * at) << 30 * at for at in range(size))

    def string(self, address: int) -> str:
        """Return a text."""
        length, state = self.memory.word(address + 16), self.memory.word(address + 32)
        # PyASCIIObject.state: bytes of a character (2 to 4), and
        # whether all are ASCII (6), when the text lies right behind.
        kind, ascii_only = state >> 2 & 7, state >> 6 & 1
        if length > _LONGEST or kind not in (1, 2, 4):
            raise OSError("no string")
        data = self.memory.read(address + self.at.text[not ascii_only], length * kind)
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind])

    def receiver(self, method: int) -> int:
        """Return the object that a bound method belongs to."""
        return self.memory.word(method + 24)

    def items(self, dictionary: int) -> Mapping[str, int]:
        """Return the values of a dictionary whose keys are texts; other keys are left out."""
        return self._named(self.pairs(dictionary))

    def pairs(self, dictionary: int) -> Iterator[tuple[int, int]]:
        """Iterate over the keys and values of a dictionary."""
        if not dictionary:
            return iter(())
        values = self.memory.word(dictionary + 40)
        if values and self.at.values == "inline":
            values += 8  # after their own sizes
        return self._entries(self.memory.word(dictionary + 32), values)

    def length(self, dictionary: int) -> int:
        """Return how many items a dictionary has."""
        return self.memory.word(dictionary + 16)

    def attributes(self, instance: int) -> Mapping[str, int]:
        """Return the attributes of an instance of a class that is written in Python."""
        kind, dictionary = self.memory.word(instance + 8), self.memory.word(instance - 24)
        if self.at.values == "instead" and dictionary & 1:
            # In 3.12 one word is either: a pointer to values has its lowest bit set, one less than their address.
            dictionary, values = 0, dictionary + 1
        elif self.at.values == "inline":
            values = instance + self.memory.word(kind + _BASIC_SIZE) + 8
        else:
            values = self.memory.word(instance - 32) if not dictionary else 0
        if dictionary:
            return self.items(dictionary)
        return self._named(self._entries(self.memory.word(kind + self.at.cached_keys), values))

    def _named(self, pairs: Iterator[tuple[int, int]]) -> Mapping[str, int]:
        return {self.string(key): value for key, value in pairs if self.type_of(key) == "str"}

    def _entries(self, keys: int, values: int) -> Iterator[tuple[int, int]]:
        """Iterate over keys and values; the values lie beside the keys, or by themselves if several share the keys."""
        # PyDictKeysObject: after the number of references, one byte each for the
        # logarithms of the size of the table and of its index, and for the kind of keys;
        # then the entries that are in use. The index is `1 << log2_index_bytes` long.
        sizes = self.memory.word(keys + 8)
        count = min(self.memory.word(keys + 24), _MOST)
        size = 16 if sizes >> 16 & 255 else 24  # the hash lies before a key that may be anything
        first = keys + 32 + (1 << (sizes >> 8 & 255)) + size - 16
        for at in range(count):
            key, value = self.memory.words(first + size * at, 2)
            value = self.memory.word(values + 8 * at) if values else value
            if key and value:
                yield key, value

    def item(self, values: int, at: int) -> int:
        """Return one item of a tuple, 0 if there is no tuple or it is shorter."""
        return self.memory.word(values + 24 + 8 * at) if values and at < self.memory.word(values + 16) else 0

    def members(self, collection: int) -> Iterator[int]:
        """Iterate over the members of a set."""
        table, size = self.memory.word(collection + 40), min(self.memory.word(collection + 32) + 1, _MOST)
        for member, number in zip(*[iter(self.memory.words(table, 2 * size))] * 2, strict=True):
            if member and number != (1 << 64) - 1:  # the hash of what was removed
                yield member

    def frames(self, frame: int) -> Iterator[CodeFrame]:
        """Iterate over the frames of a thread from an innermost one on."""
        for _ in range(_DEEPEST):
            if not frame:
                return
            # Since 3.12 the interpreter has a frame for itself wherever C calls it, without code of the program.
            if self.memory.read(frame + self.at.owner, 1)[0] != _OWN_FRAME:
                yield self.frame(frame)
            frame = self.memory.word(frame + self.at.previous)

    def frame(self, address: int) -> CodeFrame:
        """Return one frame."""
        code = self._code(self.memory.word(address + self.at.code))
        return CodeFrame(address, code, (self.memory.word(address + self.at.instruction) - code.bytecode) // 2)

    def suspended(self, coroutine: int) -> Iterator[CodeFrame]:
        """Iterate over the frames of a coroutine that waits, the outermost first, and those that it has awaited."""
        for _ in range(_DEEPEST):
            if not coroutine or self.type_of(coroutine) not in _DELEGATES:
                return
            frame = self.frame(coroutine + self.at.coroutine_frame)
            yield frame
            # What a coroutine awaits is the topmost value of its stack.
            values = self.values(frame)
            coroutine = values[-1] if values else 0
            if coroutine and self.type_of(coroutine) == "coroutine_wrapper":
                coroutine = self.memory.word(coroutine + 16)

    def values(self, frame: CodeFrame) -> tuple[int, ...]:
        """Return the stack of values of a coroutine's frame that waits."""
        top = self.memory.integer(frame.address + self.at.stack_top)
        # A frame that runs keeps the top of its stack in a register, and has -1 in memory.
        if not frame.code.locals <= top < _MOST:
            return ()
        start = frame.address + self.at.locals
        return self.memory.words(start + 8 * frame.code.locals, top - frame.code.locals)

    def local(self, frame: CodeFrame, name: str) -> int:
        """Return a local variable of a frame, 0 if it has none of that name."""
        at = frame.code.names.get(name)
        return 0 if at is None else self.memory.word(frame.address + self.at.locals + 8 * at)

    def _code(self, address: int) -> Code:
        if address not in self._codes:
            at = self.at
            self._codes[address] = Code(
                self.string(self.memory.word(address + at.names[0])),
                self.string(self.memory.word(address + at.names[1])),
                self.memory.integer(address + at.first_line),
                self.memory.integer(address + at.locals_count),
                self._bytes(self.memory.word(address + at.lines)),
                self._bytes(self.memory.word(address + at.exceptions)),
                address + at.bytecode,
                self._names(self.memory.word(address + at.locals_names)),
            )
        return self._codes[address]

    def _names(self, names: int) -> Mapping[str, int]:
        count = min(self.memory.word(names + 16), 1000)
        return {self.string(each): at for at, each in enumerate(self.memory.words(names + 24, count))} if count else {}

    def _bytes(self, address: int) -> bytes:
        size = self.memory.word(address + 16)
        if size > _LONGEST:
            raise OSError("no bytes")
        return self.memory.read(address + 32, size)


class Code(NamedTuple):
    """What is needed of a code object. Positions count units of two bytes."""

    file: str
    name: str
    first_line: int
    locals: int
    lines: bytes
    exceptions: bytes
    bytecode: int
    names: Mapping[str, int]  # of local variables, with their positions

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
