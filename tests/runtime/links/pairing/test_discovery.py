"""What machines of one network tell each other: one thing after another, and an end that leaves nothing behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.runtime.links.pairing import discovery

PATIENCE = 60.0  # seconds that a thread may take on a busy machine


class Zeroconf:
    """A service that takes as long to be registered as a test wants."""

    def __init__(self, **options: Any) -> None:
        self.log, self.begun, self.goes_on = list[str](), threading.Event(), threading.Event()
        self.closed = threading.Event()

    def register_service(self, service: str, **options: Any) -> None:
        self.begun.set()
        assert self.goes_on.wait(PATIENCE)
        self.log.append(f"register {service}")

    def unregister_service(self, service: str) -> None:
        self.log.append(f"unregister {service}")

    def close(self) -> None:
        self.log.append("close")
        self.closed.set()


def test_what_is_being_told_is_told_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    zeroconf = Zeroconf()
    package = SimpleNamespace(
        Zeroconf=lambda **options: zeroconf, ServiceInfo=lambda kind, name, *rest, **options: name.split(".")[0]
    )
    monkeypatch.setattr(discovery, "_package", lambda: package)
    announcement = discovery.Announcement(["127.0.0.1"], 29471)
    announcement.open()
    announcement.announce(7)
    announcement.announce(8)
    assert zeroconf.begun.wait(PATIENCE)
    announcement.close()
    assert zeroconf.log == []
    zeroconf.goes_on.set()
    assert zeroconf.closed.wait(PATIENCE)
    assert zeroconf.log == ["register 7", "unregister 7", "register 8", "close"]
