"""A shard server's process: the machine, and the tensors of the shard that it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter_ns as now
from typing import Any, Protocol

from paceline.algorithms.cluster.messages import (
    NONE,
    Applied,
    Copy,
    Message,
    Process,
    Propose,
    Pulled,
    Push,
    Pushed,
    Replicate,
    Replicated,
    Role,
)
from paceline.algorithms.cluster.outputs import Apply, Forget, Output, Restore
from paceline.algorithms.cluster.shard import ShardMachine
from paceline.errors import FrameError
from paceline.runtime.engines.cluster.control import ShardStart
from paceline.runtime.engines.cluster.servers.history import PushHistory
from paceline.runtime.engines.cluster.servers.loop import (
    ROLES,
    MachineLoop,
    Other,
    addresses_to_bytes,
    kind_of,
    peer_of,
)
from paceline.runtime.engines.cluster.servers.vector_pool import VectorPool
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.links.tcp.hub import Hub, PeerPlace, Received

PUSH, REPLICATE, SERVERS = kind_of(Push), kind_of(Replicate), ROLES + Role.SERVER
#: Messages with a gradient, and those after which some gradient may not be needed any longer. As tuples, since a union
#: of types is created again each time that it is used.
GRADIENTS, RELEASING = (Push, Replicate), (Push, Replicate, Replicated, Propose)


class State(Protocol):
    """The tensors of a shard, under one kind of method; vectors are those of its own pool."""

    number: int
    vectors: VectorPool[Any]
    #: The whole version as bytes, and of it the parameters and moving buffers.
    everything: memoryview
    values: memoryview

    @property
    def answered(self) -> int:
        """The bytes of the answer to the push that was applied last."""

    def apply(self, push: Apply, vector: Any) -> None:
        """Make a version from the one before, by what a worker has pushed."""

    def answer(self, worker: int, push: Pushed, history: PushHistory) -> Sequence[memoryview]:
        """Return what a worker continues with after a push, as the message that precedes it labels it."""

    def restore(self, body: memoryview) -> None:
        """Take another server's whole version."""


class ShardProcess:
    """`loop.MachineHost` of a shard server."""

    def __init__(
        self,
        machine: ShardMachine,
        open_hub: Callable[[PeerPlace], Hub],
        desk: Address,
        host: str,
        make_state: Callable[[int], State],
        shards: int,
    ) -> None:
        """`host` is where others reach it."""
        self.host, self.make_state, self.shards = host, make_state, shards
        self.machine = machine
        self.state: State | None = make_state(machine.shard) if machine.shard != NONE else None
        self.history = PushHistory(shards)
        #: The gradients that the machine's log still needs, by version.
        self.kept: dict[int, Any] = {}
        #: What the machine has applied and the tensors have not. A primary makes a version when it is on all backups,
        #: so that no worker is shown one that a failure loses; a backup makes it after it has confirmed it.
        self._unmade: deque[tuple[Apply, Any]] = deque()
        #: The vectors that gradients of peers are received in, until the machine has handled them.
        self._arriving: list[tuple[Peer, Any]] = []
        #: The copy that waits for its shard's state, which a thread builds: to make a user's model may take long.
        self._copy: Received | None = None
        self._building: Future[State] | None = None
        self._builder = ThreadPoolExecutor(1, "paceline-shard")
        self.hub = open_hub(self._place)
        self.loop = MachineLoop(Process(Role.SERVER, machine.number), machine, self.hub, self, machine.timing, desk)

    def resume(self, start: ShardStart, content: bytes) -> None:
        """Begin with a later version than 0, as a checkpoint has it."""
        assert self.state is not None
        self.state.restore(memoryview(bytearray(content)))
        self.machine.version, self.machine.applied = start.version, Applied(start.mark, start.above)

    def run(self) -> None:
        """Serve until this process is ended."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Handle what has arrived, and a copy that has waited for its state."""
        self.loop.turn(self.machine.timing.heartbeat)
        if self._copy is not None and self._building is not None and self._building.done():
            event, self._copy = self._copy, None
            self.loop.take(event)

    def postpones(self, event: Received, message: Message) -> bool:
        """Let a copy wait until there is a state to hold it; a later one replaces it. Refuse what is no gradient."""
        if isinstance(message, GRADIENTS) and self.state is not None:
            return self._refuses(event)
        if not isinstance(message, Copy) or (self.state is not None and self.state.number == message.shard):
            return False
        ended = self._building is not None and self._building.done()
        if ended and self._building is not None and self._building.result().number == message.shard:
            return False
        if self._building is None or ended:
            self._building = self._builder.submit(self.make_state, message.shard)
            self._building.add_done_callback(lambda built: self.hub.wake())
        self._copy = event
        return True

    def _refuses(self, event: Received) -> bool:
        """Leave a peer that has sent something that is no gradient of this shard, before the machine counts it."""
        assert self.state is not None
        try:
            self.state.vectors.of(event.body)
        except FrameError as error:
            self.hub.refuse(event.peer, str(error))
            self._arriving = [each for each in self._arriving if each[0] != event.peer]
            self._let_go()
            return True
        return False

    def bodies(self, to: Process, message: Message, body: memoryview) -> Sequence[Buffer]:
        if isinstance(message, Pushed):
            return self._made(message.version).answer(to.number, message, self.history)
        if isinstance(message, Pulled):
            return (self._made(message.version).values,)
        if isinstance(message, Replicate):
            return (self.kept[message.version].bytes if message.version in self.kept else body,)
        if isinstance(message, Copy):
            return (self._made(message.version).everything, self.history.raw)
        return ()

    def carry_out(self, output: Output, body: memoryview) -> None:
        if isinstance(output, Apply):
            assert self.state is not None
            vector = self.state.vectors.of(body)
            self._unmade.append((output, vector))
            if self.machine.followers:
                self.kept[output.version] = vector
        elif isinstance(output, Restore):
            self._unmade.clear()
            if self.state is None or self.state.number != output.shard:
                assert self._building is not None
                self.state, self._building, self._arriving = self._building.result(), None, []
            size = len(self.state.everything)
            self.hub.copy_queues()
            self.state.restore(body[:size])
            self.history.restore(body[size:])
        elif isinstance(output, Forget):
            self._unmade.clear()
            self.state, self.history, self.kept, self._arriving = None, PushHistory(self.shards), {}, []

    def _made(self, version: int) -> State:
        """Bring the tensors to a version, and return them."""
        assert self.state is not None
        while self._unmade and self._unmade[0][0].version <= version:
            output, vector = self._unmade.popleft()
            self.hub.copy_queues()  # an answer with the version before may be on its way
            start = now()
            self.state.apply(output, vector)
            self.history.add(output, vector, start, now(), self.state.answered)
        return self.state

    def handled(self, message: Message, body: memoryview) -> None:
        """Make what a backup has confirmed."""
        if self.state is None:
            return
        if not self.machine.primary:
            self._made(self.machine.version)
        if isinstance(message, GRADIENTS):
            self._arriving = [each for each in self._arriving if each[1].whole.obj is not body.obj]
        if isinstance(message, RELEASING):
            self._let_go()

    def _let_go(self) -> None:
        """Let vectors be used again that nothing needs any longer."""
        assert self.state is not None
        start = self.machine.log_start
        if next(iter(self.kept), start) < start:
            self.hub.copy_queues(SERVERS)  # a server that was given up may not have read them
            self.kept = {version: vector for version, vector in self.kept.items() if version >= start}
        needed = list(self.kept.values())
        for _, vector in (*self._unmade, *self._arriving):
            needed.append(vector)
        self.state.vectors.keep(needed)

    def _place(self, peer: Peer, kind: int, ints: tuple[int, ...], size: int) -> memoryview | None:
        """Receive gradients in vectors whose views are made already."""
        if kind not in (PUSH, REPLICATE) or self.state is None or size != self.state.vectors.size:
            return None
        vector = self.state.vectors.take()
        self._arriving.append((peer, vector))
        view: memoryview = vector.whole
        return view

    def other(self, sender: Process, kind: int, ints: tuple[int, ...], body: memoryview) -> None:
        if kind != Other.HISTORY or self.state is None or self.machine.waiting:
            return  # what a backup may lack is shown to no one; the head asks again
        count, checksum, with_values = ints
        version, (since, rows) = self._made(self.machine.version).everything, self.history.after(count, checksum)
        mark, above = self.machine.applied.key
        facts = (
            self.machine.shard,
            self.machine.view,
            self.machine.version,
            since,
            len(version) * with_values,
            mark,
            *above,
        )
        self.hub.post(peer_of(sender), Other.HISTORY, facts, [version, rows] if with_values else [rows])

    def arrived(self, process: Process) -> None:
        if process.role is Role.DESK:
            address = Address(self.host, self.hub.address.port)
            self.hub.post(peer_of(process), Other.LISTENING, (), [addresses_to_bytes({self.machine.number: address})])

    def departed(self, process: Process, why: str) -> None:
        """Use the vector again in which half a gradient has come. The desk decides what follows."""
        self._arriving = [each for each in self._arriving if each[0] != peer_of(process)]
        if self.state is not None:
            self._let_go()
