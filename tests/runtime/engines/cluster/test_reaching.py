"""Who dials whom again, and what becomes of half a gradient: a process of servers with a hub that only takes notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.algorithms.cluster.messages import Process, Push, Role
from paceline.algorithms.cluster.outputs import TIMING
from paceline.algorithms.cluster.worker import WorkerMachine
from paceline.runtime.engines.cluster.servers.loop import MachineLoop, Other, addresses_to_bytes, kind_of, peer_of
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.hub import Gone, Received, Unreached
from tests.runtime.engines.cluster.stubs import AT_DESK, AT_SERVER, Notes, shard_server

DESK, SERVER, WORKER = Process(Role.DESK, 0), Process(Role.SERVER, 0), Process(Role.WORKER, 0)


class Nobody:
    """`MachineHost` that needs nothing."""

    def departed(self, process: Process, why: str) -> None: ...
    def arrived(self, process: Process) -> None: ...
    def postpones(self, event: object, message: object) -> bool: ...
    def carry_out(self, output: object, body: memoryview) -> None: ...
    def bodies(self, to: object, message: object, body: memoryview) -> Sequence[Any]:
        return ()


@pytest.fixture
def hub() -> Notes:
    return Notes()


@pytest.fixture
def loop(hub: Notes) -> MachineLoop:
    """A worker's loop that knows where a server listens, and is connected to no one."""
    made = MachineLoop(WORKER, WorkerMachine(0, 1, TIMING), hub, Nobody(), TIMING, AT_DESK)  # type: ignore[arg-type]
    assert hub.dialled == [AT_DESK]
    _learn(made, hub)
    return made


def _learn(loop: MachineLoop, hub: Notes, addresses: dict[int, Address] | None = None) -> None:
    body = memoryview(addresses_to_bytes({0: AT_SERVER} if addresses is None else addresses))
    hub.dialled.clear()
    hub.events = [Received(peer_of(DESK), Other.ADDRESSES, (), body)]
    loop.turn(0.0)


def test_a_server_is_dialled_until_the_desk_lists_it_no_longer(loop: MachineLoop, hub: Notes) -> None:
    """A process that is stopped for long answers no dial, and is there again later."""
    assert hub.dialled == [AT_SERVER]
    for _ in range(3):
        hub.events = [Unreached(AT_SERVER, "does not answer")]
        loop.turn(0.0)
    assert hub.dialled == [AT_SERVER] * 4
    _learn(loop, hub, {})
    hub.events = [Unreached(AT_SERVER, "does not answer")]
    loop.turn(0.0)
    assert hub.dialled == []
    _learn(loop, hub)  # it woke, and has told the desk so
    assert hub.dialled == [AT_SERVER]


def test_the_desk_is_dialled_for_ever(loop: MachineLoop, hub: Notes) -> None:
    hub.dialled.clear()
    hub.events = [Unreached(AT_DESK, "does not answer")]
    loop.turn(0.0)
    assert hub.dialled == [AT_DESK]


@pytest.mark.parametrize("process", [SERVER, DESK])
def test_one_that_has_connected_again_is_not_dialled(loop: MachineLoop, hub: Notes, process: Process) -> None:
    """To dial would replace the connection that has just replaced one, and so on without end."""
    hub.dialled.clear()
    hub.peers = {peer_of(process)}
    hub.events = [Gone(peer_of(process), "has connected again")]
    loop.turn(0.0)
    assert hub.dialled == []
    _learn(loop, hub)
    assert hub.dialled == ([] if process == SERVER else [AT_SERVER])
    hub.peers = set()
    hub.dialled.clear()
    hub.events = [Gone(peer_of(process), "closed the connection")]
    loop.turn(0.0)
    assert hub.dialled == [AT_SERVER if process == SERVER else AT_DESK]


def test_half_a_gradient_takes_no_memory_for_ever(hub: Notes) -> None:
    server = shard_server(hub)
    assert server.state is not None
    vectors = server.state.vectors
    for number in range(20):
        worker = Process(Role.WORKER, number)
        server._place(peer_of(worker), kind_of(Push), (0, 1, 0, 0), vectors.size)
        server.departed(worker, "closed the connection in the middle of a message")
    assert len(vectors) == 1
    # One of which all has come is released once, when it was handled.
    body = server._place(peer_of(WORKER), kind_of(Push), (0, 1, 0, 0), vectors.size)
    assert body is not None
    server.handled(Push(0, 1, 0, 0, 1), body)
    server.departed(WORKER, "closed the connection")
    assert vectors.take() is not vectors.take()
    assert len(vectors) == 2
