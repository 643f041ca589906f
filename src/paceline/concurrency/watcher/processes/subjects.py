"""What the variables of a thread that hangs name: the object that it waits for, its state, and who holds it.

Read once, when a hang is reported: the names of variables are searched for in the frames nearest to the wait.
"""

from __future__ import annotations

import linecache
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from paceline.concurrency.watcher.processes.holders import address, file_of
from paceline.concurrency.watcher.processes.interpreter import TORN, ThreadReader
from paceline.concurrency.watcher.processes.objects import CodeFrame, Objects
from paceline.concurrency.watcher.processes.possessors import Possessors, has_dictionary, is_lock, semaphore_of
from paceline.concurrency.watcher.ranks import place_of
from paceline.concurrency.watcher.samples import Frame, Process, Snapshot, Subject, users_line
from paceline.concurrency.watcher.waits import call_of

#: Frames outside Python's library in which a name is searched for, and parts of a container that are compared.
_NEAR, _MOST_PARTS = 4, 64
_CELL_CONTENT = 16  # PyCellObject.ob_ref
_LOCK_TYPES = {"lock": "threading.Lock", "RLock": "threading.RLock", "SimpleQueue": "queue.SimpleQueue"}
_SOCKET = re.compile(r"\bsocket (\d+)")
_FROZEN = "<frozen importlib._bootstrap>"


class _Found(NamedTuple):
    """An object that a function of Python's library waits for."""

    kind: str  # of what could end the wait
    words: str  # with `{}` where its name stands
    value: int  # its address
    futex: int = 0  # where its lock lies, if it has one


def with_subjects(snapshot: Snapshot, pids: Iterable[int]) -> Snapshot:
    """Return a snapshot in which the threads of some processes say what they wait for in the program's own words."""
    targets = set(pids)
    possessors = Possessors(snapshot)
    try:
        processes = tuple(
            _owned(replace(each, subjects=tuple(_subjects(each, possessors)))) if each.pid in targets else each
            for each in snapshot.processes
        )
    finally:
        possessors.close()
    return replace(snapshot, processes=processes)


def _owned(process: Process) -> Process:
    """Return a process whose waits name the threads that alone can end them, where an object does so."""
    owners = {each.tid: (each.owner,) for each in process.subjects if each.owner}
    threads = (t._replace(wait=t.wait._replace(owners=owners.get(t.tid, t.wait.owners))) for t in process.threads)
    return replace(process, threads=tuple(threads))


def _subjects(process: Process, possessors: Possessors) -> Iterator[Subject]:
    reader = possessors.reader(process.pid)
    names: dict[int, str] = {}
    states: dict[int, int] = {}
    if reader is not None:
        with suppress(*TORN, LookupError):
            states = {reader.tid(state): state for state in reader.states()}
            names = dict(reader.thread_names())
    for thread in process.threads:
        place = place_of(process) if thread.tid == process.pid and process.rank is not None else None
        subject = Subject(
            thread.tid,
            "" if thread.tid == process.pid else names.get(thread.tid, ""),
            what=_SOCKET.sub(lambda found: address(int(found[1])), thread.wait.on),
            text=_text(process.pid, users_line(process.stack_of(thread.tid))),
            call=_text(process.pid, place.at) if place is not None else "",
        )
        if reader is not None and thread.tid in states:
            with suppress(*TORN, LookupError):
                frames = list(reader.frames(states[thread.tid]))
                subject = _with_object(subject, process, reader, frames, possessors)
        yield subject


def _text(pid: int, frame: Frame | None) -> str:
    return linecache.getline(file_of(pid, frame.file), frame.line).strip() if frame is not None else ""


def _with_object(
    subject: Subject, process: Process, reader: ThreadReader, frames: list[CodeFrame], possessors: Possessors
) -> Subject:
    objects = reader.objects
    handler = _handler(objects, frames)
    call = call_of(process.pid, subject.tid)
    futex = call.arguments[0] if call is not None and call.name == "futex" else 0
    resource = _of_library(objects, frames, futex)
    ours = [frame for frame in frames if not _frame(frame).standard][:_NEAR]
    if resource is None and futex:
        resource = _of_variables(objects, ours, futex)
    elif resource is not None:
        target = resource.value
        resource = resource._replace(words=resource.words.format(_named(objects, ours, lambda each: each == target)[0]))
    if resource is None:
        return subject._replace(handler=handler)
    wait = next(each.wait for each in process.threads if each.tid == subject.tid)
    # Where the kernel or the interpreter has named the owner, nothing in memory says it better.
    owner, holder = (0, "") if wait.owners else possessors.of(process, resource.kind, resource.value, resource.futex)
    what = " ".join(resource.words.split()).replace(" ,", ",")
    return subject._replace(kind=resource.kind, what=what, holder=holder, handler=handler, owner=owner)


def _of_variables(objects: Objects, frames: Sequence[CodeFrame], futex: int) -> _Found | None:
    """Return the lock at a futex that a variable of one of some frames has: its own method waits, which is no frame."""
    name, value = _named(objects, frames, lambda each: is_lock(objects, each, futex))
    if value:
        kind = objects.type_of(value).rpartition(".")[2]
        return _Found("get" if kind == "SimpleQueue" else "lock", f"{_LOCK_TYPES[kind]} {name}", value, futex)
    name, value = _named(objects, frames, lambda each: semaphore_of(objects, each) == futex)
    resource = _of_multiprocessing(objects, value, futex) if value else None
    return resource and resource._replace(words=resource.words.format(name))


def _frame(frame: CodeFrame) -> Frame:
    return Frame(frame.code.file, 0, frame.code.name)


def _of_library(objects: Objects, frames: Sequence[CodeFrame], futex: int) -> _Found | None:
    """Return what the outermost function of Python's library waits for that a thread is in."""
    resource = None
    for frame in frames:
        if not _frame(frame).standard:
            break
        reads = _READERS.get((os.path.basename(frame.code.file), frame.code.name))
        instance = objects.local(frame, "self") if reads else 0
        if reads is not None and instance:
            with suppress(*TORN, KeyError):
                resource = reads(objects, instance, futex) or resource
    return resource


def _number(objects: Objects, instance: int, name: str) -> int:
    return objects.number(objects.attributes(instance).get(name, 0))


def _of_threading(objects: Objects, instance: int, futex: int) -> _Found | None:
    """Return an object of threading: or of multiprocessing, whose classes have the same names."""
    kind, attributes = objects.type_of(instance), objects.attributes(instance)
    if kind == "Barrier" and "_parties" in attributes and "_count" in attributes:
        parties, arrived = (_number(objects, instance, name) for name in ("_parties", "_count"))
        return _Found("barrier", f"threading.Barrier {{}}, {arrived} of {parties} arrived", instance)
    if kind in ("Semaphore", "BoundedSemaphore"):
        slots = objects.number(attributes["_value"])
        most = f" of {objects.number(attributes['_initial_value'])}" if "_initial_value" in attributes else ""
        return _Found("semaphore", f"threading.{kind} {{}}, {max(slots, 0)}{most} slots", instance)
    if kind == "Event":
        return _Found("event", "threading.Event {}, not set", instance)
    if kind == "Condition" and "_waiters" in attributes:
        if futex and is_lock(objects, attributes["_lock"], futex):
            return _Found("lock", "the lock of threading.Condition {}", attributes["_lock"], futex)
        return _Found("condition", "threading.Condition {}", instance)
    if "_started" in attributes and "_name" in attributes:
        return _Found("thread", f"the end of thread {objects.string(attributes['_name'])}", instance)
    return None


def _of_multiprocessing(objects: Objects, instance: int, futex: int) -> _Found | None:
    kind, attributes = objects.type_of(instance), objects.attributes(instance)
    if kind == "Event" or (kind == "Condition" and "_wait_semaphore" in attributes):
        return _Found(kind.lower(), f"multiprocessing.{kind} {{}}{', not set' * (kind == 'Event')}", instance)
    if handle := semaphore_of(objects, instance):
        what = "shared lock" if kind.endswith("Lock") else "semaphore"
        return _Found(what, f"multiprocessing.{kind} {{}}{', 0 slots' * (what == 'semaphore')}", instance, handle)
    return None


def _queue(method: str) -> Callable[[Objects, int, int], _Found | None]:
    def read(objects: Objects, instance: int, futex: int) -> _Found | None:
        kind, attributes = objects.type_of(instance), objects.attributes(instance)
        module = "queue" if "unfinished_tasks" in attributes else "multiprocessing"
        state = ""
        if module == "queue":
            state = {
                "get": ", empty",
                "put": f", full with {_number(objects, instance, 'maxsize')}",
                "join": f", {_number(objects, instance, 'unfinished_tasks')} unfinished",
            }[method]
        return _Found("task_done" if method == "join" else method, f"{module}.{kind}.{method} {{}}{state}", instance)

    return read


def _future(objects: Objects, instance: int, _futex: int) -> _Found | None:
    state = objects.string(objects.attributes(instance)["_state"]).lower()
    return _Found("future", f"Future.result {{}}, {state}", instance)


def _import(objects: Objects, instance: int, _futex: int) -> _Found | None:
    name = objects.string(objects.attributes(instance)["name"])
    return _Found("import", f"the import of {name}", instance)


def _process(objects: Objects, instance: int, _futex: int) -> _Found | None:
    attributes = objects.attributes(instance)
    pid = _number(objects, attributes["_popen"], "pid")
    return _Found("child", f"the end of process {objects.string(attributes['_name'])} (pid {pid})", instance)


def _program(kind: str) -> Callable[[Objects, int, int], _Found | None]:
    words = "the end" if kind == "child" else "the output"

    def read(objects: Objects, instance: int, _futex: int) -> _Found | None:
        return _Found(kind, f"{words} of subprocess.Popen {{}} (pid {_number(objects, instance, 'pid')})", instance)

    return read


_READERS: dict[tuple[str, str], Callable[[Objects, int, int], _Found | None]] = {
    **{("threading.py", name): _of_threading for name in ("wait", "_wait", "_enter", "acquire", "__enter__", "join")},
    ("threading.py", "_wait_for_tstate_lock"): _of_threading,
    **{("synchronize.py", name): _of_multiprocessing for name in ("wait", "__enter__", "acquire")},
    **{(file, name): _queue(name) for file in ("queue.py", "queues.py") for name in ("get", "put", "join")},
    **{("_base.py", name): _future for name in ("result", "exception")},
    (_FROZEN, "acquire"): _import,
    ("process.py", "join"): _process,
    ("subprocess.py", "wait"): _program("child"),
    ("subprocess.py", "communicate"): _program("pipe"),
}


def _handler(objects: Objects, frames: Sequence[CodeFrame]) -> str:
    """Return the handler of a signal that a thread runs, as its arguments say; "" if it runs none."""
    for frame in frames:
        with suppress(*TORN):
            values = [objects.local(frame, name) for name in list(frame.code.names)[:2]]
            if values and values[0] and objects.type_of(values[0]) == "tuple":
                values = [objects.item(values[0], at) for at in range(2)]
            number = objects.number(values[0]) if len(values) == 2 and all(values) else 0
            if number > 0 and objects.type_of(values[1]) == "frame":
                return f"{frame.code.name}, the handler of {_signal_name(number)}"
    return ""


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _named(objects: Objects, frames: Iterable[CodeFrame], matches: Callable[[int], bool]) -> tuple[str, int]:
    """Return the name of the first variable, attribute or item that matches, and its value; "" and 0 if none does."""
    for label, value in _candidates(objects, frames):
        with suppress(*TORN):
            if matches(value):
                return f"`{label}`", value
    return "", 0


def _candidates(objects: Objects, frames: Iterable[CodeFrame]) -> Iterator[tuple[str, int]]:
    """Iterate over variables and what they consist of.

    A global variable comes first, for each of several threads may call another object by the name of one parameter.
    """
    modules: dict[int, dict[str, int]] = {}
    for frame in frames:
        with suppress(*TORN):
            address = objects.memory.word(frame.address + objects.at.globals)
            modules.setdefault(address, dict(objects.items(address)))
    for variables in modules.values():
        yield from variables.items()
    for frame in frames:
        with suppress(*TORN):
            yield from _with_parts(objects, _locals(objects, frame))
    for variables in modules.values():
        yield from _with_parts(objects, variables)


def _locals(objects: Objects, frame: CodeFrame) -> dict[str, int]:
    variables = {name: objects.local(frame, name) for name in frame.code.names}
    for name, value in variables.items():
        if value and objects.type_of(value) == "cell":
            variables[name] = objects.memory.word(value + _CELL_CONTENT)
    return {name: value for name, value in variables.items() if value}


def _with_parts(objects: Objects, variables: dict[str, int]) -> Iterator[tuple[str, int]]:
    yield from variables.items()
    for name, value in variables.items():
        with suppress(*TORN):
            yield from _parts(objects, name, value)


def _parts(objects: Objects, name: str, value: int) -> Iterator[tuple[str, int]]:
    kind = objects.type_of(value)
    if kind in ("list", "tuple"):
        count = min(objects.memory.word(value + 16), _MOST_PARTS)
        first = objects.memory.word(value + 24) if kind == "list" else value + 24
        items = objects.memory.words(first, count) if count else ()
        yield from ((f"{name}[{at}]", each) for at, each in enumerate(items))
    elif kind == "dict":
        yield from ((f"{name}[{key!r}]", each) for key, each in list(objects.items(value).items())[:_MOST_PARTS])
    elif has_dictionary(objects, value):
        owner = kind if name in ("self", "cls") else name
        yield from ((f"{owner}.{attribute}", each) for attribute, each in objects.attributes(value).items())
