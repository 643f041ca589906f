"""What an exchange over the wire costs: push and pull of a whole vector between two processes, over loopback.

Every kind of connection has a server in a process of its own, and all of them are asked in turn, round after round.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import torch

from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.channel import BlockingConnection
from paceline.runtime.links.tcp.credentials import LOOPBACK, Credentials, TrustedNetwork, listen
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Hub, Policy, Received
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.links.tcp.meeting import connect
from paceline.runtime.links.tcp.tls import MutualTls, make_keys
from paceline.runtime.links.tcp.waiting import SocketWaiter

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import in_turn, median, write

NUMBERS = {"55 thousand": 55_000, "1 million": 1_000_000, "11 million": 11_000_000}
EXCHANGES = {"55 thousand": 200, "1 million": 20, "11 million": 3}  # in a round
RUN, JOB = bytes(16), bytes(32)
SERVER, CLIENT = Peer(1, 0), Peer(2, 0)
PUSH, PULL = 16, 17
Exchange = Callable[[], None]

context = get_context("fork")


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Vectors:
    """What a process sends, and where it receives."""

    def __init__(self, numbers: int) -> None:
        self.sent, self.received = torch.ones(numbers), torch.zeros(numbers)
        self.out, self.into = raw(self.sent), raw(self.received)

    def place(self, *_: object) -> memoryview:
        return self.into


# --- sockets alone, without frames ---


def raw_server(listener: socket.socket, vectors: Vectors) -> Exchange:
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return lambda: (receive_all(peer, vectors.into), peer.sendall(vectors.out))[0]


def raw_client(address: Address, vectors: Vectors) -> Exchange:
    peer = socket.create_connection(address)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return lambda: (peer.sendall(vectors.out), receive_all(peer, vectors.into))[1]


def receive_all(peer: socket.socket, into: memoryview) -> None:
    while into:
        into = into[peer.recv_into(into) :]


# --- connections of two threads that wait ---


def line_server(credentials: Credentials, listener: socket.socket, vectors: Vectors) -> Exchange:
    hub = Hub(Identity(SERVER, RUN, JOB), credentials, listener, policy=Policy(handed_over=(CLIENT.role,)))
    while Arrived(CLIENT) not in hub.poll(1.0):
        pass
    line = BlockingConnection(hub.take_over(CLIENT), SocketWaiter(0))
    line.connection.receive_into(vectors.place)

    def serve() -> None:
        frame = line.receive()
        line.send(PULL, frame.ints, [vectors.out])

    return serve


def line_client(credentials: Credentials, address: Address, vectors: Vectors) -> Exchange:
    _, connection = connect(Identity(CLIENT, RUN, JOB), address, credentials, SocketWaiter(1))
    line = BlockingConnection(connection, SocketWaiter(1))
    connection.receive_into(vectors.place)

    def exchange() -> None:
        line.send(PUSH, (1, 2, 3), [vectors.out])
        line.receive()

    return exchange


# --- event loops on both sides ---


def hub_server(listener: socket.socket, vectors: Vectors) -> Exchange:
    hub = Hub(Identity(SERVER, RUN, JOB), LOOPBACK, listener, place=vectors.place)
    while not hub.peers:
        hub.poll(1.0)

    def serve() -> None:
        while True:
            for event in hub.poll(1.0):
                if isinstance(event, Received):
                    hub.post(event.peer, PULL, event.ints, [vectors.out])
                    while hub._members[event.peer].connection.wants_write:
                        hub.poll(0.001)
                    return

    return serve


def hub_client(address: Address, vectors: Vectors) -> Exchange:
    hub = Hub(Identity(CLIENT, RUN, JOB), place=vectors.place)
    hub.dial(address, 60.0)
    while not hub.peers:
        hub.poll(1.0)

    def exchange() -> None:
        hub.post(SERVER, PUSH, (1, 2, 3), [vectors.out])
        while not hub.poll(1.0):
            pass

    return exchange


class Pair:
    """A server in a process of its own, and the client in this one."""

    def __init__(self, credentials: Credentials, server: Any, client: Any, numbers: int) -> None:
        listener = listen(Address("127.0.0.1", 0), credentials)
        address = Address(*listener.getsockname()[:2])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=self._serve, args=(theirs, server, listener, numbers), daemon=True)
        self._process.start()
        listener.close()
        self._exchange: Exchange = client(address, Vectors(numbers))

    @staticmethod
    def _serve(pipe: Pipe, server: Any, listener: socket.socket, numbers: int) -> None:
        torch.set_num_threads(1)
        serve = server(listener, Vectors(numbers))
        while (count := pipe.recv()) > 0:
            before = cpu()
            for _ in range(count):
                serve()
            pipe.send(cpu() - before)
        os._exit(0)

    def measure(self, count: int) -> tuple[list[float], float]:
        """Exchange so many times; the seconds of each, and the seconds of both processes' CPUs for one."""
        self._pipe.send(count)
        before, seconds = cpu(), []
        for _ in range(count):
            start = time.perf_counter()
            self._exchange()
            seconds.append(time.perf_counter() - start)
        used = cpu() - before
        return seconds, (used + self._pipe.recv()) / count

    def close(self) -> None:
        self._pipe.send(0)
        self._process.join()


def kinds(folder: Path) -> dict[str, tuple[Credentials, Any, Any]]:
    make_keys(folder / "keys")
    token, tls = TrustedNetwork(os.urandom(32)), MutualTls(folder / "keys")
    found: dict[str, tuple[Credentials, Any, Any]] = {"sockets without frames": (LOOPBACK, raw_server, raw_client)}
    for name, credentials in (("plain", LOOPBACK), ("token", token), ("TLS 1.3", tls)):
        found[name] = (credentials, partial(line_server, credentials), partial(line_client, credentials))
    return {**found, "plain, event loops": (LOOPBACK, hub_server, hub_client)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        members = kinds(Path(folder))
        for size, numbers in NUMBERS.items():
            pairs = {name: Pair(*member, numbers) for name, member in members.items()}
            ways = {name: partial(pair.measure, EXCHANGES[size]) for name, pair in pairs.items()}
            figures[size] = {
                name: {
                    "microseconds": round(
                        1e6 * (middle := median(each for seconds, _ in found for each in seconds)), 1
                    ),
                    "megabytes_per_second": round(2 * 4e-6 * numbers / middle),
                    "cpu_microseconds_of_both": round(1e6 * median(both for _, both in found), 1),
                }
                for name, found in in_turn(ways, rounds).items()
            }
            for name, row in figures[size].items():
                print(
                    f"{size:12} {name:24} {' '.join(f'{key} {value:>10,}' for key, value in row.items())}", flush=True
                )
            for pair in pairs.values():
                pair.close()
    write({"rounds": rounds, "push_and_pull": figures})


if __name__ == "__main__":
    main()
