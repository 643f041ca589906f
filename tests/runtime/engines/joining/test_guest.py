"""What a machine objects to before anything is sent to it, with the remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.runtime.engines.joining import guest
from paceline.runtime.engines.joining.guest import Offer, parse
from paceline.runtime.engines.joining.parcel import python
from paceline.runtime.links.pairing import discovery
from paceline.runtime.links.pairing.code import Code
from paceline.runtime.links.tcp.address import Address

SAID: dict[str, Any] = {
    "host": "alice", "job": "job", "plan": "downpour:workers=8", "python": python(), "packages": [],
    "files": ["job.py"], "elsewhere": [], "bytes": 100, "head": ["192.0.2.7", 40000], "head_rank": 0,
    "back": True,
}  # fmt: skip


def test_a_machine_that_lacks_nothing_objects_to_nothing() -> None:
    assert Offer.of(SAID).objections("192.0.2.7") == []


def test_a_file_that_does_not_travel_has_to_be_here() -> None:
    offer = Offer.of({**SAID, "elsewhere": ["/no/such/file.csv", __file__]})
    assert offer.objections("192.0.2.7") == ["/no/such/file.csv is not here, and does not travel: copy it"]


def test_a_firewall_here_is_named() -> None:
    (line,) = replace(Offer.of(SAID), back=False).objections("192.0.2.7")
    assert "alice cannot open a connection to this machine: a firewall here drops what arrives" in line
    assert "ufw allow from 192.0.2.7" in line


def test_an_interface_that_this_machine_does_not_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "_exists", lambda host: host != "192.0.2.7")
    (line,) = Offer.of(SAID).objections("198.51.100.3")
    assert "alice trains at 192.0.2.7, which this machine does not reach" in line
    assert "--address 198.51.100.3" in line


def test_the_words_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(["alice:29471", "7-lantern-osprey"]) == (Address("alice", 29471), Code(7, "lantern-osprey"))
    monkeypatch.setattr(discovery, "_package", lambda: None)
    with pytest.raises(UsageError, match=r"needs the package zeroconf .*give the address that the other screen shows"):
        parse(["7-lantern-osprey"])
    with pytest.raises(UsageError, match="give a code, or an address and a code"):
        parse(["alice:29471", "7-lantern-osprey", "now"])
