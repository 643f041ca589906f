"""Which processes hold an end of a pipe, a socket or a piece of shared memory, on this machine."""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from paceline.concurrency.watcher.processes.memory import Mapping, mappings

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
                    p for local, remote in self._peers.items() if remote == inode for p in self._holding_socket(local)
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
                # A lock of an open file description has no process, and is shown with -1.
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
        # Who reads waits for the one that writes; only where no one writes may those that read be meant.
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
                # Whoever is at the other end may send anything.
                if not others:
                    return ()
                pids.update(others)
        for each in self._shared(pid):
            if each.rights[1] == "w":
                pids.update(self.of_memory(pid, each.begin))
        return tuple(sorted(pids))

    def _targets(self, pid: int) -> list[str]:
        """Return what the descriptors of a process refer to, but for its three standard streams."""
        return [target for target, holders in self._ends.items() if any(p == pid and int(fd) > 2 for p, fd in holders)]

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
    return _descriptor_field(pid, fd, "tty-index:")


def _event(pid: int, fd: str) -> str:
    """Return the number of an event; empty if the kernel does not say it."""
    return _descriptor_field(pid, fd, "eventfd-id:")


def _sent(pid: int, fd: str) -> bool:
    """Whether descriptors wait to be received from a socket, or from connections that it has to accept."""
    return _descriptor_field(pid, fd, "scm_fds:") not in ("", "0")


def _mode(pid: int, fd: str) -> int:
    """Return how a descriptor was opened; for reading and writing if that cannot be known."""
    flags = _descriptor_field(pid, fd, "flags:")
    return int(flags, 8) & os.O_ACCMODE if flags else _READ_WRITE


def _descriptor_field(pid: int, fd: str, name: str) -> str:
    """Return what the kernel says of a descriptor; empty if it does not."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return line.split()[1]
    return ""


# Which socket is connected to which on this machine: TCP by addresses, Unix sockets by sock_diag.
# The other end of a connection that has not been accepted yet is the listening socket: only a process that has it open
# can accept the connection, and then answer.

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP = 4, 20, 0x301
_SHOW, _PEER, _NOT_ACCEPTED = 4 | 8, 2, 3  # what is asked for: peers and waiting connections; their attributes
_DONE, _ERROR = 3, 2
_ESTABLISHED, _LISTENS = "01", "0A"
_ACCEPTS = "00010000"  # a flag of Unix sockets, as /proc/net/unix prints it
_PRIVATE = re.compile(r"/pymp-[^/]+/listener-[^/]+$")
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address within IPv6, as /proc/net/tcp6 prints it


def peers() -> dict[int, int]:
    """Return the inode of the other end, by the inode of each connected socket of this machine."""
    return _tcp_peers() | _unix_peers()


def unix_sockets() -> frozenset[int]:
    """Return all Unix sockets of this machine."""
    with suppress(OSError):
        return frozenset(
            int(line.split(maxsplit=7)[6])
            for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]
        )
    return frozenset()


def listeners() -> frozenset[int]:
    """Return the sockets of this machine that listen for connections."""
    inodes: set[int] = set()
    for file, state, listens, inode in (("tcp", 3, _LISTENS, 9), ("tcp6", 3, _LISTENS, 9), ("unix", 3, _ACCEPTS, 6)):
        with suppress(OSError):
            lines = Path(f"/proc/net/{file}").read_text(encoding="utf-8").splitlines()[1:]
            inodes |= {int(fields[inode]) for fields in map(str.split, lines) if fields[state] == listens}
    return frozenset(inodes)


def address(inode: int) -> str:
    """Return what a socket is connected to, in words."""
    for file in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{file}").read_text(encoding="utf-8").splitlines()[1:]:
                fields = line.split()
                if int(fields[9]) == inode:
                    listens = fields[3] == _LISTENS
                    return f"a connection {'at' if listens else 'to'} {_readable(fields[1 if listens else 2])}"
    return "a connection to a program of this machine"


def _readable(end: str) -> str:
    """Return an address as people write it, of one as /proc/net/tcp prints it: words of 32 bits, the low byte first."""
    host, _, port = _plain(end).partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    text = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))
    return f"{text}:{int(port, 16)}"


def private_listeners() -> frozenset[int]:
    """Return the sockets at which multiprocessing listens in a folder of its own, for processes of its own program."""
    with suppress(OSError):
        lines = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]]
        return frozenset(int(fields[6]) for fields in lines if len(fields) == 8 and _PRIVATE.search(fields[7]))
    return frozenset()


def _tcp_peers() -> dict[int, int]:
    by_ends: dict[tuple[str, str], int] = {}
    listening: dict[str, int] = {}
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(file).read_text(encoding="utf-8").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED:
                    by_ends[_plain(fields[1]), _plain(fields[2])] = int(fields[9])
                elif fields[3] == _LISTENS:
                    listening[_plain(fields[1])] = int(fields[9])
    peers = {inode: by_ends[remote, local] for (local, remote), inode in by_ends.items() if (remote, local) in by_ends}
    # An end that is not accepted yet belongs to no process: its inode is 0.
    waiting = {inode: _listener(remote, listening) for (_, remote), inode in by_ends.items() if peers.get(inode) == 0}
    return peers | waiting


def _listener(address: str, listening: dict[str, int]) -> int:
    """Return the socket that listens at an address, or at its port on all addresses; 0 if there is none."""
    host, port = address.split(":")
    everywhere = (f"{'0' * len(host)}:{port}", f"{'0' * 32}:{port}")
    return next((listening[each] for each in (address, *everywhere) if each in listening), 0)


def _plain(end: str) -> str:
    return end.removeprefix(_MAPPED)


def _unix_peers() -> dict[int, int]:
    """Dump all Unix sockets with their peers; empty where the kernel was built without unix_diag."""
    # nlmsghdr, then unix_diag_req: family, protocol, pad, states (all), inode (any), what to show, cookie.
    body = struct.pack("=BBHIIIQ", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW, 0xFFFFFFFFFFFFFFFF)
    request = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + body
    peers: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.send(request)
            while _take_messages(kernel.recv(1 << 16), peers):
                pass
    except OSError:
        return {}
    return peers


def _take_messages(data: bytes, peers: dict[int, int]) -> bool:
    """Add the peers that one answer of the kernel holds; return whether more answers follow."""
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if kind in (_DONE, _ERROR):
            return False
        (inode,) = struct.unpack_from("=I", data, 16 + 4)
        at = 16 + 16  # after unix_diag_msg
        while at + 4 <= length:
            size, attribute = struct.unpack_from("=HH", data, at)
            numbers = struct.unpack_from(f"={max(size - 4, 0) // 4}I", data, at + 4)
            if attribute == _PEER and numbers[0]:
                peers[inode] = numbers[0]
            elif attribute == _NOT_ACCEPTED:
                peers |= dict.fromkeys(numbers, inode)
            at += (size + 3) & ~3 or 4
        data = data[(length + 3) & ~3 :]
    return True
