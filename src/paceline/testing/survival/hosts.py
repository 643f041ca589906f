"""Hosts in network namespaces of their own, on one bridge, whose links can be cut and repaired.

A link that is cut loses every packet and tells no one, as a switch does that has lost its power.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CLONE_NEWNET = 0x40000000


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
    made = [Host(f"{bridge}{number}", f"10.79.{sum(bridge.encode()) % 250}.{number + 1}") for number in range(count)]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host in made:
            inner = f"{host.name}i"
            _ip("netns", "add", host.name)
            _ip("link", "add", host._port, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", host.name)
            _ip("link", "set", host._port, "master", bridge, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", inner)
            _ip("-n", host.name, "link", "set", inner, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield made
    finally:
        for host in made:
            _ip("netns", "del", host.name, check=False)  # the link goes with it
            _ip("link", "del", host._port, check=False)
        _ip("link", "del", bridge, check=False)


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)
