"""A slow wire delivers in order, at the line's rate and after its delay; real hosts meet over one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.interfaces.testing.survival.hosts import possible, slow_hosts
from paceline.interfaces.testing.survival.slow_wire import QUEUE, Line, Wire

LINE = Line(delay=0.25, rate=1000.0)
A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])


def packet(source: bytes, target: bytes, size: int, mark: int = 0) -> bytes:
    head = bytes([0x45]) + bytes(11) + source + target
    return head + bytes([mark]) * (size - len(head))


def test_a_packet_arrives_after_its_bytes_and_the_delay() -> None:
    wire, sent = Wire(LINE), packet(A, B, 500)
    wire.accept(10.0, sent)
    assert wire.pause(10.0) == 0.75
    assert wire.arriving(10.74) == []
    assert wire.arriving(10.75) == [(B, sent)]


def test_packets_of_one_host_wait_for_each_other_and_those_of_two_do_not() -> None:
    wire = Wire(LINE)
    first, second, other = packet(A, B, 100, 1), packet(A, B, 100, 2), packet(B, A, 100, 3)
    for each in (first, second, other):
        wire.accept(0.0, each)
    assert wire.arriving(0.36) == [(B, first), (A, other)]
    assert wire.arriving(0.46) == [(B, second)]


def test_what_would_wait_too_long_is_dropped() -> None:
    wire = Wire(LINE)
    for _ in range(5):
        wire.accept(0.0, packet(A, B, int(1000 * QUEUE)))
    assert wire.dropped == 3
    wire.accept(10.0, packet(A, B, 100))
    assert wire.dropped == 3


def test_other_protocols_are_ignored() -> None:
    wire = Wire(LINE)
    wire.accept(0.0, bytes([0x60]) + bytes(60))
    assert wire.arriving(9.0) == []


@pytest.mark.skipif(not possible(), reason="this process may not make network namespaces")
def test_hosts_reach_each_other_over_a_slow_line() -> None:
    program = (
        "import socket, sys, time\n"
        "s = socket.create_server((sys.argv[1], 29399)); print('ready', flush=True)\n"
        "c, _ = s.accept(); c.sendall(c.recv(100)); c.close()\n"
    )
    client = (
        "import socket, sys, time\n"
        "c = socket.create_connection((sys.argv[1], 29399), timeout=60); b = time.monotonic()\n"
        "c.sendall(b'x'); c.recv(1); print(time.monotonic() - b)\n"
    )
    with slow_hosts(2, "pcslow", Line(0.02, 1e6)) as (first, second):
        enter = ["ip", "netns", "exec"]
        server = subprocess.Popen(
            [*enter, first.name, sys.executable, "-c", program, first.address], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            took = subprocess.run(
                [*enter, second.name, sys.executable, "-c", client, first.address],
                check=True,
                capture_output=True,
                text=True,
                timeout=90,
            )
            assert float(took.stdout) >= 0.04  # there and back, however busy this machine is
        finally:
            server.kill()
            server.communicate()
