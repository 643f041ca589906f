"""Stacks of a Java virtual machine, asked for as the JDK's own `jstack` does: by the socket that it opens for tools.

A virtual machine is only asked when a hang is suspected. It then starts one thread that serves such requests.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.watcher.processes.hotspot import is_java
from paceline.concurrency.watcher.samples import Frame, Process, Snapshot, Stack, Thread

_REQUEST = b"1\0threaddump\0-l\0\0\0"
_PATIENCE, _LONGEST = 1.0, 1 << 24  # seconds, bytes
_HEAD = re.compile(r'^"(?P<name>.*)".* nid=(?P<number>0x[0-9a-f]+|\d+) ', re.M)
_FRAME = re.compile(r"^\s+at (?:[\w.@-]*/+)*(?P<function>[^(\s/]+)\((?:[^)/]*/)?(?P<place>[^)]*)\)", re.M)
_PARKS = re.compile(r"- parking to wait for\s+<(0x[0-9a-f]+)>")
_SYNCHRONIZER = re.compile(r"^\s+- <(0x[0-9a-f]+)>", re.M)
_OWN = ("java.", "jdk.", "sun.")


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
        snapshot, processes=tuple(_told(p, machines[p.pid]) if p.pid in machines else p for p in snapshot.processes)
    )


def _told(process: Process, dump: list[JavaThread]) -> Process:
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
    return [_thread(head, dump[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _thread(head: re.Match[str], text: str) -> JavaThread:
    stack = tuple(_frames(text)) or (Frame("<java>", 0, head["name"]),)
    waited, section = _PARKS.search(text), text.partition("Locked ownable synchronizers:")[2]
    return JavaThread(
        int(head["number"], 0), stack, waited[1] if waited else "", frozenset(_SYNCHRONIZER.findall(section))
    )


def _frames(text: str) -> Iterator[Frame]:
    for each in _FRAME.finditer(text):
        file, _, line = each["place"].partition(":")
        is_internal = each["function"].startswith(_OWN)
        yield Frame(f"<{file}>" if is_internal else file, int(line) if line.isdecimal() else 0, each["function"])
