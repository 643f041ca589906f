"""The doctor names what is wrong, and the remedy: each fault is made here, in network namespaces where it needs one."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.algorithms.cluster.launchers import HEAD_PORT
from paceline.interfaces.testing.survival.hosts import Host, hosts, possible
from paceline.runtime.doctor import Finding, Grade, machine, way
from paceline.runtime.links.tcp.address import Address, Interface, interfaces

CABLE = Interface("eth0", "192.0.2.7", "cable", 1500)


def test_a_machine_that_is_well(tmp_path: Path) -> None:
    findings = list(machine.examine(tmp_path / "runs"))
    assert [each.name for each in findings] == [
        "network", "name", "port", "cores", "processor", "versions", "compiler", "disk",
    ]  # fmt: skip
    assert not [each for each in findings if each.grade is Grade.FAULT]
    assert all(each.remedy for each in findings if each.grade is not Grade.GOOD)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.parametrize(
    ("found", "grade", "says"),
    [
        ([], Grade.NOTE, "only loopback is up"),
        ([CABLE], Grade.GOOD, r"eth0 192\.0\.2\.7 \(cable, MTU 1500\); runs use 192\.0\.2\.7"),
        ([CABLE, CABLE._replace(name="wlan0", kind="Wi-Fi")], Grade.GOOD, "--address chooses another one"),
        ([CABLE._replace(mtu=576)], Grade.NOTE, "packets of eth0 are very small"),
    ],
)
def test_interfaces(found: list[Interface], grade: Grade, says: str) -> None:
    finding = machine.network(found)
    assert finding.grade is grade
    assert re.search(says, finding.text)


def test_a_name_that_means_loopback_is_what_gloo_would_tell_others(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [entry])
    finding = machine.own_name("alice")
    assert finding.grade is Grade.NOTE
    assert "alice means 127.0.1.1 here, which other machines cannot reach" in finding.text
    assert "/etc/hosts" in finding.remedy


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as other:
        monkeypatch.setattr(machine, "HEAD_PORT", other.getsockname()[1])
        finding = machine.port()
    assert HEAD_PORT == 29471
    assert finding.grade is Grade.NOTE
    assert "is in use" in finding.text


def test_threads_that_the_environment_takes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(machine, "_quota", lambda: None)
    assert machine.cores().grade is Grade.GOOD
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machine.cores().remedy == "unset OMP_NUM_THREADS"
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(machine, "_quota", lambda: 1.5)
    assert "for 1.5 seconds of each second" in machine.cores().text


def test_a_folder_that_cannot_be_written() -> None:
    finding = machine.disk(Path("/proc/runs"))
    assert finding.grade is Grade.FAULT
    assert "runs and checkpoints cannot be written to /proc" in finding.text
    assert "--runs" in finding.remedy


@contextmanager
def answering() -> Iterator[Address]:
    """A machine that answers, on loopback."""
    ready: list[Address] = []
    there = threading.Event()
    thread = threading.Thread(target=way.answer, args=("127.0.0.1", lambda at: (ready.append(at), there.set())))
    thread.start()
    assert there.wait(20)
    yield ready[0]
    thread.join(20)


def test_the_way_to_a_machine_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "PORT", 0)
    with answering() as address:
        findings = list(way.examine(address))
    assert [each.name for each in findings] == ["there", "back", "clock", "packets", "speed"]
    assert not [each for each in findings if each.grade is Grade.FAULT]


def test_a_clock_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "PORT", 0)
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + (90 if threading.current_thread().name != "MainThread" else 0))
    with answering() as address:
        clock = next(each for each in way.examine(address) if each.name == "clock")
    assert clock.grade is Grade.NOTE
    assert "90 s ahead" in clock.text


def test_a_machine_on_which_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(*server.getsockname())
    (finding,) = way.examine(address)
    assert finding.grade is Grade.FAULT
    assert "paceline doctor --listen" in finding.remedy


# --- in network namespaces ---


def inside(host: Host, program: str, *words: str) -> subprocess.Popen[str]:
    """Start a program on a host."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        ["ip", "netns", "exec", host.name, sys.executable, "-c", program, *words],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def output(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=100)[0]
    finally:
        process.kill()


LISTEN = "from paceline.runtime.doctor import way\nway.answer('', lambda at: print('ready', flush=True))"
LOOK = """
import sys
from paceline.runtime.doctor import way
from paceline.runtime.links.tcp.address import Address
for each in way.examine(Address(sys.argv[1], way.PORT)):
    print(each.grade.value, each.name, each.text, '|', each.remedy)
"""


def look(host: Host, to: Host, *commands: Sequence[str]) -> str:
    """Return what the doctor of a host says of the way to another one, where commands have broken something."""
    there = inside(to, LISTEN)
    assert there.stdout is not None
    assert there.stdout.readline() == "ready\n"
    for command in commands:
        subprocess.run(["ip", *command], check=True, capture_output=True)
    try:
        return output(inside(host, LOOK, to.address))
    finally:
        there.kill()
        there.communicate()


pytestmark_hosts = pytest.mark.skipif(not possible(), reason="this process may not make network namespaces")


@pytestmark_hosts
def test_two_hosts() -> None:
    with hosts(2, "pcdoc") as (a, b):
        said = look(a, b)
    assert [line.split()[:2] for line in said.splitlines()][:3] == [
        ["good", "there"],
        ["good", "back"],
        ["good", "clock"],
    ]


@pytestmark_hosts
def test_a_firewall_there_that_drops() -> None:
    """A black hole on the way, as a firewall makes one: nothing comes back, and nothing is refused."""
    with hosts(2, "pcdrop") as (a, b):
        said = look(a, b, ["-n", b.name, "route", "add", "blackhole", f"{a.address}/32"])
    assert said.startswith("fault there")
    assert "does not answer within 3 s: a firewall there drops what arrives" in said


@pytestmark_hosts
def test_large_packets_that_are_lost() -> None:
    """A switch on the way carries smaller packets than both ends send, and says nothing."""
    with hosts(2, "pcmtu") as (a, b):
        no_offload = ["-n", a.name, "link", "set", f"{a.name}i", "gso_max_segs", "1"]
        said = look(a, b, no_offload, ["link", "set", f"{b.name}b", "mtu", "600"])
    assert "fault packets" in said, said
    assert "mtu 1280" in said


def test_findings_are_one_line_each() -> None:
    for each in (*machine.examine(Path("runs")), Finding("x", Grade.GOOD, "y")):
        assert "\n" not in each.text + each.remedy
    assert all(each.host.count(".") == 3 for each in interfaces(loopback=True))
