"""Connected sockets and connections for tests, which are closed at their end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from paceline.runtime.links.tcp.connection import Connection
from paceline.runtime.links.tcp.frame import LIMITS, Frame, Limits
from paceline.runtime.links.tcp.hub import Event, Hub
from paceline.runtime.links.tcp.stream import PlainStream, prepare
from paceline.runtime.links.tcp.waiting import AbortFlag, Pump

PATIENCE = 60.0  # seconds for what takes milliseconds on a machine that is not busy
Sockets = tuple[socket.socket, socket.socket]
MakePair = Callable[..., tuple[Connection, Connection]]


def connected_sockets() -> Sockets:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return dialled, accepted


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = connected_sockets()
    yield made
    for each in made:
        each.close()


@pytest.fixture
def make_pair() -> Iterator[MakePair]:
    made: list[Connection] = []

    def make(limits: Limits = LIMITS) -> tuple[Connection, Connection]:
        sides = connected_sockets()
        for name, side in zip(("the other", "this one"), sides, strict=True):
            prepare(side, 120.0)
            made.append(Connection(PlainStream(side), name, limits))
        return made[-2], made[-1]

    yield make
    for connection in made:
        connection.close()


def next_frame(connection: Connection) -> Frame:
    """Ask again and again for a frame, and raise what the connection raises."""
    end = monotonic() + PATIENCE
    while (frame := connection.next()) is None:
        assert monotonic() < end
    return frame


@pytest.fixture
def pump() -> Iterator[Pump]:
    made = Pump()
    yield made
    made.close()


@pytest.fixture
def aborted() -> Iterator[AbortFlag]:
    made = AbortFlag()
    yield made
    made.close()


@pytest.fixture
def hubs() -> Iterator[list[Hub]]:
    """What is put here is closed at the end."""
    made: list[Hub] = []
    yield made
    for hub in made:
        hub.close(0.0)


def until(hubs: list[Hub], done: Callable[[list[Event]], bool]) -> list[Event]:
    """Poll hubs in turn until their events satisfy `done`."""
    events: list[Event] = []
    for _ in range(int(PATIENCE / 0.005)):
        for hub in hubs:
            events += hub.poll(0.005)
        if done(events):
            return events
    raise AssertionError(events)
