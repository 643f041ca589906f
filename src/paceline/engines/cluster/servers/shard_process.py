"""A shard server's process: the machine, and the tensors of the shard that it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns as now

from paceline.core.cluster.messages import NONE, Copy, Message, Process, Pulled, Push, Pushed, Replicate, Role
from paceline.core.cluster.outputs import Apply, Forget, Output, Restore, Timing
from paceline.core.cluster.shard import ShardMachine
from paceline.engines.cluster.servers.loop import MachineLoop
from paceline.engines.cluster.servers.shard_state import GradientVector, History, ShardState
from paceline.engines.cluster.servers.wire import Other, addresses_to_bytes, kind_of, peer_of
from paceline.links.tcp.connection import Buffer
from paceline.links.tcp.doors import Address
from paceline.links.tcp.handshake import Peer
from paceline.links.tcp.hub import Hub, PeerPlace

PUSH, REPLICATE = kind_of(Push), kind_of(Replicate)


class ShardProcess:
    """`loop.Owner` of a shard server."""

    def __init__(
        self, number: int, shard: int, timing: Timing, open_hub: Callable[[PeerPlace], Hub], desk: Address, host: str,
        make_state: Callable[[int], ShardState], shards: int,
    ) -> None:  # fmt: skip
        """`shard` is the one that it holds at version 0, or NONE for a spare; `host` is where others reach it."""
        self.host, self.make_state, self.shards = host, make_state, shards
        self.machine = ShardMachine(number, timing, shard)
        self.state: ShardState | None = make_state(shard) if shard != NONE else None
        self.history = History(shards)
        #: The gradients that the machine's log still needs, by version.
        self.kept: dict[int, GradientVector] = {}
        #: The vector that each peer's last gradient is received in, until all of it has come.
        self._arriving: dict[Peer, GradientVector] = {}
        self.hub = open_hub(self._place)
        self.loop = MachineLoop(Process(Role.SERVER, number), self.machine, self.hub, self, timing, desk)

    def run(self) -> None:
        """Serve until this process is ended."""
        while True:
            self.loop.turn(self.machine.timing.heartbeat)

    def bodies(self, message: Message, body: memoryview) -> Sequence[Buffer]:
        if isinstance(message, Pushed | Pulled):
            assert self.state is not None
            return (self.state.values,)
        if isinstance(message, Replicate):
            return (self.kept[message.version].bytes if message.version in self.kept else body,)
        if isinstance(message, Copy):
            assert self.state is not None
            return (self.state.everything, self.history.raw)
        return ()

    def carry_out(self, output: Output, body: memoryview) -> None:
        if isinstance(output, Apply):
            assert self.state is not None
            start, vector = now(), self.state.vectors.of(body)
            self.state.apply(output.version, vector)
            self.history.add(output, vector.bases, start, now())
            if self.machine.followers:
                self.kept[output.version] = vector
        elif isinstance(output, Restore):
            self.state = (
                self.state if self.state and self.state.number == output.shard else self.make_state(output.shard)
            )
            size = len(self.state.everything)
            self.state.restore(body[:size])
            self.history.restore(body[size:])
        elif isinstance(output, Forget):
            self.state, self.history, self.kept = None, History(self.shards), {}

    def handled(self, message: Message, body: memoryview) -> None:
        """Let vectors be used again that neither the log needs nor a follower lacks."""
        if self.state is None:
            return
        vectors, start = self.state.vectors, self.machine.log_start
        for version in [v for v in self.kept if v < start]:
            vectors.release(self.kept.pop(version))
        if isinstance(message, Push | Replicate) and len(body) == vectors.size:
            vector = vectors.of(body)
            self._arriving = {peer: each for peer, each in self._arriving.items() if each is not vector}
            if vector not in self.kept.values():
                vectors.release(vector)

    def _place(self, peer: Peer, kind: int, ints: tuple[int, ...], size: int) -> memoryview | None:
        """Receive gradients in vectors whose views are made already."""
        if kind not in (PUSH, REPLICATE) or self.state is None or size != self.state.vectors.size:
            return None
        vector = self._arriving[peer] = self.state.vectors.take()
        return vector.bytes

    def other(self, sender: Process, kind: int, ints: tuple[int, ...], body: memoryview) -> None:
        if kind == Other.HISTORY:
            self.hub.post(peer_of(sender), Other.HISTORY, (self.machine.shard,), [self.history.raw])

    def arrived(self, process: Process) -> None:
        if process.role is Role.DESK:
            here = Address(self.host, self.hub.address.port)
            self.hub.post(peer_of(process), Other.LISTENING, (), [addresses_to_bytes({self.machine.number: here})])

    def departed(self, process: Process, why: str) -> None:
        """Use the vector again in which half a gradient has come. The desk decides what follows."""
        vector = self._arriving.pop(peer_of(process), None)
        if vector is not None and self.state is not None:
            self.state.vectors.release(vector)
