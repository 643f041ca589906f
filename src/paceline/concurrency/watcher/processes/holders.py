"""Which processes hold an end of a pipe, a socket or a piece of shared memory, on this machine."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from paceline.concurrency.watcher.processes.memory import Mapping, mappings
from paceline.concurrency.watcher.processes.sockets import listeners, peers, private_listeners, unix_sockets

_MASTERS = ("/dev/ptmx", "/dev/pts/ptmx")  # of pseudoterminals
_WRITE, _READ_WRITE = os.O_WRONLY, os.O_RDWR


class Holders:
    """One reading of the machine's file descriptors; each part is read when it is first asked for."""

    def __init__(self, tree: tuple[int, ...] = ()) -> None:
        self._tree = frozenset(tree)
        self._mapped: dict[int, tuple[Mapping, ...]] = {}
        self._maps: dict[int, bytes] = {}

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
    def _receivers(self) -> dict[int, set[int]]:
        """The processes that descriptors are on the way to, sent over a Unix socket and not received, and the senders.

        No senders are known of a socket whose other end is closed.
        """
        receivers: dict[int, set[int]] = defaultdict(set)
        for inode in unix_sockets():
            ends = self._ends.get(f"socket:[{inode}]")
            if ends and _sent(*ends[0]):
                senders = {
                    p for here, there in self._peers.items() if there == inode for p in self._holding_socket(here)
                }
                for pid, _ in ends:
                    receivers[pid] |= senders
        return receivers

    def _holding_socket(self, inode: int) -> set[int]:
        return {pid for pid, _ in self._ends.get(f"socket:[{inode}]", ())}

    def _receiving(self, target: str) -> set[int]:
        """Return the processes that may be about to receive an end: from the tree, or from one that has it open."""
        related = self._tree | {pid for pid, _ in self._ends.get(target, ())}
        return {pid for pid, senders in self._receivers.items() if not senders or senders & related}

    @cached_property
    def private_listeners(self) -> frozenset[int]:
        """The listening sockets that only processes of their own program connect to."""
        return private_listeners()

    @cached_property
    def locks(self) -> dict[int, list[tuple[int, str]]]:
        """Return by waiting process the holders of the fcntl and flock locks that it waits for, and the inode."""
        holders: dict[int, list[tuple[int, str]]] = defaultdict(list)
        holder: tuple[int, str] = (-1, "")
        with suppress(OSError):
            for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
                # "1: POSIX  ADVISORY  WRITE 77 fe:00:123 0 EOF", and below it "1: -> POSIX ..." for each that waits.
                fields = line.split()
                waits = fields[1] == "->"
                pid, file = int(fields[4 + waits]), fields[5 + waits].rpartition(":")[2]
                if waits:
                    holders[pid].append(holder)
                else:
                    holder = (pid, file)
        return holders

    @cached_property
    def held(self) -> dict[str, list[tuple[int, bool]]]:
        """Return by inode the processes that hold a lock on a file, and whether it keeps all others out."""
        holders: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        with suppress(OSError):
            for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
                fields = line.split()
                if fields[1] != "->" and int(fields[4]) > 0:
                    holders[fields[5].rpartition(":")[2]].append((int(fields[4]), fields[3] == "WRITE"))
        return holders

    def of_open_files(self, pid: int) -> tuple[int, ...]:
        """Return the processes that hold locks on files that a process has open; those alone that keep others out."""
        inodes = set()
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    if stat.S_ISREG(status.st_mode):
                        inodes.add(str(status.st_ino))
        return self._holding(inodes)

    def of_file(self, path: str) -> tuple[int, ...]:
        """Return the processes that hold a lock on a file; none if there is no such file."""
        with suppress(OSError):
            return self._holding({str(os.stat(path).st_ino)})
        return ()

    def _holding(self, inodes: set[str]) -> tuple[int, ...]:
        holders = [each for inode in inodes for each in self.held.get(inode, ())]
        return tuple(sorted({p for p, keeps_out in holders if keeps_out} or {p for p, _ in holders}))

    def reaching(self, pid: int, tree: tuple[int, ...]) -> tuple[int, ...]:
        """Return the processes that could change what a process sees: of its tree, or those that it is connected with.

        None if it has a socket of which the other end is not on this machine.
        """
        pids = set(tree) | {pid}
        for target in self._targets(pid):
            kind, _, inode = target.rstrip("]").partition(":[")
            if kind == "pipe":
                pids.update(self.of_pipe(target, to_write=True))
            elif kind == "socket":
                others = self.of_peer(int(inode))
                if not others:
                    return ()
                pids.update(others)
        for each in self._shared(pid):
            if each.rights[1] == "w":
                pids.update(self.of_memory(pid, each.begin))
        return tuple(sorted(pids))

    def _targets(self, pid: int) -> list[str]:
        """Return what the descriptors of a process refer to, but for its three standard streams."""
        return [target for target, held in self._ends.items() if any(p == pid and int(fd) > 2 for p, fd in held)]

    def of_pipe(self, target: str, to_write: bool) -> tuple[int, ...]:
        """Return the processes that can write to a pipe, or read from it, now or when they receive it."""
        modes = (_WRITE, _READ_WRITE) if to_write else (os.O_RDONLY, _READ_WRITE)
        return tuple(
            sorted({p for p, fd in self._ends.get(target, ()) if _mode(p, fd) in modes} | self._receiving(target))
        )

    def of_terminal(self, pid: int, fd: int, target: str) -> tuple[int, ...]:
        """Return the processes that hold the other end of a pseudoterminal; none if they are not of this machine."""
        if target not in _MASTERS:
            masters = [each for name in _MASTERS for each in self._ends.get(name, ())]
            return tuple(sorted({p for p, each in masters if f"/dev/pts/{_index(p, each)}" == target}))
        return tuple(sorted({p for p, _ in self._ends.get(f"/dev/pts/{_index(pid, str(fd))}", ())}))

    def serves(self, pid: int) -> bool:
        """Whether a process listens for connections."""
        return any(target.removeprefix("socket:[").rstrip("]") in self._listening for target in self._targets(pid))

    @cached_property
    def _listening(self) -> frozenset[str]:
        return frozenset(map(str, listeners()))

    def of_peer(self, inode: int) -> tuple[int, ...]:
        """Return the processes that hold the other end of a connected socket; none if it is not on this machine.

        Of a connection that is not accepted yet they are those that hold the listening socket.
        """
        other = self._peers.get(inode)
        return tuple(sorted(self._holding_socket(other) | self._receiving(f"socket:[{other}]"))) if other else ()

    def of_event(self, pid: int, fd: int) -> tuple[int, ...]:
        """Return the processes that have an event of the kernel open; itself alone if the kernel does not say it."""
        event = _event(pid, str(fd))
        ends = self._ends.get("anon_inode:[eventfd]", ()) if event else ()
        return tuple(sorted({pid, *(p for p, each in ends if _event(p, each) == event)}))

    def of_memory(self, pid: int, address: int) -> tuple[int, ...]:
        """Return the processes that share the mapped memory at an address of one of them."""
        place = self.place(pid, address)
        if place is None:
            return ()
        # Most processes do not map the file: a search for its inode in the text is much faster than parsing it.
        inode = f" {place[0].rpartition(':')[2]} ".encode()
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal() and inode in self._text(int(name))]
        return tuple(sorted(p for p in pids if any(m.file == place[0] for m in self._shared(p))))

    def place(self, pid: int, address: int) -> tuple[str, int] | None:
        """Return what an address of shared memory means in every process: the file and the position in it."""
        mapped = next((m for m in self._shared(pid) if m.begin <= address < m.end), None)
        return (mapped.file, address - mapped.begin + mapped.offset) if mapped else None

    def _text(self, pid: int) -> bytes:
        if pid not in self._maps:
            self._maps[pid] = b""
            with suppress(OSError):
                self._maps[pid] = Path(f"/proc/{pid}/maps").read_bytes()
        return self._maps[pid]

    def _shared(self, pid: int) -> tuple[Mapping, ...]:
        if pid not in self._mapped:
            self._mapped[pid] = tuple(each for each in mappings(pid) if each.rights[3] == "s")
        return self._mapped[pid]


def file_of(pid: int, path: str) -> str:
    """Return where this process finds a file that another one names, relative to its folder or within its root."""
    return f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}"


def _index(pid: int, fd: str) -> str:
    """Return the number of the terminal of which a descriptor is the master's end."""
    return _told(pid, fd, "tty-index:")


def _event(pid: int, fd: str) -> str:
    """Return the number of an event; empty if the kernel does not say it."""
    return _told(pid, fd, "eventfd-id:")


def _sent(pid: int, fd: str) -> bool:
    """Whether descriptors wait to be received from a socket, or from connections that it has to accept."""
    return _told(pid, fd, "scm_fds:") not in ("", "0")


def _mode(pid: int, fd: str) -> int:
    """Return how a descriptor was opened; for reading and writing if that cannot be known."""
    flags = _told(pid, fd, "flags:")
    return int(flags, 8) & os.O_ACCMODE if flags else _READ_WRITE


def _told(pid: int, fd: str, name: str) -> str:
    """Return what the kernel says of a descriptor; empty if it does not."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return line.split()[1]
    return ""
