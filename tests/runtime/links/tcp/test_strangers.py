"""Whatever strangers do to a live hub, none gets in, none is answered, and its peers do not notice."""

from __future__ import annotations

import itertools
import os
import random
import socket
import ssl
from collections import deque
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from paceline.runtime.links.tcp import tls
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, Credentials, TrustedNetwork, listen
from paceline.runtime.links.tcp.frame import SEAL_BYTES, Seal
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Event, Gone, Hub, Policy, Received, Unreached
from paceline.runtime.links.tcp.pending import PLACES, REMEMBERED, Refusals
from paceline.runtime.links.tcp.tls import ANY_NAME, MutualTls, make_keys
from paceline.runtime.links.tcp.waiting import Timing
from tests.runtime.links.tcp.conftest import PATIENCE, until
from tests.runtime.links.tcp.hostile import attack, header, hello, hostile

RUN, JOB = random.Random(1).randbytes(16), random.Random(2).randbytes(32)
DESK, TOKEN = Peer(1, 0), TrustedNetwork(b"a token that none can guess")
PING, PONG = 20, 21


class Target:
    """A hub with two honest peers that keep exchanging frames with it while strangers come."""

    def __init__(
        self,
        hubs: list[Hub],
        credentials: Credentials = LOOPBACK,
        timing: Timing = Timing(silence=PATIENCE),  # noqa: B008
    ) -> None:
        self.told: list[str] = []
        listener = listen(Address("127.0.0.1", 0), credentials)
        self.desk = Hub(
            Identity(DESK, RUN, JOB), credentials, listener, policy=Policy(timing=timing), report=self.told.append
        )
        self.workers = [
            Hub(Identity(Peer(2, n), RUN, JOB), credentials, policy=Policy(timing=timing)) for n in range(2)
        ]
        self.exchanges = 0
        hubs += [self.desk, *self.workers]
        for worker in self.workers:
            worker.dial(self.desk.address, PATIENCE)
        until(hubs, lambda events: len(events) == 4)

    def exchange(self) -> list[Event]:
        """Let both peers ask and the hub answer; what else happens meanwhile at the hub."""
        other: list[Event] = []
        for worker in self.workers:
            assert worker.post(DESK, PING, (self.exchanges,), [b"x" * 1000])
            while not (got := worker.poll(0.001)):
                for event in self.desk.poll(0.0):
                    if isinstance(event, Received) and event.kind == PING:
                        assert self.desk.post(event.peer, PONG, event.ints)
                    else:
                        other.append(event)
            assert got == [Received(DESK, PONG, (self.exchanges,), memoryview(b""))]
            self.exchanges += 1
        return other


def resident() -> int:
    """Bytes of this process's memory."""
    return psutil.Process().memory_info().rss


def test_ten_thousand_hostile_frames_do_no_harm(hubs: list[Hub]) -> None:
    target = Target(hubs)
    strangers, under_way = hostile(18, RUN, JOB), deque[socket.socket]()
    descriptors, events = set(os.listdir("/proc/self/fd")), list[Event]()
    for number in range(10_000):
        source = f"127.0.{number % 500 // 250}.{number % 250 + 1}"
        under_way.append(attack(target.desk.address, next(strangers).sent, source))
        if number % 20 == 0:
            events += target.exchange()
        if number == 1000:
            settled = resident()
        while len(under_way) > 40:
            under_way.popleft().close()
    while under_way:
        under_way.popleft().close()
    for _ in range(10):
        events += target.exchange()
    assert events == []  # none has arrived, and no one has gone
    assert target.desk.refused > 9900  # the last ones may go before they are looked at
    assert len(target.told) <= 500  # once for each address
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert resident() - settled < 9000 * 500  # a connection that is kept has a buffer of 4,096 bytes


def test_a_machine_is_told_of_once_and_the_memory_of_them_is_bounded() -> None:
    told: list[str] = []
    refusals = Refusals(told.append)
    for _ in range(3):
        for number in range(10):
            refusals.add(f"10.0.0.{number}", "belongs to another run")
    assert len(told) == 10
    assert "refused a connection from 10.0.0.3: it belongs to another run" in told[3]
    for number in range(10 * REMEMBERED):
        refusals.add(f"10.1.{number // 250}.{number % 250}", "is a scan")
    assert len(refusals._told) == len(told) == REMEMBERED + 1
    assert "more than 1000 machines" in told[-1]
    assert refusals.count == 30 + 10 * REMEMBERED


def closed(stranger: socket.socket, target: Target) -> bytes:
    """Let the hub work until it has closed the stranger's connection; what the stranger got before."""
    got = b""
    for _ in range(10_000):
        target.exchange()
        try:
            part = stranger.recv(1000)
        except BlockingIOError:
            continue
        except ConnectionResetError:
            part = b""
        if not part:
            stranger.close()
            return got
        got += part
    raise AssertionError("the connection is still open")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        header(1, 3, 0, 10**12),
        header(1, 60_000, 0, 0),
        hello(bytes(16), JOB),
        hello(RUN, bytes(32)),
        hello(RUN, JOB, (300, 0, 0)),
        hello(RUN, JOB)[:-1] + b"!",
        header(20, 0, 0, 0),
    ],
    ids=["http", "a terabyte", "integers", "run", "job", "peer", "one byte", "no handshake"],
)
def test_a_stranger_is_closed_without_an_answer(sent: bytes, hubs: list[Hub]) -> None:
    target = Target(hubs)
    assert closed(attack(target.desk.address, sent), target) == b""
    assert target.desk.refused == len(target.told) == 1


def test_who_does_not_know_the_token_gets_a_nonce_and_nothing_else(hubs: list[Hub]) -> None:
    target = Target(hubs, TOKEN)
    stranger = attack(target.desk.address, hello(RUN, JOB, nonce=bytes(32)) + header(3, 0, 1, 32) + bytes(32))
    assert len(closed(stranger, target)) == 24 + 32
    assert "does not know the token" in target.told[0]


class Recorder:
    """A machine in the middle, which forwards what two ends say, and writes it down."""

    def __init__(self, address: Address) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listener.getsockname()[:2])
        self._target = socket.create_connection(address)
        self._target.setblocking(False)
        self._client: socket.socket | None = None
        self.said = b""

    def forward(self) -> None:
        if self._client is None:
            self._client, _ = self._listener.accept()
            self._client.setblocking(False)
        for source, to in ((self._client, self._target), (self._target, self._client)):
            try:
                part = source.recv(100_000)
            except BlockingIOError:
                continue
            to.sendall(part)
            self.said += part if source is self._client else b""

    def close(self) -> None:
        for each in (self._client, self._target, self._listener):
            assert each is not None
            each.close()


def test_recorded_handshakes_and_frames_are_worth_nothing(hubs: list[Hub]) -> None:
    target = Target(hubs, TOKEN)
    middle, honest = Recorder(target.desk.address), Hub(Identity(Peer(2, 9), RUN, JOB), TOKEN)
    hubs.append(honest)
    honest.dial(middle.address, PATIENCE)
    honest.poll(0.01)
    events: list[Event] = []
    posted = False
    while not any(isinstance(event, Received) for event in events):
        middle.forward()
        honest.poll(0.001)
        events += target.desk.poll(0.001)
        posted = posted or honest.post(DESK, PING, (77,), [b"a push"])
    recorded = middle.said
    # 1. The whole conversation again, on a connection of its own.
    again = attack(target.desk.address, recorded)
    assert len(closed(again, target)) == 24 + 32
    assert "does not know the token" in target.told[0]
    # 2. The last frame again, on the same connection.
    middle._target.sendall(recorded[-len(b"a push") - SEAL_BYTES - 32 :])
    (gone,) = until([target.desk], bool)
    assert isinstance(gone, Gone)
    assert "a frame has number 2 where 3 was due" in gone.why
    assert target.exchange() == []
    middle.close()


class Middle:
    """A machine in the middle that changes the stream from the dialler, from some byte on."""

    def __init__(self, target: Target, hubs: list[Hub], credentials: Credentials) -> None:
        self.target, self.recorder = target, Recorder(target.desk.address)
        self.honest = Hub(Identity(Peer(2, 9), RUN, JOB), credentials)
        hubs.append(self.honest)
        self.honest.dial(self.recorder.address, PATIENCE)
        self.honest.poll(0.01)
        while DESK not in self.honest.peers or Peer(2, 9) not in target.desk.peers:
            self.recorder.forward()
            self.honest.poll(0.001)
            target.desk.poll(0.001)

    def sent(self, kind: int, ints: tuple[int, ...], body: bytes) -> bytes:
        """What the honest worker puts on the wire for a frame; it does not go on."""
        assert self.honest.post(DESK, kind, ints, [body])
        assert self.recorder._client is not None
        self.recorder._client.setblocking(True)
        return self.recorder._client.recv(100_000)

    def outcome(self, sent: bytes, closes: bool = False) -> list[Event]:
        """What the server takes from these bytes."""
        self.recorder._target.sendall(sent)
        if closes:
            self.recorder._target.shutdown(socket.SHUT_WR)
        events = until([self.target.desk], bool)
        self.recorder.close()
        return events


@pytest.fixture
def middle(request: pytest.FixtureRequest, hubs: list[Hub], tmp_path: Path) -> Middle:
    if request.param == "tls":
        make_keys(tmp_path / "run")
    credentials: Credentials = MutualTls(tmp_path / "run") if request.param == "tls" else TOKEN
    return Middle(Target(hubs, credentials), hubs, credentials)


@pytest.mark.parametrize("middle", ["token", "tls"], indirect=True)
@pytest.mark.parametrize("place", ["kind", "integer", "first MAC", "second MAC", "body"])
def test_a_frame_that_is_changed_on_its_way_ends_the_connection(place: str, middle: Middle) -> None:
    """What it carries is never received; a size that was changed would reserve memory, and is not believed either."""
    sent = bytearray(middle.sent(PING, (7,), b"gradient"))
    at = {"kind": 9, "integer": 24, "first MAC": 33, "second MAC": 50, "body": len(sent) - 1}[place]
    sent[at] ^= 1
    (gone,) = middle.outcome(bytes(sent))
    assert isinstance(gone, Gone)
    assert gone.peer == Peer(2, 9)
    assert middle.target.exchange() == []


@pytest.mark.parametrize("middle", ["token"], indirect=True)
@pytest.mark.parametrize("attack", ["a size", "left out", "in another's place", "of another connection"])
def test_frames_are_not_believed_without_their_mac(attack: str, middle: Middle) -> None:
    first, second = middle.sent(PING, (7,), b"first"), middle.sent(PING, (8,), b"second")
    number = first[12:16]
    forged = {
        "a size": first[:16] + (1 << 29).to_bytes(8, "little") + first[24:],
        "left out": second[:12] + number + second[16:],
        "in another's place": first[:64] + b"other",
        "of another connection": first[:32] + Seal(b"another key").of(first[:32], [memoryview(b"first")]) + b"first",
    }[attack]
    (gone,) = middle.outcome(forged)
    assert isinstance(gone, Gone)
    assert "its MAC is another" in gone.why
    assert middle.target.exchange() == []


@pytest.mark.parametrize("middle", ["token", "tls"], indirect=True)
@pytest.mark.parametrize("left", [1, 23, 30, 60])
def test_a_frame_that_is_cut_off_is_never_received(left: int, middle: Middle) -> None:
    sent = middle.sent(PING, (7,), b"gradient")
    (gone,) = middle.outcome(sent[: min(left, len(sent) - 1)], closes=True)
    assert isinstance(gone, Gone)
    assert middle.target.exchange() == []


@pytest.mark.parametrize("credentials", [LOOPBACK, TOKEN])
def test_a_peer_that_says_hello_and_then_garbage_is_gone(credentials: Credentials, hubs: list[Hub]) -> None:
    """It has what it takes to join; what it sends is checked nevertheless."""
    target = Target(hubs, credentials)
    for number, garbage in enumerate(
        (b"\0" * 100, header(PING, 1, 9, 8), header(PING, 60_000, 2, 0), header(3, 0, 2, 0))
    ):
        joined = Hub(Identity(Peer(2, 5 + number), RUN, JOB), credentials)
        hubs.append(joined)
        joined.dial(target.desk.address, PATIENCE)
        until([target.desk, joined], lambda events: len(events) == 2)
        joined._members[DESK].connection.stream.send([memoryview(garbage + bytes(64))])
        (gone,) = until([target.desk], bool)
        assert isinstance(gone, Gone)
        assert "sent what is not allowed" in gone.why or "is none for a peer" in gone.why
        assert target.exchange() == []


@pytest.mark.parametrize("kind", ["loopback", "token", "tls"])
def test_strangers_that_say_nothing_keep_nobody_out(kind: str, hubs: list[Hub], tmp_path: Path) -> None:
    """More of them than there are places, each with a byte at times: one of them has to go for each that comes."""
    make_keys(tmp_path)
    credentials = {"loopback": LOOPBACK, "token": TOKEN, "tls": MutualTls(tmp_path)}[kind]
    target = Target(hubs, credentials)
    silent = [attack(target.desk.address, b"p", f"127.0.0.{1 + number % 3}") for number in range(3 * PLACES)]
    honest = Hub(Identity(Peer(2, 9), RUN, JOB), credentials)
    hubs.append(honest)
    honest.dial(target.desk.address, PATIENCE)
    for stranger, byte in zip(silent, itertools.cycle(b"aceline")):
        try:
            stranger.send(bytes([byte]))
        except (BrokenPipeError, ConnectionResetError):
            continue
    assert Arrived(Peer(2, 9)) in until([target.desk, honest], lambda events: len(events) == 2)
    assert len(target.desk._handshakes._waiting) <= PLACES
    assert target.exchange() == []
    for stranger in silent:
        stranger.close()


def test_a_slow_stranger_loses_its_place(hubs: list[Hub]) -> None:
    """Half-open connections too: time is short for all who do not say who they are."""
    target = Target(hubs, timing=Timing(handshake=0.1, silence=PATIENCE))
    slow = [attack(target.desk.address, sent) for sent in (b"p", hello(RUN, JOB)[:50], header(1, 3, 0, 48))]
    mute = socket.create_connection(target.desk.address)
    mute.setblocking(False)
    assert [closed(stranger, target) for stranger in (*slow, mute)] == [b""] * 4
    assert target.told == [
        "refused a connection from 127.0.0.1: it did not say who it is within 0.1 s. Further ones from there are not "
        "reported"
    ]


FALSE = ["of another run", "signed by itself", "expired", "in an old version of TLS"]


def false_context(certificate: str, folder: Path, protocol: int) -> ssl.SSLContext:
    """TLS as who has no key of the run makes it; whoever is at the other end suits."""
    (run,), (other,) = make_keys(folder / "run"), make_keys(folder / "other")
    context = ssl.SSLContext(protocol)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate == "expired":
        authority = tls._open(folder / "run", False)
        tls._issue(authority, folder / "old", None, 0)
        context.load_cert_chain(folder / "old" / "cert.pem", folder / "old" / "key.pem")
    elif certificate == "in an old version of TLS":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(run / "cert.pem", run / "key.pem")
    elif certificate == "signed by itself":
        key = ec.generate_private_key(ec.SECP256R1())
        name = tls._name(ANY_NAME)
        subject = x509.SubjectAlternativeName([x509.DNSName(ANY_NAME)])
        signed = tls._signed(tls._builder(name, name, key, 9).add_extension(subject, critical=False), key)
        tls._write(folder / "self", tls._pem_of_key(key) + tls._pem(signed), 0o600)
        context.load_cert_chain(folder / "self")
    elif certificate == "of another run":
        context.load_cert_chain(other / "cert.pem", other / "key.pem")
    return context


@pytest.mark.parametrize("certificate", ["none", *FALSE])
def test_a_client_of_tls_without_a_certificate_of_the_run_is_refused(
    certificate: str, hubs: list[Hub], tmp_path: Path
) -> None:
    """It does not care who answers, and so gets as far as it can."""
    context = false_context(certificate, tmp_path, ssl.PROTOCOL_TLS_CLIENT)
    target = Target(hubs, MutualTls(tmp_path / "run"))
    raw = socket.create_connection(target.desk.address)
    raw.setblocking(False)
    client = context.wrap_socket(raw, do_handshake_on_connect=False)
    said = False
    for _ in range(10_000):
        target.exchange()
        try:
            client.do_handshake()
            said = said or bool(client.send(hello(RUN, JOB)))
            assert client.recv(1000) == b""
        except ssl.SSLWantReadError:
            continue
        except OSError:
            pass
        break
    client.close()
    assert target.desk.refused == 1
    assert "does not come to terms about TLS" in target.told[0]


@pytest.mark.parametrize("certificate", ["none", *FALSE])
def test_a_server_of_tls_without_a_certificate_of_the_run_is_told_nothing(
    certificate: str, hubs: list[Hub], tmp_path: Path
) -> None:
    """A false head: with `none` it does not speak TLS at all, but answers as a head does without."""
    context = false_context(certificate, tmp_path, ssl.PROTOCOL_TLS_SERVER)
    worker = Hub(Identity(Peer(2, 0), RUN, JOB), MutualTls(tmp_path / "run"), report=lambda text: None)
    hubs.append(worker)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker.dial(Address(*listener.getsockname()[:2]), 0.3)
        worker.poll(0.01)
        raw, _ = listener.accept()
        listener.close()
        raw.setblocking(False)
        server = raw if certificate == "none" else context.wrap_socket(raw, True, do_handshake_on_connect=False)
        got, events = b"", list[Event]()
        if certificate == "none":
            raw.send(header(2, 3, 0, 48) + bytes(24) + RUN + JOB)
        while not events:
            events += worker.poll(0.005)
            with suppress(OSError):
                if isinstance(server, ssl.SSLSocket):
                    server.do_handshake()
                got += server.recv(10_000)
        server.close()
    (event,) = events
    assert isinstance(event, Unreached)
    assert RUN not in got
    assert not worker.peers


@pytest.mark.parametrize("credentials", ["tls", "token"])
def test_plain_hostile_frames_do_no_harm_with_credentials(credentials: str, hubs: list[Hub], tmp_path: Path) -> None:
    if credentials == "tls":
        make_keys(tmp_path / "run")
    target = Target(hubs, MutualTls(tmp_path / "run") if credentials == "tls" else TOKEN)
    events: list[Event] = []
    strangers = hostile(19, RUN, JOB)
    for _ in range(50):
        under_way = [attack(target.desk.address, next(strangers).sent) for _ in range(10)]
        events += target.exchange()
        for stranger in under_way:
            stranger.close()
    assert events == []
    assert target.desk.refused > 400
