"""The door: a code is for one machine, there are few guesses in all, and who knocks without end gains nothing."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.errors import MachineError, PeerLost, PeerRefused
from paceline.runtime.links.pairing import door as door_module
from paceline.runtime.links.pairing.code import WORDS, Code
from paceline.runtime.links.pairing.door import GUESSES, Door, listen_anywhere
from paceline.runtime.links.pairing.line import Line
from paceline.runtime.links.pairing.visit import visit
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.tls import make_keys

pytest.importorskip("spake2")


class Host:
    """A machine with an open door."""

    def __init__(self, folder: Path) -> None:
        (keys,) = make_keys(folder / "keys", days=1)
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        listener = listen_anywhere(Address("127.0.0.1", 0))
        self.door = Door(listener, keys, self.receive, self.said.put)
        self.door.open()

    def receive(self, line: Line, host: str) -> str:
        name = line.receive().decode()
        if name == "no":
            raise PeerLost("bob", "said: no")
        line.send(b"the job")
        return name

    def join(self, code: Code, name: str = "bob") -> bytes:
        with visit(self.door.address, code) as (line, _):
            line.send(name.encode())
            return line.receive()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(door_module, "PAUSE", 0.01)
    host = Host(tmp_path)
    yield host
    host.door.close()


def wrong(code: Code) -> Code:
    """Another code with the same number."""
    first, _, second = code.words.partition("-")
    return Code(code.number, f"{WORDS[WORDS.index(first) - 1]}-{second}")


def test_a_code_is_for_one_machine_and_the_next_one_is_shown(host: Host) -> None:
    code = host.door.code
    assert host.join(code) == b"the job"
    line = host.said.get(timeout=20)
    assert host.door.code.number != code.number
    assert line == f"bob has joined; the next machine: paceline join {host.door.code}"
    with pytest.raises(PeerRefused, match="a machine has joined with this code, which is for one machine"):
        host.join(code)
    assert host.join(host.door.code, "carol") == b"the job"


def test_a_machine_that_does_not_join_leaves_the_code_good(host: Host) -> None:
    code = host.door.code
    with pytest.raises(PeerLost):
        host.join(code, "no")
    assert "a machine did not join: bob said: no" in host.said.get(timeout=20)
    assert host.join(code) == b"the job"


def test_two_machines_at_once_do_not_join_with_the_same_code(host: Host) -> None:
    code = host.door.code
    with visit(host.door.address, code) as (line, _):
        with pytest.raises(PeerRefused, match="another machine is about to join with this code"):
            host.join(code)
        line.send(b"bob")
        assert line.receive() == b"the job"


def test_after_a_few_wrong_codes_no_machine_can_join(host: Host) -> None:
    code = host.door.code
    for number in range(1, GUESSES + 1):
        with pytest.raises(PeerRefused, match="the code is wrong"):
            host.join(wrong(code))
        line = host.said.get(timeout=20)
        expected = f"the {GUESSES}th: no machine can join" if number == GUESSES else f"({number} of {GUESSES}"
        assert expected in line
    with pytest.raises(MachineError, match="nothing listens at"):
        host.join(code)


def test_who_tries_codes_at_full_speed_has_few_guesses_and_costs_little(tmp_path: Path) -> None:
    """Four attackers for two seconds, some of whom guess and some of whom only knock; the door pauses as it does."""
    host = Host(tmp_path)
    code, until, tried = host.door.code, time.monotonic() + 2.0, [0, 0]

    def guess() -> None:
        while time.monotonic() < until:
            tried[0] += 1
            try:
                host.join(wrong(code))
            except (PeerRefused, PeerLost, MachineError):
                continue
            tried[1] += 1

    def knock() -> None:
        while time.monotonic() < until:
            try:
                with socket.create_connection(host.door.address, 1.0) as raw:
                    raw.sendall(b"\x16\x03\x01")
            except OSError:
                return

    attackers = [threading.Thread(target=each) for each in (guess, guess, knock, knock)]
    try:
        for each in attackers:
            each.start()
        for each in attackers:
            each.join(60)
        assert tried[1] == 0
        assert tried[0] > 0
        assert host.said.qsize() <= GUESSES
    finally:
        host.door.close()


def test_what_is_no_machine_that_pairs_is_closed_and_no_guess(host: Host) -> None:
    for content in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1000)):
        with socket.create_connection(host.door.address, 5.0) as raw:
            raw.sendall(content)
            raw.shutdown(socket.SHUT_WR)
            raw.settimeout(20)
            with suppress(ConnectionResetError):
                while raw.recv(4096):
                    pass
    assert host.said.empty()
    assert host.join(host.door.code) == b"the job"


def test_what_listens_there_and_is_no_run_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Address(*other.getsockname())
        thread = threading.Thread(target=lambda: other.accept()[0].close())
        thread.start()
        with pytest.raises(MachineError, match="is no run of `paceline train --open`"), visit(address, Code(7, "a-b")):
            pass
        thread.join(20)
    with pytest.raises(MachineError, match="nothing listens at"), visit(address, Code(7, "a-b")):
        pass
