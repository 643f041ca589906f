"""A shard server's process: the machine, and the tensors of the shard that it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns as now

from paceline.core.cluster.messages import NONE, Copy, Message, Process, Pulled, Pushed, Replicate, Role
from paceline.core.cluster.outputs import Apply, Forget, Output, Restore, Timing
from paceline.core.cluster.shard import ShardMachine
from paceline.engines.cluster.servers.loop import MachineLoop
from paceline.engines.cluster.servers.shard_state import History, ShardState
from paceline.engines.cluster.servers.wire import Other, addresses_to_bytes, peer_of
from paceline.links.tcp.connection import Buffer
from paceline.links.tcp.doors import Address
from paceline.links.tcp.hub import Hub


class ShardProcess:
    """`loop.Owner` of a shard server."""

    def __init__(
        self, number: int, shard: int, timing: Timing, hub: Hub, desk: Address, host: str,
        make_state: Callable[[int], ShardState],
    ) -> None:  # fmt: skip
        """`shard` is the one that it holds at version 0, or NONE for a spare; `host` is where others reach it."""
        self.hub, self.host, self.make_state = hub, host, make_state
        self.machine = ShardMachine(number, timing, shard)
        self.state: ShardState | None = make_state(shard) if shard != NONE else None
        self.history = History()
        #: The gradients that the machine's log still needs, by version.
        self.kept: dict[int, memoryview] = {}
        self.loop = MachineLoop(Process(Role.SERVER, number), self.machine, hub, self, timing, desk)

    def run(self) -> None:
        """Serve until this process is ended."""
        while True:
            self.loop.turn(self.machine.timing.heartbeat)

    def bodies(self, message: Message, body: memoryview) -> Sequence[Buffer]:
        if isinstance(message, Pushed | Pulled):
            assert self.state is not None
            return (self.state.values,)
        if isinstance(message, Replicate):
            return (self.kept.get(message.version, body),)
        if isinstance(message, Copy):
            assert self.state is not None
            return (self.state.everything, self.history.raw)
        return ()

    def carry_out(self, output: Output, body: memoryview) -> None:
        if isinstance(output, Apply):
            assert self.state is not None
            start = now()
            self.state.apply(output.version, body)
            self.history.add(*output, start, now())
            if self.machine.followers:
                self.kept[output.version] = body
        elif isinstance(output, Restore):
            self.state = self.state if self.state and self.state.number == output.shard else self.make_state(output.shard)
            size = len(self.state.everything)
            self.state.restore(body[:size])
            self.history.restore(body[size:])
        elif isinstance(output, Forget):
            self.state, self.history = None, History()
        for version in [v for v in self.kept if v < self.machine.log_start]:
            del self.kept[version]

    def other(self, sender: Process, kind: int, ints: tuple[int, ...], body: memoryview) -> None:
        if kind == Other.HISTORY:
            self.hub.post(peer_of(sender), Other.HISTORY, (self.machine.shard, now()), [self.history.raw])

    def arrived(self, process: Process) -> None:
        if process.role is Role.DESK:
            here = Address(self.host, self.hub.address.port)
            self.hub.post(peer_of(process), Other.LISTENING, (), [addresses_to_bytes({self.machine.number: here})])
