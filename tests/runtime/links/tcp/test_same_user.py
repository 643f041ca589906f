"""On loopback only processes of one user meet: another one is refused before a byte of it is read, on either side."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest

from paceline.errors import PeerRefused
from paceline.runtime.links.tcp import credentials
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, listen, require_same_user
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.hub import Hub, Unreached
from paceline.runtime.links.tcp.pending import PLACES
from tests.runtime.links.tcp.conftest import until
from tests.runtime.links.tcp.hostile import hello

RUN, JOB = bytes(range(16)), bytes(32)
DESK, WORKER = Peer(1, 0), Peer(2, 0)
HOST = "127.0.0.1"
OTHER = 65534  # a user that every machine has
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")

#: Connects, says hello as a rank of the run would, and prints how many bytes it was answered.
JOINS = """
import encodings.idna, os, socket
os.setuid({user})
line = socket.create_connection(("127.0.0.1", {port}))
line.sendall(bytes.fromhex("{said}"))
line.settimeout(30)
try:
    print(len(line.recv(1000)), flush=True)
except ConnectionResetError:
    print(0, flush=True)
"""
#: Has taken the port of a head, and prints how many bytes it is sent.
AWAITS = """
import os, socket
os.setuid({user})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
{accepts}
"""
ACCEPTS = """
line, _ = listener.accept()
line.settimeout(30)
try:
    print(len(line.recv(1000)), flush=True)
except ConnectionResetError:
    print(0, flush=True)
"""


@pytest.fixture(params=["diag", "table"])
def lookup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to ask the kernel."""
    credentials._has_diag.cache_clear()
    if request.param == "table":
        monkeypatch.setattr(credentials, "_has_diag", lambda: False)
    elif not credentials._has_diag():
        pytest.skip("this kernel has no inet_diag")
    return str(request.param)


def program(text: str, **parts: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", text.format(**parts)], stdout=subprocess.PIPE, text=True)


Ends = tuple[socket.socket, socket.socket]
MakeEnds = Callable[..., Ends]


@pytest.fixture
def ends() -> Iterator[MakeEnds]:
    """Makes a socket that has dialled, and the one that was accepted."""
    with contextlib.ExitStack() as stack:

        def make(
            family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1", dials: str = "127.0.0.1"
        ) -> Ends:
            with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as listener:
                dialled = stack.enter_context(socket.create_connection((dials, listener.getsockname()[1])))
                return dialled, stack.enter_context(listener.accept()[0])

        yield make


@pytest.mark.parametrize(
    ("family", "host", "dials"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "127.0.0.2", "127.0.0.2"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
        (socket.AF_INET6, "::", "::ffff:127.0.0.1"),
    ],
)
def test_both_ends_of_one_user_recognise_each_other(
    family: socket.AddressFamily, host: str, dials: str, lookup: str, ends: MakeEnds
) -> None:
    for side in ends(family, host, dials):
        require_same_user(side, listens=False)
        require_same_user(side, listens=True)


def test_who_has_dialled_knows_the_listener_before_it_accepts(lookup: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as dialled,
    ):
        require_same_user(dialled, listens=False)
        with pytest.raises(PeerRefused, match="has closed"):  # no process has the other end open
            require_same_user(dialled, listens=True)


def test_an_end_that_was_closed_is_nobodys(lookup: str, ends: MakeEnds) -> None:
    """What it has sent before can still be read, and its ports may be another's by now."""
    for side in (0, 1):
        made = ends()
        made[1 - side].sendall(b"hello")
        made[1 - side].close()
        with pytest.raises(PeerRefused, match="has closed the connection"):
            require_same_user(made[side], listens=True)


@as_root
@pytest.mark.parametrize("port", [0, 1])
def test_another_user_is_known_by_its_number(port: int, lookup: str) -> None:
    if port:  # the stranger dials
        with socket.create_server(("127.0.0.1", 0)) as listener:
            stranger = program(JOINS, user=OTHER, port=listener.getsockname()[1], said="00")
            side, listens = listener.accept()[0], True
    else:
        stranger = program(AWAITS, user=OTHER, accepts="import time; time.sleep(30)")
        assert stranger.stdout is not None
        side, listens = socket.create_connection(("127.0.0.1", int(stranger.stdout.readline()))), False
    with pytest.raises(PeerRefused, match=rf"belongs to another user \(uid {OTHER}, and this process to uid 0\)"):
        require_same_user(side, listens)
    side.close()
    stranger.kill()
    stranger.communicate()


@as_root
def test_another_user_does_not_join_a_run_of_which_it_knows_everything(hubs: list[Hub]) -> None:
    told: list[str] = []
    hub = Hub(Identity(DESK, RUN, JOB), LOOPBACK, listen(Address("127.0.0.1", 0), LOOPBACK), report=told.append)
    worker = Hub(Identity(WORKER, RUN, JOB))
    hubs += [hub, worker]
    worker.dial(hub.address, 60.0)
    until(hubs, lambda events: len(events) == 2)
    stranger = program(JOINS, user=OTHER, port=hub.address.port, said=hello(RUN, JOB, (2, 1, 9)).hex())
    events = until(hubs, lambda events: bool(events) or hub.refused > 0)
    assert stranger.communicate()[0] == "0\n"
    assert events == []
    assert hub.peers == {WORKER}
    assert "belongs to another user (uid 65534, and this process to uid 0)" in told[0]


@as_root
def test_another_user_that_says_nothing_takes_no_place(hubs: list[Hub]) -> None:
    hub = Hub(Identity(DESK, RUN, JOB), LOOPBACK, listen(Address("127.0.0.1", 0), LOOPBACK), report=lambda text: None)
    hubs.append(hub)
    text = JOINS.replace(
        "line =", "lines = [socket.create_connection(('127.0.0.1', {port})) for _ in range(100)]\nline ="
    )
    stranger = program(text, user=OTHER, port=hub.address.port, said="00")
    until(hubs, lambda events: hub.refused == PLACES + 37)
    assert not hub._handshakes._waiting
    assert stranger.communicate()[0] == "0\n"


@as_root
def test_a_false_head_is_told_nothing(hubs: list[Hub]) -> None:
    """A stranger has taken the port of a head: who dials it says so, and goes on dialling until the deadline."""
    stranger = program(AWAITS, user=OTHER, accepts=ACCEPTS)
    assert stranger.stdout is not None
    told: list[str] = []
    worker = Hub(Identity(WORKER, RUN, JOB), report=told.append)
    hubs.append(worker)
    worker.dial(Address("127.0.0.1", int(stranger.stdout.readline())), 0.5)
    (event,) = until(hubs, bool)
    assert isinstance(event, Unreached)
    assert "belongs to another user" in event.why or "Connection refused" in event.why  # it has ended meanwhile
    assert "belongs to another user (uid 65534" in told[0]
    assert stranger.communicate()[0] == "0\n"


@pytest.mark.parametrize(("mapped", "unclear"), [("0 0 4294967295", False), ("0 100000 65536", True)])
def test_a_user_that_stands_for_others_is_no_proof(
    mapped: str, unclear: bool, monkeypatch: pytest.MonkeyPatch, ends: MakeEnds
) -> None:
    """In a user namespace the kernel shows all users that have no number there as one."""
    credentials._matches_others.cache_clear()
    kernel = {"/proc/sys/kernel/overflowuid": "7\n", "/proc/self/uid_map": mapped}
    monkeypatch.setattr(credentials, "Path", lambda file: Mock(read_text=lambda encoding: kernel[file]))
    monkeypatch.setattr(credentials, "_owner", lambda end, other: credentials.MachineHost(1, 7, 1))
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    side, _ = ends()
    if unclear:
        with pytest.raises(PeerRefused, match="uid 7 stands for all who have no number"):
            require_same_user(side, listens=True)
    else:
        require_same_user(side, listens=True)
    credentials._matches_others.cache_clear()
