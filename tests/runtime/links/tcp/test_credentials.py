"""Addresses that others can reach need a lock; keys are made once, kept private, and checked on both sides."""

from __future__ import annotations

import builtins
import os
import pickle
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import SecurityError, UsageError
from paceline.runtime.links.tcp.address import Address, is_loopback
from paceline.runtime.links.tcp.credentials import LOOPBACK, Credentials, TrustedNetwork, credentials_of, listen
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Hub, Received, Unreached
from paceline.runtime.links.tcp.tls import MutualTls, make_keys
from paceline.runtime.links.tcp.waiting import Pump
from tests.runtime.links.tcp.conftest import PATIENCE, until

RUN, JOB = bytes(16), bytes(32)
DESK, WORKER = Peer(1, 0), Peer(2, 0)
TOKEN = "a token that none can guess"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder / "run")
    make_keys(folder / "other")
    make_keys(folder / "named", ["127.0.0.1", "elsewhere"])
    return folder


@pytest.mark.parametrize(
    ("text", "address"),
    [("localhost:80", ("localhost", 80)), ("[::1]:5", ("::1", 5)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_an_address_is_read_as_it_is_written(text: str, address: tuple[str, int]) -> None:
    assert Address.parse(text) == address
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("text", ["", "80", ":80", "a:", "a:b", "a:65536", "a:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write HOST:PORT"):
        Address.parse(text)


def test_loopback_is_told_from_other_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "8.8.8.8")))


def test_an_address_that_others_can_reach_needs_a_lock(hubs: list[Hub]) -> None:
    everywhere = Address("0.0.0.0", 0)
    both = r"`paceline keys FOLDER`.*--keys FOLDER.*--trusted-network"
    with pytest.raises(SecurityError, match=f"does not listen at 0.0.0.0:0.*{both}"):
        listen(everywhere, LOOPBACK)
    trusted = TrustedNetwork(TOKEN.encode())
    inherited = listen(everywhere, trusted)
    with pytest.raises(SecurityError, match=both):
        Hub(Identity(DESK, RUN, JOB), LOOPBACK, inherited)
    hubs.append(Hub(Identity(DESK, RUN, JOB), trusted, inherited))
    hubs.append(Hub(Identity(WORKER, RUN, JOB)))
    with pytest.raises(SecurityError, match=f"does not dial 10.0.0.1:80.*{both}"):
        hubs[1].dial(Address("10.0.0.1", 80), 1.0)


def test_options_choose_the_credentials(keys: Path) -> None:
    assert credentials_of(None, None) is LOOPBACK
    assert credentials_of(None, TOKEN) == TrustedNetwork(TOKEN.encode())
    assert isinstance(credentials_of(keys / "run", None), MutualTls)
    with pytest.raises(SecurityError, match="keys alone are enough"):
        credentials_of(keys / "run", TOKEN)
    with pytest.raises(SecurityError, match="a token of 3 bytes can be guessed"):
        credentials_of(None, "abc")


def exchange(
    hubs: list[Hub], mine: Credentials, theirs: Credentials, host: str = "127.0.0.1", right: bool | None = None
) -> object:
    """What comes of dialling a process that has other credentials: the frame that arrives, or why none does."""
    desk = Hub(Identity(DESK, RUN, JOB), mine, listen(Address("127.0.0.1", 0), mine), report=lambda _: None)
    worker = Hub(Identity(WORKER, RUN, JOB), theirs, report=lambda _: None)
    hubs += [desk, worker]
    right = mine is theirs if right is None else right
    worker.dial(Address(host, desk.address.port), PATIENCE if right else 0.2)
    events = until([desk, worker], lambda events: any(isinstance(e, Unreached) for e in events) or len(events) == 2)
    (end,) = [event for event in events if not isinstance(event, Arrived) or event.dialled]
    if isinstance(end, Unreached):
        assert len(events) == 1  # neither side took the other for a peer
        return end.why
    worker.post(DESK, 20, (7,), [os.urandom(100_000)])
    (got,) = until([desk, worker], bool)
    return got


def test_tls_carries_frames_between_processes_of_one_run(hubs: list[Hub], keys: Path) -> None:
    credentials = MutualTls(keys / "run")
    got = exchange(hubs, credentials, credentials)
    assert isinstance(got, Received)
    assert (got.kind, got.ints, len(got.body)) == (20, (7,), 100_000)


def test_tls_bears_large_frames_between_small_ones_and_two_threads(hubs: list[Hub], keys: Path) -> None:
    """The socket takes only a part, whose rest OpenSSL wants again; the pump sends while the other thread receives."""
    credentials, pump = MutualTls(keys / "run"), Pump(0.002)
    desk = Hub(Identity(DESK, RUN, JOB), credentials, listen(Address("127.0.0.1", 0), credentials), pump=pump)
    worker = Hub(Identity(WORKER, RUN, JOB), credentials, pump=pump)
    hubs += [desk, worker]
    worker.dial(desk.address, PATIENCE)
    until(hubs, lambda events: len(events) == 2)
    sizes = [10, 6_000_000, 0, 16_384, 16_340, 3, 9_000_000, 40_000, 1] * 2
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    for hub, to in ((desk, WORKER), (worker, DESK)):
        for number, body in enumerate(bodies):
            assert hub.post(to, 20 + number, (number,), [body[:7], body[7:]])
    got = until(hubs, lambda events: len(events) == 2 * len(bodies))
    for peer in (DESK, WORKER):
        assert [bytes(event.body) for event in got if isinstance(event, Received) and event.peer == peer] == bodies
    for hub in hubs:
        hub.close()
    pump.close()


def test_a_token_lets_in(hubs: list[Hub]) -> None:
    credentials = TrustedNetwork(TOKEN.encode())
    assert isinstance(exchange(hubs, credentials, credentials), Received)


def test_a_certificate_of_another_run_is_refused_by_both(hubs: list[Hub], keys: Path) -> None:
    why = exchange(hubs, MutualTls(keys / "run"), MutualTls(keys / "other"))
    assert "does not come to terms about TLS" in str(why)
    assert hubs[0].refused > 0


@pytest.mark.parametrize(
    "kinds",
    [
        ("tls", "none"),
        ("none", "tls"),
        ("token", "none"),
        ("none", "token"),
        ("tls", "token"),
        ("token", "tls"),
        ("token", "other token"),
    ],
)
def test_different_credentials_do_not_meet(kinds: tuple[str, str], hubs: list[Hub], keys: Path) -> None:
    def credentials(kind: str) -> Credentials:
        return {"tls": lambda: MutualTls(keys / "run"), "none": lambda: LOOPBACK}.get(
            kind, lambda: TrustedNetwork(f"{kind} which is long enough".encode())
        )()

    assert isinstance(exchange(hubs, credentials(kinds[0]), credentials(kinds[1])), str)


def test_a_host_answers_by_its_own_name_alone(hubs: list[Hub], keys: Path) -> None:
    """The key of one machine, stolen, does not serve another one's place."""
    credentials, stolen = MutualTls(keys / "named" / "127.0.0.1"), MutualTls(keys / "named" / "elsewhere")
    assert isinstance(exchange(hubs, credentials, credentials), Received)
    assert "shows the key of elsewhere, and this machine does not know it as 127.0.0.1" in str(
        exchange(hubs, stolen, credentials)
    )


def test_a_host_that_is_found_by_its_name_may_be_dialled_by_its_address(
    hubs: list[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes announce addresses, where a machine's keys are made out to its name."""
    here, there = (MutualTls(folder) for folder in make_keys(tmp_path / "run", ["alice", "bob"]))
    found = {"bob": [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]}
    known = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **rest: found.get(host) or known(host, *more, **rest)
    )
    assert isinstance(exchange(hubs, there, here, right=True), Received)


def test_keys_are_private_from_the_beginning(keys: Path) -> None:
    private = [*keys.glob("*/ca.key"), *keys.glob("*/*/key.pem")]
    assert len(private) == 7
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (keys / "run", keys / "run" / "node")} == {0o700}


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (folder,) = make_keys(tmp_path / "run")
    (folder / "key.pem").chmod(0o640)
    with pytest.raises(SecurityError, match=r"mode 640.*chmod 600"):
        MutualTls(tmp_path / "run")


def test_credentials_travel_to_other_processes_without_their_token_in_sight(keys: Path) -> None:
    credentials = MutualTls(keys / "named" / "127.0.0.1")
    assert pickle.loads(pickle.dumps(credentials)).folder == credentials.folder
    assert TOKEN not in repr(TrustedNetwork(TOKEN.encode()))


def test_files_that_are_missing_or_broken_are_named(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match=r"there is no cert\.pem in .*make keys with `paceline keys"):
        MutualTls(tmp_path)
    (folder,) = make_keys(tmp_path / "run")
    (folder / "cert.pem").write_text("nothing")
    with pytest.raises(SecurityError, match="cannot be used"):
        MutualTls(folder)
    (folder / "key.pem").unlink()
    with pytest.raises(SecurityError, match=r"key\.pem cannot be read"):
        MutualTls(folder)


def test_keys_are_added_and_never_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_keys(run, ["a", "b"])
    authority = (run / "ca.pem").read_bytes()
    assert make_keys(run, ["c"]) == [run / "c"]
    assert (run / "c" / "ca.pem").read_bytes() == authority
    with pytest.raises(UsageError, match="a exists: its keys may be in use"):
        make_keys(run, ["a"])
    with pytest.raises(UsageError, match="made with --hosts"):
        make_keys(run)
    for host in ("../x", "", "a b", "node", "ca.pem"):
        with pytest.raises(UsageError, match="is no name or address of a host"):
            make_keys(run, [host])
    (run / "ca.key").write_text("nothing")
    with pytest.raises(SecurityError, match="cannot be read"):
        make_keys(run, ["d"])


def test_making_keys_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'paceline\[tls\]'"):
        make_keys(tmp_path / "run")
