"""What other programs do on the machine changes no wait that a test looks at."""

from __future__ import annotations

import os

import pytest

from paceline.watcher.processes.holders import Holders


@pytest.fixture(autouse=True)
def _descriptors_of_others_are_not_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that descriptors are on the way to might hold the other end of any pipe or socket.

    Tests that run beside this one start workers all the time, and a fork server that still imports receives their
    descriptors late. Only the process that runs the test counts here.
    """
    receivers = Holders._receivers.func

    def of_this_test(holders: Holders) -> frozenset[int]:
        return receivers(holders) & {os.getpid()}

    monkeypatch.setattr(Holders, "_receivers", property(of_this_test))
