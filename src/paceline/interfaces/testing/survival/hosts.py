"""Hosts in network namespaces of their own: on one bridge, whose links can be cut and repaired, or on slow lines.

A link that is cut loses every packet and tells no one, as a switch does that has lost its power.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

# --- A slow network between hosts, made by a process: the wire, for kernels that have no `tc netem` -------------------
# Every host has a tun device, and the wire reads what leaves one and writes it into another, later: a packet leaves its
# host when those before it have left at the line's rate, and arrives after the line's delay. A packet that would wait
# longer than `QUEUE` is dropped, as by a switch whose buffer is full.
#
# host 0 --tun--> wire: leaves at max(now, line free) + bytes / rate, arrives `delay` later --tun--> host 2
#
# It runs as a process of its own, so that no interpreter lock of the hosts delays it:
#
# python -m paceline.interfaces.testing.survival.slow_wire DELAY RATE DESCRIPTOR=ADDRESS ...     until its input ends

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


CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # of linux/if_tun.h


@dataclass(frozen=True)
class Host:
    """One namespace."""

    name: str
    address: str

    def enter(self) -> None:
        """Let this process, which has one thread, and those that it starts live on this host."""
        descriptor = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {self.name}")
        os.close(descriptor)

    @property
    def _port(self) -> str:
        return f"{self.name}b"

    def cut(self) -> None:
        """Let every packet from and to this host be lost."""
        _ip("link", "set", self._port, "nomaster")

    def mend(self, bridge: str) -> None:
        """Connect this host again."""
        _ip("link", "set", self._port, "master", bridge)

    def part(self, parted: bool) -> None:
        """Let every packet be lost between this host and others that are parted, or no longer."""
        words = ["isolated", "on" if parted else "off"]
        _ip("link", "set", "dev", self._port, "type", "bridge_slave", *words, check=False)  # it may be cut off

    def slow(self, slow: bool) -> None:
        """Let this host receive no more than a few packets a second, or as much as comes."""
        rate = ["tbf", "rate", "256kbit", "burst", "32kbit", "latency", "400ms"]
        words = ["add", "dev", self._port, "root", *rate] if slow else ["del", "dev", self._port, "root"]
        subprocess.run(["tc", "qdisc", *words], check=True, capture_output=True)


def possible() -> bool:
    """Whether this process may make namespaces, bridges and links."""
    try:
        with hosts(1, "pcprobe"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def hosts(count: int, bridge: str) -> Iterator[list[Host]]:
    """Make hosts on a bridge of this name, of at most eight characters; remove them after the block."""
    machines = [
        Host(f"{bridge}{number}", f"10.79.{sum(bridge.encode()) % 250}.{number + 1}") for number in range(count)
    ]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host in machines:
            inner = f"{host.name}i"
            _ip("netns", "add", host.name)
            _ip("link", "add", host._port, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", host.name)
            _ip("link", "set", host._port, "master", bridge, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", inner)
            _ip("-n", host.name, "link", "set", inner, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield machines
    finally:
        for host in machines:
            _ip("netns", "del", host.name, check=False)  # the link goes with it
            _ip("link", "del", host._port, check=False)
        _ip("link", "del", bridge, check=False)


@contextmanager
def slow_hosts(count: int, name: str, line: Line, mtu: int = 1500) -> Iterator[list[Host]]:
    """Make hosts whose network is as slow as a line; remove them after the block. They cannot be cut.

    The wire is a process that carries every packet; larger packets (`mtu`, in bytes) let it keep up with faster lines.
    """
    machines = [Host(f"{name}{number}", f"10.78.{sum(name.encode()) % 250}.{number + 1}") for number in range(count)]
    wires: list[int] = []
    process: subprocess.Popen[bytes] | None = None
    try:
        for host in machines:
            device = f"{host.name}t"
            wires.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            fcntl.ioctl(wires[-1], TUNSETIFF, struct.pack("16sH14x", device.encode(), IFF_TUN | IFF_NO_PI))
            _ip("netns", "add", host.name)
            _ip("link", "set", device, "netns", host.name)
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", device)
            _ip("-n", host.name, "link", "set", device, "mtu", str(mtu), "txqueuelen", "500", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        wire_arguments = [f"{descriptor}={host.address}" for descriptor, host in zip(wires, machines, strict=True)]
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(line.delay), str(line.rate), *wire_arguments],
            stdin=subprocess.PIPE,
            pass_fds=wires,
        )
        yield machines
    finally:
        if process is not None:
            process.communicate()  # the end of its input ends it
        for descriptor in wires:
            os.close(descriptor)
        for host in machines:
            _ip("netns", "del", host.name, check=False)  # its device goes with it


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)
