"""How processes that were started separately, and know only a store of torch.distributed, come to share memory.

    rank 0    makes the memory, listens on a socket that has a name but no file, and puts the name into the store
    others    connect
    all       put into the store whether they can take part, and read what the others put there
    rank 0    hands the descriptors to each process that connected; the kernel says which process that is, and on both
              sides of which user

The outcome is the same on all ranks: either all share the memory, or none does and all have the same reason.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import RankMissing

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

CREDENTIALS = struct.Struct("3i")  # process, user, group


class Shared(NamedTuple):
    """What all ranks have in common after a rendezvous."""

    descriptors: list[int]
    #: What rank 0 said about them.
    said: Any
    #: The process of each rank.
    pids: list[int]


class Rendezvous(NamedTuple):
    """Where ranks find each other, and for how long each waits for the others."""

    store: Store
    rank: int
    ranks: int
    seconds: float
    what: str  # what is waited in, for messages

    def share(
        self,
        make: Callable[[], tuple[list[int], Any]],
        refuse: Callable[[Any], str] = lambda said: "",
        unfit: str = "",
    ) -> Shared | str:
        """Share what rank 0 makes.

        Args:
            make: called on rank 0; returns descriptors, and something that JSON can carry.
            refuse: called on the others with what rank 0 said; returns why this rank cannot take part, or nothing.
            unfit: why this process cannot take part, whatever rank 0 says.

        Returns:
            Descriptors, words and processes; or the reason why there are none, the same on all ranks.
        """
        unfit = f"rank {self.rank} {unfit}" if unfit else ""
        return self._host(make, unfit) if self.rank == 0 else self._visit(refuse, unfit)

    def forget(self) -> None:
        """Delete what was put into the store, so that a later rendezvous over the same store does not read it."""
        for key in ("place", *(f"{what} {rank}" for rank in range(self.ranks) for what in ("rank", "read"))):
            self.store.delete_key(key)

    def _host(self, make: Callable[[], tuple[list[int], Any]], unfit: str) -> Shared | str:
        """Rank 0's part."""
        with _socket(self.seconds) as listener:
            descriptors, message = ([], None) if unfit else make()
            # An abstract name leaves no file behind, and none can be
            # guessed; who connects is asked for its user all the same.
            listener.bind("\0paceline-" + secrets.token_hex(16))
            listener.listen(self.ranks)
            place = {"machine": machine(), "listener": listener.getsockname().decode(), "said": message}
            self._put("place", {} if unfit else {**place, "count": len(descriptors)})
            answers, trouble = self._agree(unfit)
            if trouble:
                self._wait_until_read()
                _close(descriptors)
                return trouble
            pids = [answer["process"] for answer in answers]
            self._hand_out(listener, set(pids[1:]), descriptors)
        return Shared(descriptors, message, pids)

    def _hand_out(self, listener: socket.socket, awaited: set[int], descriptors: list[int]) -> None:
        while awaited:
            try:
                visitor, _ = listener.accept()
            except TimeoutError:
                raise RankMissing(f"process {min(awaited)} did not connect within {self.seconds:g} s") from None
            with visitor:
                process, user = _other_end(visitor)
                if process in awaited and user == os.geteuid():
                    socket.send_fds(visitor, [b"!"], descriptors)
                    awaited.remove(process)

    def _visit(self, refuse: Callable[[Any], str], unfit: str) -> Shared | str:
        """The part of every other rank."""
        place = self._get("place", 0)
        with _socket(self.seconds) as visitor:
            trouble = unfit or (self._trouble(place, visitor, refuse) if place else "")
            answers, trouble = self._agree(trouble)
            if trouble:
                return trouble
            try:
                _, descriptors, _, _ = socket.recv_fds(visitor, 1, place["count"])
            except OSError as error:
                raise self._missing(0) from error
        if len(descriptors) < place["count"]:  # rank 0 has ended meanwhile
            raise self._missing(0)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return Shared(list(descriptors), place["said"], [answer["process"] for answer in answers])

    def _trouble(self, place: dict[str, Any], visitor: socket.socket, refuse: Callable[[Any], str]) -> str:
        """Why this rank cannot share what rank 0 has made."""
        if place["machine"] != machine():
            return f"rank {self.rank} is on another machine, in another container or of another user than rank 0"
        try:
            visitor.connect(place["listener"].encode())
        except OSError as error:
            return f"rank {self.rank} cannot connect to rank 0 ({error.strerror})"
        if (user := _other_end(visitor)[1]) != os.geteuid():  # a user who can write to the store can name a listener
            return f"rank {self.rank} finds a process of another user (uid {user}) in the place of rank 0"
        return refuse(place["said"])

    def _agree(self, trouble: str) -> tuple[list[dict[str, Any]], str]:
        """Return what all ranks have answered, and the first trouble among it."""
        self._put(f"rank {self.rank}", {"process": os.getpid(), "trouble": trouble})
        # All ranks see the same answers, and so come to the same decision without another round.
        answers = [self._get(f"rank {other}", other) for other in range(self.ranks)]
        self._put(f"read {self.rank}", {})
        return answers, next((answer["trouble"] for answer in answers if answer["trouble"]), "")

    def _wait_until_read(self) -> None:
        """Let the others read the trouble before this process, with which the store may live, ends."""
        with suppress(RuntimeError):  # of a rank that died meanwhile
            self.store.wait([f"read {other}" for other in range(self.ranks)], timedelta(seconds=self.seconds))

    def _put(self, key: str, value: dict[str, Any]) -> None:
        self.store.set(key, json.dumps(value))

    def _get(self, key: str, other: int) -> Any:
        """Wait for what another rank puts into the store."""
        try:
            self.store.wait([key], timedelta(seconds=self.seconds))
        except RuntimeError as error:  # of PyTorch's several kinds
            raise self._missing(other) from error
        return json.loads(self.store.get(key))

    def _missing(self, other: int) -> RankMissing:
        return RankMissing(
            f"rank {self.rank} waited in {self.what} for rank {other}, which did not come within {self.seconds:.1f} s. "
            f"Look at what rank {other} printed last"
        )


def machine() -> str:
    """Processes with the same answer can see each other's sockets and process numbers, and share descriptors."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"


def _socket(seconds: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(seconds)
    return connection


def _other_end(connected: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as they were when it connected or began to listen."""
    answer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, user, _ = CREDENTIALS.unpack(answer)
    return process, user


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
