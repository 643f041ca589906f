"""The threads and stacks of a Java virtual machine: who waits to enter a monitor, who is in it, who joins whom.

HotSpot describes its own structures in a table, for debuggers, so that no layout need be known; it is read from memory
while the program runs, as Python's state is.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.watcher.processes.interpreter import image
from paceline.concurrency.watcher.processes.memory import ProcessMemory, mappings, symbol
from paceline.concurrency.watcher.samples import Frame, Process, Snapshot, Stack, Thread

#: The virtual machine's own threads, as the kernel cuts their names. None of them ends a wait of the program's threads,
#: but for a wait that a signal may end.
_OWN = (
    "VM Thread",
    "VM Periodic Tas",
    "VM Operation Di",
    "GC Thread#",
    "G1 ",
    "ParGC",
    "Shenandoah",
    "ZDriver",
    "ZDirector",
    "ZStat",
    "ZWorker",
    "XDriver",
    "XDirector",
    "XWorker",
    "RuntimeWorker",
    "Reference Handl",
    "Finalizer",
    "Signal Dispatch",
    "Service Thread",
    "Monitor Deflati",
    "C1 CompilerThre",
    "C2 CompilerThre",
    "Sweeper thread",
    "Common-Cleaner",
    "Notification Th",
    "Attach Listener",
    "JFR ",
    "StringDedup",
)
_TABLE, _STRIDE = "gHotSpotVMStructs", "gHotSpotVMStructEntryArrayStride"
_COLUMNS = tuple(
    f"gHotSpotVMStructEntry{each}Offset" for each in ("TypeName", "FieldName", "TypeString", "Offset", "Address")
)
_MOST_FIELDS, _MOST_THREADS = 10_000, 5000


class JavaThreads(NamedTuple):
    """What the virtual machine says of its threads."""

    inside: Mapping[int, int]  # by thread that waits to enter a monitor: the thread that is in it
    joined: Mapping[int, int]  # by thread that joins another: that one
    main: int  # the thread that the program began with; 0 if it has ended


class _Field(NamedTuple):
    kind: str  # its type
    offset: int  # in an object
    address: int  # of a static field


def is_own_thread(pid: int, tid: int) -> bool:
    """Whether a thread serves the virtual machine and runs no code of the program, but for what signals start."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text(encoding="utf-8").startswith(_OWN)
    return False


def is_java(pid: int) -> bool:
    """Whether a process is a Java virtual machine."""
    with suppress(OSError):
        return bool(_library(os.readlink(f"/proc/{pid}/exe")))
    return False


def read_java(pid: int) -> JavaThreads | None:
    """Read the threads of a Java virtual machine; None if a process is none, or may not be read."""
    with suppress(OSError, struct.error, LookupError):
        fields = _table(pid, image(pid))
        memory = ProcessMemory(pid)
        try:
            return _threads(memory, fields, _main(pid))
        finally:
            memory.close()
    return None


def _main(pid: int) -> int:
    """Return the main thread: the launcher starts it first, and it keeps the launcher's name."""
    others = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid)
    return others[0] if others and not is_own_thread(pid, others[0]) else 0


@lru_cache(maxsize=256)
def _library(program: str) -> str:
    """Return the library of the virtual machine that a program of a JDK loads; empty if it is none of those."""
    home = Path(program).parents[1] if len(Path(program).parents) > 1 else Path(program)
    candidates = (home / part / "server" / "libjvm.so" for part in ("lib", "lib/amd64", "jre/lib/amd64"))
    return next((str(each) for each in candidates if each.exists()), "")


@lru_cache(maxsize=256)
def _table(pid: int, _image: str) -> Mapping[str, _Field]:
    """Return the wanted fields of the structures of a virtual machine, by their names; what is raised is not kept."""
    library = next((each for each in mappings(pid) if each.path.endswith("/libjvm.so") and not each.offset), None)
    if library is None:
        raise LookupError("no virtual machine")
    memory = ProcessMemory(pid)
    try:

        def value(name: str) -> int:
            address = symbol(f"/proc/{pid}/root{library.path}", name)
            if address is None:
                raise LookupError(name)
            return memory.word(address[0] + library.begin)

        fields = dict(_fields(memory, value(_TABLE), value(_STRIDE), tuple(map(value, _COLUMNS))))
    finally:
        memory.close()
    if not {name for _, name in _WANTED} <= set(fields):
        raise LookupError("another virtual machine, or one that is being loaded")
    return fields


_WANTED = frozenset(
    {
        ("ThreadsSMRSupport", "_java_thread_list"),
        ("ThreadsList", "_length"),
        ("ThreadsList", "_threads"),
        ("OSThread", "_thread_id"),
        ("ObjectMonitor", "_owner"),
        ("ObjectMonitor", "_object"),
        *(
            (kind, name)
            for kind in ("Thread", "JavaThread")
            for name in (
                "_osthread",
                "_threadObj",
                "_stack_base",
                "_stack_size",
                "_current_pending_monitor",
                "_current_waiting_monitor",
            )
        ),
    }
)


def _fields(memory: ProcessMemory, table: int, stride: int, columns: tuple[int, ...]) -> Iterator[tuple[str, _Field]]:
    for number in range(_MOST_FIELDS):
        at = table + stride * number
        owner, name, kind, offset, address = (memory.word(at + column) for column in columns)
        if not owner or not name:
            return
        if (memory.text(owner), text := memory.text(name)) in _WANTED:
            yield text, _Field(memory.text(kind) if kind else "", offset, address)


class _JavaThread(NamedTuple):
    tid: int
    address: int
    stack: tuple[int, int]
    enters: int  # the monitor that it waits to enter
    waits: int  # the monitor in which it waits to be notified
    object: int  # the object of Java that stands for the thread


def _threads(memory: ProcessMemory, fields: Mapping[str, _Field], main: int) -> JavaThreads:
    listed = memory.word(fields["_java_thread_list"].address)
    count = memory.integer(listed + fields["_length"].offset)
    first = memory.word(listed + fields["_threads"].offset)
    addresses = memory.words(first, min(count, _MOST_THREADS)) if count > 0 else ()
    threads = [_thread(memory, each, fields) for each in addresses]
    objects = {each.object: each.tid for each in threads if each.object}
    inside, joined = {}, {}
    for each in threads:
        if each.enters and (owner := _owner(memory.word(each.enters + fields["_owner"].offset), threads)):
            inside[each.tid] = owner
        elif each.waits and (ending := objects.get(_object(memory, each.waits, fields["_object"], _by_handle(fields)))):
            joined[each.tid] = ending
    return JavaThreads(inside, joined, main)


def _thread(memory: ProcessMemory, address: int, fields: Mapping[str, _Field]) -> _JavaThread:
    def value(name: str) -> int:
        return memory.word(address + fields[name].offset)

    return _JavaThread(
        memory.integer(value("_osthread") + fields["_thread_id"].offset),
        address,
        (value("_stack_base") - value("_stack_size"), value("_stack_base")),
        value("_current_pending_monitor"),
        value("_current_waiting_monitor"),
        _object(memory, address, fields["_threadObj"], _by_handle(fields)),
    )


def _object(memory: ProcessMemory, address: int, field: _Field, by_handle: bool) -> int:
    """Return the object that a field leads to, by a handle in newer versions: collectors move objects."""
    place = memory.word(address + field.offset)
    return memory.word(place) if place and by_handle else place


def _by_handle(fields: Mapping[str, _Field]) -> bool:
    """Whether this version refers to objects by handles; that of a monitor has no type in the table."""
    return "Handle" in fields["_threadObj"].kind


def _owner(value: int, threads: list[_JavaThread]) -> int:
    """Return the thread that an owner of a monitor stands for: its address, or a place in its stack."""
    return next((t.tid for t in threads if value == t.address or t.stack[0] <= value < t.stack[1]), 0)


# Stacks of a Java virtual machine, asked for as the JDK's own `jstack` does: by the socket that it opens for tools.
# A virtual machine is only asked when a hang is suspected. It then starts one thread that serves such requests.

_REQUEST = b"1\0threaddump\0-l\0\0\0"
_PATIENCE, _LONGEST = 1.0, 1 << 24  # seconds, bytes
_HEAD = re.compile(r'^"(?P<name>.*)".* nid=(?P<number>0x[0-9a-f]+|\d+) ', re.M)
_FRAME = re.compile(r"^\s+at (?:[\w.@-]*/+)*(?P<function>[^(\s/]+)\((?:[^)/]*/)?(?P<place>[^)]*)\)", re.M)
_PARKS = re.compile(r"- parking to wait for\s+<(0x[0-9a-f]+)>")
_SYNCHRONIZER = re.compile(r"^\s+- <(0x[0-9a-f]+)>", re.M)
_JDK = ("java.", "jdk.", "sun.")


class JavaThread(NamedTuple):
    """One thread of a dump."""

    tid: int
    stack: Stack
    parks: str  # the synchronizer that it waits for; empty if it waits for none
    holds: frozenset[str]  # synchronizers, such as a ReentrantLock's


def with_java_stacks(snapshot: Snapshot, pids: Iterable[int]) -> Snapshot:
    """Return a snapshot with the stacks of virtual machines, and the threads that hold their library's locks."""
    machines = {pid: threads for pid in pids if is_java(pid) and (threads := parse(ask(pid)))}
    return replace(
        snapshot,
        processes=tuple(_with_owners(p, machines[p.pid]) if p.pid in machines else p for p in snapshot.processes),
    )


def _with_owners(process: Process, dump: list[JavaThread]) -> Process:
    holders = {each: thread.tid for thread in dump for each in thread.holds}
    owners = {thread.tid: holders[thread.parks] for thread in dump if thread.parks in holders}
    threads = tuple(_owned(each, owners.get(each.tid, 0)) for each in process.threads)
    return replace(
        process,
        threads=threads,
        stacks=tuple(each.stack for each in dump),
        tids=tuple(each.tid for each in dump),
    )


def _owned(thread: Thread, owner: int) -> Thread:
    if not owner or thread.wait.kind != "lock" or thread.wait.owners:
        return thread
    return thread._replace(wait=thread.wait._replace(owners=(owner,)))


def ask(pid: int) -> str:
    """Return what a virtual machine says of its threads; empty if it does not answer."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as tool:
        tool.settimeout(_PATIENCE)
        place = _socket(pid)
        if not place:
            return ""
        tool.connect(place)
        tool.sendall(_REQUEST)
        data = b""
        while (more := tool.recv(1 << 16)) and len(data) < _LONGEST:
            data += more
        return data.decode(errors="replace")
    return ""


def _socket(pid: int) -> str:
    """Return where a virtual machine serves tools; it is asked to by a file and SIGQUIT if it does not yet."""
    inside = _number_inside(pid)
    place, request = Path(f"/proc/{pid}/root/tmp/.java_pid{inside}"), Path(f"/proc/{pid}/cwd/.attach_pid{inside}")
    if place.exists():
        return str(place)
    if not _may_be_asked(pid):
        return ""
    request.touch()
    try:
        os.chown(request, *(os.stat(f"/proc/{pid}").st_uid, -1))
        os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + _PATIENCE
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        request.unlink(missing_ok=True)
    return str(place) if place.exists() else ""


def _may_be_asked(pid: int) -> bool:
    """Whether the signal means a question: one that does not handle it is ended by it, or one that serves no tools."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    handled = int(re.findall(r"^SigCgt:\s+(\w+)", status, re.M)[0], 16)
    refuses = b"+DisableAttachMechanism" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return handled >> (signal.SIGQUIT - 1) & 1 == 1 and not refuses


def _number_inside(pid: int) -> int:
    """Return the number that a process has for itself, in a container, say."""
    numbers = re.findall(r"^NSpid:.*?(\d+)$", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.M)
    return int(numbers[0]) if numbers else pid


def parse(dump: str) -> list[JavaThread]:
    """Parse a dump of threads."""
    heads = list(_HEAD.finditer(dump))
    ends = [*(head.start() for head in heads[1:]), len(dump)]
    return [_parsed(head, dump[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _parsed(head: re.Match[str], text: str) -> JavaThread:
    stack = tuple(_frames(text)) or (Frame("<java>", 0, head["name"]),)
    waited, section = _PARKS.search(text), text.partition("Locked ownable synchronizers:")[2]
    return JavaThread(
        int(head["number"], 0), stack, waited[1] if waited else "", frozenset(_SYNCHRONIZER.findall(section))
    )


def _frames(text: str) -> Iterator[Frame]:
    for each in _FRAME.finditer(text):
        file, _, line = each["place"].partition(":")
        is_internal = each["function"].startswith(_JDK)
        yield Frame(f"<{file}>" if is_internal else file, int(line) if line.isdecimal() else 0, each["function"])
