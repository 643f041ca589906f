"""A hub meets its peers, exchanges frames with them, and reports each that ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from paceline.links.tcp.doors import LOOPBACK, Address, listen
from paceline.links.tcp.handshake import Identity, Peer
from paceline.links.tcp.hub import Arrived, Event, Gone, Hub, Received, Unreached

RUN, JOB = bytes(range(16)), bytes(32)
DESK, WORKER = Peer(1, 0), Peer(2, 0)
PING, PONG = 20, 21
PATIENCE = 60.0  # seconds for what takes milliseconds on a machine that is not busy


def listening_hub(peer: Peer = DESK) -> Hub:
    return Hub(Identity(peer, RUN, JOB), listener=listen(Address("127.0.0.1", 0), LOOPBACK))


def dialling_hub(address: Address, peer: Peer = WORKER) -> Hub:
    hub = Hub(Identity(peer, RUN, JOB))
    hub.dial(address, PATIENCE)
    return hub


@pytest.fixture
def hubs() -> Iterator[list[Hub]]:
    """What is put here is closed at the end."""
    made: list[Hub] = []
    yield made
    for hub in made:
        hub.close()


def until(hubs: list[Hub], done: Callable[[list[Event]], bool]) -> list[Event]:
    """Poll hubs in turn until their events satisfy `done`."""
    events: list[Event] = []
    for _ in range(int(PATIENCE / 0.005)):
        for hub in hubs:
            events += hub.poll(0.005)
        if done(events):
            return events
    raise AssertionError(events)


def test_peers_meet_and_answer(hubs: list[Hub]) -> None:
    desk = listening_hub()
    workers = [dialling_hub(desk.address, Peer(WORKER.role, number)) for number in range(3)]
    hubs += [desk, *workers]
    met = until(hubs, lambda events: len(events) == 6)
    assert Arrived(Peer(WORKER.role, 2)) in met
    assert met.count(Arrived(DESK, desk.address)) == 3
    assert desk.peers == {Peer(WORKER.role, number) for number in range(3)}
    body = os.urandom(300_000)
    assert workers[1].post(DESK, PING, (7, -8), [body[:1000], body[1000:]])
    (got,) = until(hubs, bool)
    assert isinstance(got, Received)
    assert (got.peer, got.kind, got.ints, bytes(got.body)) == (Peer(WORKER.role, 1), PING, (7, -8), body)
    assert desk.post(got.peer, PONG, got.ints)
    assert until(hubs, bool) == [Received(DESK, PONG, (7, -8), memoryview(b""))]


def test_a_peer_that_leaves_says_so(hubs: list[Hub]) -> None:
    desk = listening_hub()
    worker = dialling_hub(desk.address)
    hubs.append(desk)
    until([desk, worker], lambda events: len(events) == 2)
    worker.close()
    assert until([desk], bool) == [Gone(WORKER, "has left", left=True)]
    assert not desk.post(WORKER, PING)


def test_a_killed_peer_is_reported(hubs: list[Hub]) -> None:
    desk = listening_hub()
    hubs.append(desk)
    if (pid := os.fork()) == 0:
        worker = dialling_hub(desk.address)
        while True:
            worker.poll(1.0)
    assert until([desk], bool) == [Arrived(WORKER)]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (gone,) = until([desk], bool)
    assert isinstance(gone, Gone)
    assert not gone.left


def test_an_address_that_nobody_answers_is_given_up(hubs: list[Hub]) -> None:
    listener = listen(Address("127.0.0.1", 0), LOOPBACK)
    address = Address(*listener.getsockname()[:2])
    listener.close()
    hub = Hub(Identity(WORKER, RUN, JOB))
    hubs.append(hub)
    hub.dial(address, 0.1)
    (event,) = until(hubs, bool)
    assert isinstance(event, Unreached)
    assert event.address == address
