"""Hosts in network namespaces of their own: on one bridge, whose links can be cut and repaired, or on slow lines.

A link that is cut loses every packet and tells no one, as a switch does that has lost its power.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from paceline.interfaces.testing.survival import slow_wire
from paceline.interfaces.testing.survival.slow_wire import Line

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
            [sys.executable, "-m", slow_wire.__name__, str(line.delay), str(line.rate), *wire_arguments],
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
