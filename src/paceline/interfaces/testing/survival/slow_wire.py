"""A slow network between hosts, made by a process: the wire, for kernels that have no `tc netem`.

Every host has a tun device, and the wire reads what leaves one and writes it into another, later: a packet leaves its
host when those before it have left at the line's rate, and arrives after the line's delay. A packet that would wait
longer than `QUEUE` is dropped, as by a switch whose buffer is full.

    host 0 --tun--> wire: leaves at max(now, line free) + bytes / rate, arrives `delay` later --tun--> host 2

It runs as a process of its own, so that no interpreter lock of the hosts delays it:

    python -m paceline.interfaces.testing.survival.slow_wire DELAY RATE DESCRIPTOR=ADDRESS ...     until its input ends
"""

from __future__ import annotations

import heapq
import os
import select
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

QUEUE = 0.2  # seconds that a packet may wait for its host's line
LARGEST = 65_600  # bytes of a packet
PACKETS = 64  # of one host before others have their turn
IPV4, SOURCE, DESTINATION = 4, slice(12, 16), slice(16, 20)


@dataclass(frozen=True)
class Line:
    """How each host is connected to all others, in both directions."""

    #: Seconds from one host to another.
    delay: float
    #: Bytes that leave a host per second.
    rate: float


@dataclass
class Wire:
    """The packets that are under way. It knows no clock: times are given."""

    line: Line
    #: When the line of each host, by its address, is free again.
    free: dict[bytes, float] = field(default_factory=dict)
    dropped: int = 0
    _under_way: list[tuple[float, int, bytes, bytes]] = field(default_factory=list)
    _count: int = 0

    def accept(self, now: float, packet: bytes) -> None:
        """Take a packet that a host has sent; anything but IPv4 is dropped."""
        if packet[0] >> 4 != IPV4:
            return
        source, target = packet[SOURCE], packet[DESTINATION]
        start = max(now, self.free.get(source, now))
        if start - now > QUEUE:
            self.dropped += 1
            return
        self.free[source] = start + len(packet) / self.line.rate
        self._count += 1
        heapq.heappush(self._under_way, (self.free[source] + self.line.delay, self._count, target, packet))

    def arriving(self, now: float) -> list[tuple[bytes, bytes]]:
        """Return the packets that arrive until now, each after the address that it is for."""
        packets = []
        while self._under_way and self._under_way[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._under_way)
            packets.append((target, packet))
        return packets

    def pause(self, now: float) -> float:
        """Return the seconds until the next packet arrives; 1 if none is under way."""
        return max(0.0, self._under_way[0][0] - now) if self._under_way else 1.0


def serve(wire: Wire, hosts: Mapping[int, bytes]) -> None:
    """Carry packets between hosts, by descriptor, until the standard input ends."""
    devices = {address: descriptor for descriptor, address in hosts.items()}
    while True:
        # 1. Wait until something is sent, or arrives. `select` counts microseconds, where `poll` counts milliseconds.
        ready, _, _ = select.select([0, *hosts], [], [], wire.pause(monotonic()))
        # 2. Take what was sent.
        for descriptor in ready:
            if descriptor == 0:
                return
            for _ in range(PACKETS):
                try:
                    packet = os.read(descriptor, LARGEST)
                except BlockingIOError:
                    break
                wire.accept(monotonic(), packet)
        # 3. Deliver what arrives.
        for target, packet in wire.arriving(monotonic()):
            if target in devices:
                os.write(devices[target], packet)


def main() -> None:
    delay, rate, *entries = sys.argv[1:]
    pairs = (each.split("=") for each in entries)
    hosts = {int(descriptor): socket.inet_aton(address) for descriptor, address in pairs}
    serve(Wire(Line(float(delay), float(rate))), hosts)


if __name__ == "__main__":
    main()
