"""The loop of a process with a machine: what arrives is handled, and what the machine asks for is done."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from multiprocessing.connection import Connection
from queue import SimpleQueue
from time import monotonic
from typing import Protocol

from paceline.algorithms.cluster.messages import DESK, KINDS, Message, Process, Role, pack, unpack
from paceline.algorithms.cluster.outputs import Output, Send, Timing
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.frame import FIRST_KIND
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.links.tcp.hub import Arrived, Event, Gone, Hub, Received

NO_BODY = memoryview(b"")


class Machine(Protocol):
    """What all machines of `algorithms.cluster` have in common."""

    def handle(self, now: float, sender: Process, message: Message) -> list[Output]: ...

    def tick(self, now: float) -> list[Output]: ...

    def lost(self, now: float, process: Process) -> list[Output]: ...


class MachineHost(Protocol):
    """The process that a loop runs in: it holds what machines do not know."""

    def bodies(self, to: Process, message: Message, body: memoryview) -> Sequence[Buffer]:
        """Return what follows a message on the wire; `body` came with the message that the machine handled.

        It is not copied: before its owner changes it, `Hub.copy_queues` is to be called.
        """

    def carry_out(self, output: Output, body: memoryview) -> None:
        """Do what the machine asks for, apart from sending; `body` came with the message that it handled."""

    def handled(self, message: Message, body: memoryview) -> None:
        """Take note that the machine has handled a message, and that all it asked for is done."""

    def postpones(self, event: Received, message: Message) -> bool:
        """Whether a message waits until the process is ready for it; then `MachineLoop.take` gets its event again."""

    def other(self, sender: Process, kind: int, ints: tuple[int, ...], body: memoryview) -> None:
        """Take a frame that no machine knows."""

    def arrived(self, process: Process) -> None:
        """Take note of a process that is connected now."""

    def departed(self, process: Process, why: str) -> None:
        """Take note of a process that is connected no longer."""


class MachineLoop:
    """Runs one machine in one process."""

    def __init__(
        self, me: Process, machine: Machine, hub: Hub, owner: MachineHost, timing: Timing, desk: Address | None
    ) -> None:
        """`desk` is where the desk listens; None if this process is the desk."""
        self.me, self.machine, self.hub, self.owner, self.timing, self.desk = me, machine, hub, owner, timing, desk
        #: Where each server listens, as far as is known.
        self.addresses: dict[int, Address] = {}
        self._due = 0.0
        #: Where desks of later epochs listen, until the last one is dialled.
        self._moves: SimpleQueue[Address] = SimpleQueue()
        self._dial_desk()

    def follow_desk(self, pipe: Connection) -> None:
        """Dial the desk of each later epoch of which the agent tells."""

        def listen() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._moves.put(pipe.recv())
                    self.hub.wake()

        threading.Thread(target=listen, name="paceline-desk", daemon=True).start()

    def turn(self, timeout: float) -> None:
        """Handle what has arrived, after waiting for at most so many seconds, and do what is due."""
        while not self._moves.empty():
            self._move_desk(self._moves.get())
        for event in self.hub.poll(min(timeout, max(0.0, self._due - monotonic()))):
            self.take(event)
        now = monotonic()
        if now >= self._due:
            self._due = now + self.timing.heartbeat / 2
            self.perform(self.machine.tick(now))

    def perform(self, outputs: Sequence[Output], body: memoryview = NO_BODY) -> None:
        """Do what the machine asks for."""
        for output in outputs:
            if isinstance(output, Send):
                self.send(output.to, output.message, body)
            else:
                self.owner.carry_out(output, body)

    def send(self, to: Process, message: Message, body: memoryview = NO_BODY) -> None:
        """Send a message, if the process is connected; if not, the machine will send it again when that is of use."""
        kind, ints = pack(message)
        self.hub.post(peer_of(to), MESSAGES + kind, ints, self.owner.bodies(to, message, body), copy=False)

    def take(self, event: Event) -> None:
        """Handle one event."""
        if isinstance(event, Received):
            sender = process_of(event.peer)
            if event.kind == Other.ADDRESSES:
                self._learn(addresses_from_bytes(event.body))
            elif event.kind >= OTHER:
                self.owner.other(sender, event.kind, event.ints, event.body)
            else:
                message = unpack(event.kind - MESSAGES, event.ints)
                if self.owner.postpones(event, message):
                    return
                self.perform(self.machine.handle(monotonic(), sender, message), event.body)
                self.owner.handled(message, event.body)
        elif isinstance(event, Arrived):
            self.owner.arrived(process_of(event.peer))
        elif isinstance(event, Gone):
            process = process_of(event.peer)
            self._dial_again(process)
            if not event.left:
                self.owner.departed(process, event.why)
            self.perform(self.machine.lost(monotonic(), process))
        else:
            self._unreached(event.address)

    # Who dials whom: all dial the desk; workers and the head dial every server; a server dials those before it.

    # A process that is stopped answers no dial; so who could not be reached is dialled again, as long as the desk says
    # that it is there.

    def _dial_desk(self) -> None:
        if self.desk is not None:
            self.hub.dial(self.desk, self.timing.patience)

    def _move_desk(self, desk: Address) -> None:
        self.hub.leave(peer_of(DESK), self.desk)
        self.desk = desk
        self._dial_desk()
        self.perform(self.machine.lost(monotonic(), DESK))

    def _learn(self, addresses: dict[int, Address]) -> None:
        self.addresses, connected = addresses, self.hub.peers
        for number, address in addresses.items():
            if self._dials(number) and peer_of(Process(Role.SERVER, number)) not in connected:
                self.hub.dial(address, self.timing.patience)

    def _dials(self, server: int) -> bool:
        return self.me.role is not Role.SERVER or server < self.me.number

    def _dial_again(self, process: Process) -> None:
        if peer_of(process) in self.hub.peers:
            return  # another connection has taken the place of the one that ended: to dial would end that one, too
        if process.role is Role.DESK:
            self._dial_desk()
        elif process.role is Role.SERVER and process.number in self.addresses and self._dials(process.number):
            self.hub.dial(self.addresses[process.number], self.timing.patience)

    def _unreached(self, address: Address) -> None:
        if address == self.desk or address in self.addresses.values():
            self.hub.dial(address, self.timing.patience)


# --- Frames between the processes of servers: the machines' messages, and the few that no machine knows ---------------

#: Roles in handshakes: those of the machines' processes, after it.
ROLES = 16
#: The kinds of the machines' messages, then those below.
MESSAGES = FIRST_KIND
OTHER = FIRST_KIND + 128
assert len(KINDS) < OTHER - MESSAGES


class Other(IntEnum):
    """Frames that no machine knows."""

    #: A server tells the desk where it listens; the body is an address.
    LISTENING = OTHER
    #: The desk tells all where servers listen; the body is a table.
    ADDRESSES = OTHER + 1
    #: The desk tells the head how many batches are finished, how many workers there are, whether all is done,
    #: the shard that is lost, and whether nothing is leased.
    PROGRESS = OTHER + 2
    #: The desk tells the head about an event; the body is its record.
    EVENT = OTHER + 3
    #: The head asks a server for the pushes that its shard is made of, and for its version if it wants that, too.
    #: Asked: rows that the head has, their checksum, whether the version is wanted. Answered: the fields of
    #: `collector.Answer`; the body is the version, then the rows.
    HISTORY = OTHER + 4
    #: The head asks the desk to lease nothing new (1), or to go on (0).
    HOLD = OTHER + 5


def kind_of(message: type) -> int:
    """Return the kind of frames with this message."""
    return MESSAGES + KINDS.index(message)


@lru_cache(1024)  # asked for with every message
def peer_of(process: Process) -> Peer:
    return Peer(ROLES + process.role, process.number)


@lru_cache(1024)
def process_of(peer: Peer) -> Process:
    return Process(Role(peer.role - ROLES), peer.number)


def addresses_to_bytes(addresses: Mapping[int, Address]) -> bytes:
    return json.dumps({str(number): list(address) for number, address in addresses.items()}).encode()


def addresses_from_bytes(body: bytes | memoryview) -> dict[int, Address]:
    """Return where each server listens.

    Raises:
        ValueError: the bytes are no such table.
    """
    return {int(number): Address(str(host), int(port)) for number, (host, port) in json.loads(bytes(body)).items()}
