"""What no server can avoid: microseconds of CPU of two processes that send a vector to and fro over loopback.

    python benchmarks/cluster_speed/sockets.py [--bytes 220200] [--rounds 2000]

First they are woken by whatever arrives, and then only by a whole vector (SO_RCVLOWAT).
"""

from __future__ import annotations

import argparse
import os
import select
import socket
from time import process_time

WARM_UP = 20  # rounds that are not counted


class End:
    """One end of the connection, with a vector to send and one to receive."""

    def __init__(self, raw: socket.socket, size: int, at_once: bool) -> None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setblocking(False)
        self.at_once, self.raw = at_once, raw
        self.mine, self.others = memoryview(bytearray(size)), memoryview(bytearray(size))

    def wait(self, events: int) -> None:
        poller = select.poll()
        poller.register(self.raw, events)
        poller.poll()

    def send(self) -> None:
        rest = self.mine
        while rest:
            try:
                rest = rest[self.raw.send(rest) :]
            except BlockingIOError:
                self.wait(select.POLLOUT)

    def receive(self) -> None:
        rest = self.others
        while rest:
            if self.at_once:
                self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(rest))
            self.wait(select.POLLIN)
            rest = rest[self.raw.recv_into(rest) :]


def measure(end: End, rounds: int, first: bool) -> float:
    """Return the microseconds of CPU that a round has taken this process."""
    begun = 0.0
    for number in range(WARM_UP + rounds):
        if number == WARM_UP:
            begun = process_time()
        if first:
            end.send()
        end.receive()
        if not first:
            end.send()
    return 1e6 * (process_time() - begun) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=220_200)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    for at_once in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            child = os.fork()
            if child == 0:
                end = End(socket.create_connection(listener.getsockname()), options.bytes, at_once)
                measure(end, options.rounds, first=True)
                os._exit(0)
            end = End(listener.accept()[0], options.bytes, at_once)
            spent = measure(end, options.rounds, first=False)
            os.waitpid(child, 0)
        woken = "by a whole vector" if at_once else "by whatever arrives"
        print(f"woken {woken}: {spent:.0f} us CPU a round on this side", flush=True)


if __name__ == "__main__":
    main()
