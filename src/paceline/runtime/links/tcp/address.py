"""Addresses: where a process can be reached, from which machines, and over which network interface."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
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


def accepts(address: Address, seconds: float) -> bool:
    """Whether a process accepts a connection at an address within so many seconds."""
    try:
        socket.create_connection(address, seconds).close()
    except OSError:
        return False
    return True


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


# The network interfaces of this machine, and which of them is used by default.

SIOCGIFADDR, SIOCGIFFLAGS, IFF_UP = 0x8915, 0x8913, 1
NO_MACHINE = ("192.0.2.1", 9)  # of no machine (RFC 5737); nothing is sent there
LOOPBACK_HOST = "127.0.0.1"


class Interface(NamedTuple):
    """An interface with an IPv4 address."""

    name: str
    host: str
    #: What people call it: "Wi-Fi", "cable", "loopback" or "virtual".
    kind: str
    #: Bytes of the largest packet.
    mtu: int


def interfaces(loopback: bool = False) -> list[Interface]:
    """Return the interfaces that are up, that of the default route first."""
    usual = usual_host()
    all_up = [each for _, name in socket.if_nameindex() if (each := _interface(name)) is not None]
    usable = [each for each in all_up if loopback or each.kind != "loopback"]
    return sorted(usable, key=lambda each: each.host != usual)


def usual_host() -> str:
    """Return the address from which this machine reaches others by default; loopback if it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(NO_MACHINE)
            return str(probe.getsockname()[0])
        except OSError:
            pass  # no default route: a network of its own, as two machines and a cable have
    all_up = [each for _, name in socket.if_nameindex() if (each := _interface(name)) is not None]
    others = [each.host for each in all_up if each.kind != "loopback"]
    return others[0] if others else LOOPBACK_HOST


def _interface(name: str) -> Interface | None:
    """Return an interface; None if it is down or has no IPv4 address."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            flags = struct.unpack_from("16xH", fcntl.ioctl(asking, SIOCGIFFLAGS, request))[0]
            host = socket.inet_ntoa(fcntl.ioctl(asking, SIOCGIFADDR, request)[20:24])
        except OSError:
            return None
    return Interface(name, host, _kind(name, host), _mtu(name)) if flags & IFF_UP else None


def _kind(name: str, host: str) -> str:
    folder = Path("/sys/class/net", name)
    if host.startswith("127."):
        return "loopback"
    if (folder / "wireless").exists():
        return "Wi-Fi"
    return "cable" if (folder / "device").exists() else "virtual"


def _mtu(name: str) -> int:
    try:
        return int(Path("/sys/class/net", name, "mtu").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
