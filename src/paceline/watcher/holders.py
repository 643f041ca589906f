"""Which processes hold an end of a pipe, a socket or a piece of shared memory, on this machine."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from paceline.watcher.sockets import peers

_WRITE, _READ_WRITE = os.O_WRONLY, os.O_RDWR


class Holders:
    """One reading of the machine's file descriptors; each part is read when it is first asked for."""

    @cached_property
    def _ends(self) -> dict[str, list[tuple[int, str]]]:
        """Processes and descriptors, by what the descriptor refers to: "pipe:[4711]", "socket:[4712]"."""
        ends: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with suppress(OSError):
                        ends[os.readlink(f"/proc/{pid}/fd/{fd}")].append((int(pid), fd))
        return ends

    @cached_property
    def _peers(self) -> dict[int, int]:
        return peers()

    @cached_property
    def locks(self) -> dict[int, list[tuple[int, str]]]:
        """By waiting process: the holders of the fcntl and flock locks that it waits for, and the file's inode."""
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        holder: tuple[int, str] = (-1, "")
        with suppress(OSError):
            for line in Path("/proc/locks").read_text().splitlines():
                # "1: POSIX  ADVISORY  WRITE 77 fe:00:123 0 EOF", and below it "1: -> POSIX ..." for each that waits.
                fields = line.split()
                waits = fields[1] == "->"
                pid, file = int(fields[4 + waits]), fields[5 + waits].rpartition(":")[2]
                if waits:
                    found[pid].append(holder)
                else:
                    holder = (pid, file)
        return found

    def of_pipe(self, target: str, to_write: bool) -> tuple[int, ...]:
        """Return the processes that can write to a pipe, or those that can read from it."""
        wanted = (_WRITE, _READ_WRITE) if to_write else (os.O_RDONLY, _READ_WRITE)
        return tuple(sorted({pid for pid, fd in self._ends.get(target, ()) if _mode(pid, fd) in wanted}))

    def of_peer(self, inode: int) -> tuple[int, ...]:
        """Return the processes that hold the other end of a connected socket; none if it is not on this machine."""
        other = self._peers.get(inode)
        return tuple(sorted({pid for pid, _ in self._ends.get(f"socket:[{other}]", ())})) if other else ()

    def of_memory(self, pid: int, address: int) -> tuple[int, ...]:
        """Return the processes that share the mapped memory at an address of one of them."""
        mapped = next((m for m in _shared_mappings(pid) if m[0] <= address < m[1]), None)
        if mapped is None:
            return ()
        pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        return tuple(sorted(p for p in pids if any(m[2] == mapped[2] for m in _shared_mappings(p))))


def _mode(pid: int, fd: str) -> int:
    """Return how a descriptor was opened; for reading and writing if that cannot be known."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines():
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE
    return _READ_WRITE


def _shared_mappings(pid: int) -> list[tuple[int, int, str]]:
    """Return begin, end and file of each shared mapping of a process."""
    found = []
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, _, device, inode, *_ = line.split(None, 5)
            if rights[3] == "s":
                begin, end = span.split("-")
                found.append((int(begin, 16), int(end, 16), f"{device}:{inode}"))
    return found
