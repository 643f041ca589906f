"""Where the run of a code is, as the machines of one network tell each other (mDNS), if zeroconf is installed.

What is told is the number of the code and where machines knock. The words stay on the screen, and nothing is sent
beyond the network that this machine is in. An answer proves nothing: the machine that it names has to know the code.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from paceline.errors import UsageError
from paceline.runtime.links.tcp.address import Address, accepts

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
    """Tells the networks of these addresses where the code with a number is used; nothing without zeroconf.

    One thread tells one thing after another: zeroconf that is closed while it tells something leaves tasks behind.
    """

    def __init__(self, hosts: Sequence[str], port: int) -> None:
        self._hosts, self._port, self._package = hosts, port, _package()
        #: The numbers to tell; None at the end.
        self._numbers: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def open(self) -> None:
        """Begin to tell what `announce` is given. The process ends only after `close`, and when all is told."""
        if self._package is not None and self._hosts:
            threading.Thread(target=self._run, name="paceline-announcement").start()

    def announce(self, number: int) -> None:
        """Tell another number from now on. Where that fails, the address has to be typed."""
        self._numbers.put(number)

    def close(self) -> None:
        """Tell nothing any longer; what is being told is not waited for."""
        self._numbers.put(None)

    def _run(self) -> None:
        with suppress(Exception), closing(self._package.Zeroconf(interfaces=list(self._hosts))) as running:
            service = None
            while (number := self._numbers.get()) is not None:
                with suppress(Exception):  # zeroconf has many, and none of them may keep the next number back
                    if service is not None:
                        running.unregister_service(service)
                    addresses = [socket.inet_aton(host) for host in self._hosts]
                    service = self._package.ServiceInfo(TYPE, f"{number}.{TYPE}", self._port, addresses=addresses)
                    running.register_service(service, allow_name_change=True)


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
    return next((address for address in addresses[:-1] if accepts(address, REACH)), addresses[-1])
