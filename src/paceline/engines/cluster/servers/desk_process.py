"""The desk's process: the machine, the addresses of servers, and what the head wants to know."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from paceline.core.cluster.desk import DeskMachine
from paceline.core.cluster.messages import NONE, Message, Process, Role
from paceline.core.cluster.outputs import Again, Changed, Finished, Lost, Output
from paceline.engines.cluster.servers.loop import MachineLoop
from paceline.engines.cluster.servers.wire import Other, addresses_from_bytes, addresses_to_bytes, peer_of, process_of
from paceline.links.tcp.connection import Buffer
from paceline.links.tcp.doors import Address
from paceline.links.tcp.hub import Hub

PROGRESS_SECONDS = 0.1


class DeskProcess:
    """`loop.Owner` of the desk."""

    def __init__(self, machine: DeskMachine, hub: Hub) -> None:
        self.machine, self.hub = machine, hub
        self.loop = MachineLoop(Process(Role.DESK, 0), machine, hub, self, machine.timing, None)
        #: Where each server listens that is connected.
        self.addresses: dict[int, Address] = {}
        self.finished = False
        #: The shard that no server holds any longer, or NONE.
        self.lost = NONE
        self._reported = 0.0

    def run(self) -> None:
        """Serve until this process is ended."""
        self.loop.perform(self.machine.start(monotonic()))
        while True:
            self.loop.turn(PROGRESS_SECONDS)
            now = monotonic()
            for peer in self.hub.peers:  # the hub reports those that are silent
                self.machine.alive_sign(now, process_of(peer))
            if now - self._reported >= PROGRESS_SECONDS:
                self._reported = now
                self._progress()

    def bodies(self, message: Message, body: memoryview) -> Sequence[Buffer]:
        return ()

    def carry_out(self, output: Output, body: memoryview) -> None:
        if isinstance(output, Finished):
            self.finished = True
            self._progress()
        elif isinstance(output, Changed | Again | Lost):
            self.lost = output.shard if isinstance(output, Lost) else self.lost
            self._tell_heads(Other.EVENT, (), _line(output).encode())

    def handled(self, message: Message, body: memoryview) -> None:
        """Nothing has to be released."""

    def other(self, sender: Process, kind: int, ints: tuple[int, ...], body: memoryview) -> None:
        if kind == Other.LISTENING and sender.role is Role.SERVER:
            self.addresses |= addresses_from_bytes(body)
            for peer in self.hub.peers:
                self.hub.post(peer, Other.ADDRESSES, (), [addresses_to_bytes(self.addresses)])

    def arrived(self, process: Process) -> None:
        self.hub.post(peer_of(process), Other.ADDRESSES, (), [addresses_to_bytes(self.addresses)])

    def _progress(self) -> None:
        """Tell the head how far the training is."""
        desk = self.machine
        finished = desk.desk.finished(desk.state)
        self._tell_heads(Other.PROGRESS, (finished, len(desk.seats), int(self.finished), self.lost), b"")

    def _tell_heads(self, kind: int, ints: tuple[int, ...], body: bytes) -> None:
        for peer in self.hub.peers:
            if peer.role == peer_of(Process(Role.HEAD, 0)).role:
                self.hub.post(peer, kind, ints, [body])


def _line(output: Changed | Again | Lost) -> str:
    """Return an event as a line for the record of the run."""
    if isinstance(output, Changed):
        primary, *backups = output.members
        with_backups = f" with backup {', '.join(map(str, backups))}" if backups else " without a backup"
        lossy = "; acknowledged pushes may be missing, and are computed again" if output.lossy else ""
        return f"shard {output.shard}: server {primary} is primary{with_backups}{lossy}"
    if isinstance(output, Again):
        shown = ", ".join(map(str, output.batches[:8])) + (", ..." if len(output.batches) > 8 else "")
        return f"batches leased again: {shown}"
    return f"shard {output.shard}: no server holds it any longer"
