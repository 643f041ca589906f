"""Where the run of a code is, as the machines of one network tell each other (mDNS), if zeroconf is installed.

What is told is the number of the code and where machines knock. The words stay on the screen, and nothing is sent
beyond the network that this machine is in. An answer proves nothing: the machine that it names has to know the code.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from paceline.errors import UsageError
from paceline.runtime.links.tcp.address import Address

TYPE = "_paceline._tcp.local."
SECONDS, REACH = 5.0, 1.0  # in which a machine has to answer, and one of its addresses to accept a connection
GIVE = "give the address that the other screen shows, too, as in `paceline join alice:29471 7-lantern-osprey`"


def _package() -> Any:
    try:
        import zeroconf
    except ModuleNotFoundError:
        return None
    return zeroconf


class Announcement:
    """Tells the networks of these addresses where the code with a number is used; nothing without zeroconf."""

    def __init__(self, hosts: Sequence[str], port: int) -> None:
        self._hosts, self._port, self._package = hosts, port, _package()
        self._running: Any = None
        self._service: Any = None

    def announce(self, number: int) -> None:
        """Tell another number from now on. Where that fails, the address has to be typed."""
        if self._package is not None and self._hosts:
            with suppress(Exception):  # zeroconf has many, and none of them may close the door
                self._announce(number)

    def _announce(self, number: int) -> None:
        self._running = self._running or self._package.Zeroconf(interfaces=list(self._hosts))
        if self._service is not None:
            self._running.unregister_service(self._service)
        addresses = [socket.inet_aton(host) for host in self._hosts]
        self._service = self._package.ServiceInfo(TYPE, f"{number}.{TYPE}", self._port, addresses=addresses)
        self._running.register_service(self._service, allow_name_change=True)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()


def discover(number: int) -> Address:
    """Return where a machine of this network says that the code with a number is used.

    Raises:
        UsageError: none says so, or zeroconf is not installed.
    """
    zeroconf = _package()
    if zeroconf is None:
        raise UsageError(
            f"finding a run by its code alone needs the package zeroconf (`pip install 'paceline[pair]'`); {GIVE}"
        )
    done, addresses = threading.Event(), list[Address]()

    class Listener(zeroconf.ServiceListener):  # type: ignore[misc, name-defined]
        def add_service(self, running: Any, kind: str, name: str) -> None:
            if name.split(".")[0] == str(number) and (info := running.get_service_info(kind, name)):
                addresses.extend(Address(host, info.port) for host in info.parsed_addresses())
                done.set()

        update_service = remove_service = lambda self, running, kind, name: None

    with closing(zeroconf.Zeroconf()) as running:
        zeroconf.ServiceBrowser(running, TYPE, Listener())
        if not done.wait(SECONDS):
            raise UsageError(f"no machine of this network says that it has a code with the number {number}; {GIVE}")
    return next((address for address in addresses[:-1] if _accepts(address)), addresses[-1])


def _accepts(address: Address) -> bool:
    try:
        socket.create_connection(address, REACH).close()
    except OSError:
        return False
    return True
