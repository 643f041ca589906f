"""The desk's process: the machine, the addresses of servers, and what the head wants to know."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from time import monotonic, time

from paceline.algorithms.cluster.desk import DeskMachine, Phase
from paceline.algorithms.cluster.messages import NONE, Message, Process, Role
from paceline.algorithms.cluster.outputs import Again, Changed, Finished, Lost, Output
from paceline.runtime.engines.cluster.servers.loop import (
    MachineLoop,
    Other,
    addresses_from_bytes,
    addresses_to_bytes,
    peer_of,
    process_of,
)
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.hub import Hub, Received
from paceline.runtime.runs.live import EventKind, ProcessKind, RunEvent
from paceline.runtime.runs.schema import to_dict

PROGRESS_SECONDS = 0.1
KINDS = {Role.SERVER: ProcessKind.SERVER, Role.WORKER: ProcessKind.WORKER}


class DeskProcess:
    """`loop.MachineHost` of the desk."""

    def __init__(self, machine: DeskMachine, hub: Hub, first: Collection[int] = (), deadline: float = 0.0) -> None:
        """`first` are the servers that hold the shards at version 0, of the first desk, and come within `deadline`."""
        self.machine, self.hub = machine, hub
        self.loop = MachineLoop(Process(Role.DESK, 0), machine, hub, self, machine.timing, None)
        #: Where each server listens that is connected.
        self.addresses: dict[int, Address] = {}
        self.finished = False
        #: The shard that no server holds any longer, or NONE.
        self.lost = NONE
        #: When the head was told of the progress, and whether all leases were drained then.
        self._reported, self._drained = 0.0, False
        #: Events that no head has been told of yet.
        self._unsent_events: list[RunEvent] = []
        #: The view of each shard that was established last, and whether the desk leases batches.
        self._served: dict[int, int] = {}
        self._leasing = False
        #: The first servers, as long as they have not come: to start one may take longer than a silence may last.
        self._starting = {Process(Role.SERVER, number) for number in first}
        self._patience = monotonic() + deadline

    def run(self) -> None:
        """Serve until this process is ended."""
        self.start()
        while True:
            self.turn()

    def start(self) -> None:
        """Propose the first views, or ask what servers hold."""
        self.loop.perform(self.machine.start(monotonic()))

    def turn(self) -> None:
        """Handle what has arrived, and say that all live who are connected or may still be starting."""
        self.loop.turn(PROGRESS_SECONDS)
        now = monotonic()
        self._watch()
        if now < self._patience:
            for process in self._starting:
                self.machine.alive_sign(now, process)
        for peer in self.hub.peers:  # the hub reports those that are silent
            self.machine.alive_sign(now, process_of(peer))
        if now - self._reported >= PROGRESS_SECONDS or self.machine.drained != self._drained:
            self._reported, self._drained = now, self.machine.drained
            self._progress()

    def bodies(self, to: Process, message: Message, body: memoryview) -> Sequence[Buffer]:
        return ()

    def carry_out(self, output: Output, body: memoryview) -> None:
        if isinstance(output, Finished):
            self.finished = True
            self._progress()
        elif isinstance(output, Changed | Again | Lost):
            self.lost = output.shard if isinstance(output, Lost) else self.lost
            self._note(_event(output))

    def handled(self, message: Message, body: memoryview) -> None:
        """Nothing has to be released."""

    def postpones(self, event: Received, message: Message) -> bool:
        return False

    def other(self, sender: Process, kind: int, ints: tuple[int, ...], body: memoryview) -> None:
        if kind == Other.LISTENING and sender.role is Role.SERVER:
            self.addresses |= addresses_from_bytes(body)
            self._broadcast_addresses()
        elif kind == Other.HOLD and sender.role is Role.HEAD:
            self.loop.perform(self.machine.hold(bool(ints[0])))

    def arrived(self, process: Process) -> None:
        self._starting.discard(process)
        self.hub.post(peer_of(process), Other.ADDRESSES, (), [addresses_to_bytes(self.addresses)])
        if process.role is Role.HEAD:
            for event in self._unsent_events:
                self._notify_heads(Other.EVENT, (), _packed(event))
            self._unsent_events.clear()

    def departed(self, process: Process, why: str) -> None:
        if process.role is Role.SERVER and process.number in self.addresses:
            del self.addresses[process.number]
            self._broadcast_addresses()  # no one dials it any longer; if it is alive, it says again where it listens
        if process.role in KINDS:
            kind, nodes = KINDS[process.role], self.machine.slots
            self._note(RunEvent(EventKind.LOST, time(), kind, process.number % nodes, process.number, why=why))

    def _note(self, event: RunEvent) -> None:
        """Tell the head of an event, as soon as it is connected."""
        if any(process_of(peer).role is Role.HEAD for peer in self.hub.peers):
            self._notify_heads(Other.EVENT, (), _packed(event))
        else:
            self._unsent_events.append(event)

    def _watch(self) -> None:
        """Note what has changed without the machine's saying so."""
        machine = self.machine
        for view in machine.views:
            if view.established and self._served.get(view.shard) != view.view.number:
                self._served[view.shard] = view.view.number
                shard, number, members = view.view
                self._note(RunEvent(EventKind.SERVING, time(), shard=shard, view=number, members=members))
        if machine.phase is Phase.SERVING and not self._leasing:
            self._note(RunEvent(EventKind.LEASING, time(), ProcessKind.DESK, number=machine.epoch))
        self._leasing = machine.phase is Phase.SERVING

    def _broadcast_addresses(self) -> None:
        for peer in self.hub.peers:
            self.hub.post(peer, Other.ADDRESSES, (), [addresses_to_bytes(self.addresses)])

    def _progress(self) -> None:
        """Tell the head how far the training is."""
        finished, workers = self.machine.leases.finished, len(self.machine.registered)
        drained = int(self.machine.drained)
        self._notify_heads(Other.PROGRESS, (finished, workers, int(self.finished), self.lost, drained), b"")

    def _notify_heads(self, kind: int, ints: tuple[int, ...], body: bytes) -> None:
        for peer in self.hub.peers:
            if peer.role == peer_of(Process(Role.HEAD, 0)).role:
                self.hub.post(peer, kind, ints, [body])


def _event(output: Changed | Again | Lost) -> RunEvent:
    """Return what the machine says as an event of the run."""
    if isinstance(output, Changed):
        shard, view, members, lossy = output
        return RunEvent(EventKind.VIEW, time(), shard=shard, view=view, members=members, lossy=lossy)
    if isinstance(output, Again):
        shown = ", ".join(map(str, output.batches[:8])) + (", ..." if len(output.batches) > 8 else "")
        return RunEvent(EventKind.AGAIN, time(), why=f"batches {shown}")
    return RunEvent(EventKind.SHARD_LOST, time(), shard=output.shard)


def _packed(event: RunEvent) -> bytes:
    return json.dumps(to_dict(event)).encode()
