"""Addresses: where a process can be reached, and whether from other machines."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

from paceline.errors import UsageError


class Address(NamedTuple):
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read HOST:PORT or [HOST]:PORT."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"{text!r} is no address; write HOST:PORT, or [HOST]:PORT for IPv6")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host; a name must mean loopback addresses alone."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in entries)
