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
from paceline.runtime.links.pairing.code import GUESSES, LONG, WORDS, Code
from paceline.runtime.links.pairing.door import FREE, LONGEST_PAUSE, REMEMBERED, Door, RefusalCounts, listen_anywhere
from paceline.runtime.links.pairing.exchange import Line, visit
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
    monkeypatch.setattr(door_module, "SPACING", 0.01)
    monkeypatch.setattr(door_module, "FIRST_PAUSE", 0.0)
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


def test_after_five_wrong_codes_a_longer_one_is_shown_and_lets_machines_in(host: Host) -> None:
    code = host.door.code
    for number in range(1, GUESSES + 1):
        with pytest.raises(PeerRefused, match="the code is wrong"):
            host.join(wrong(code))
        line = host.said.get(timeout=20)
        expected = "from now on codes are longer" if number == GUESSES else f"({number} of {GUESSES}"
        assert expected in line
    assert line.endswith(f"The next machine: paceline join {host.door.code}")
    with pytest.raises(PeerRefused, match="its screen shows a longer one"):
        host.join(code)
    assert host.door.code.words.count("-") == LONG - 1
    for _ in range(GUESSES):
        with pytest.raises(PeerRefused, match="the code is wrong"):
            host.join(wrong(host.door.code))
    assert host.join(host.door.code) == b"the job"
    assert host.said.get(timeout=20) == f"bob has joined; the next machine: paceline join {host.door.code}"


def test_an_honest_machine_is_let_in_while_others_try_codes_at_full_speed(tmp_path: Path) -> None:
    """Attackers at two addresses, some of whom guess and some of whom only knock; the door pauses as it does."""
    host = Host(tmp_path)
    done, right = threading.Event(), list[str]()

    def guess(source: str) -> None:
        while not done.is_set():
            with suppress(PeerRefused, PeerLost, MachineError):
                joins(source, wrong(host.door.code))
                right.append(source)

    def knock(source: str) -> None:
        while not done.is_set():
            with suppress(OSError), socket.create_connection(host.door.address, 1.0, (source, 0)) as raw:
                raw.sendall(b"\x16\x03\x01")

    def joins(source: str, code: Code) -> bytes:
        with visit(host.door.address, code, source) as (line, _):
            line.send(b"bob")
            return line.receive()

    attackers = [
        threading.Thread(target=each, args=(f"127.0.0.{number}",)) for number in (2, 3) for each in (guess, knock)
    ]
    try:
        for each in attackers:
            each.start()
        until = time.monotonic() + 20.0
        while host.door.codes.wrong < 2 and time.monotonic() < until:
            time.sleep(0.01)
        content = b""
        while (
            not content and time.monotonic() < until
        ):  # a code that is guessed at five times gives way to a longer one
            with suppress(PeerRefused):
                content = joins("127.0.0.1", host.door.code)
        assert content == b"the job"
        assert not right
    finally:
        done.set()
        for each in attackers:
            each.join(20)
        host.door.close()


def test_a_machine_that_was_refused_waits_longer_each_time_and_others_do_not() -> None:
    refused, now, looked_at = RefusalCounts(), 0.0, 0
    while now < 600.0:
        assert not refused.wait(now, "192.168.1.9")
        refused.add(now, "192.168.1.66")
        looked_at += 1
        now += refused.wait(now, "192.168.1.66")
    assert FREE + 600 / LONGEST_PAUSE < looked_at < 30
    refused.forget("192.168.1.66")
    assert not refused.wait(now, "192.168.1.66")
    for number in range(REMEMBERED + 10):
        refused.add(now, str(number))
    assert len(refused.until) == len(refused.counts) == REMEMBERED


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
