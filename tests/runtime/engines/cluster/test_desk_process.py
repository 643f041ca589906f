"""What the desk's process tells its machine of processes that are not there yet."""

from __future__ import annotations

import pytest

from paceline.algorithms.cluster.desk import DeskMachine
from paceline.algorithms.cluster.leases import DeskDuties
from paceline.algorithms.cluster.outputs import TIMING
from paceline.algorithms.server.gates import Asynchronous
from paceline.runtime.engines.cluster.servers import desk_process, loop
from paceline.runtime.engines.cluster.servers.desk_process import DeskProcess
from tests.runtime.engines.cluster.stubs import Notes

DEADLINE = 300.0


def test_servers_that_start_slowly_are_waited_for_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a large model on a busy machine takes longer than any silence, and no longer than the deadline."""
    clock = [1000.0]
    for module in (desk_process, loop):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    machine = DeskMachine(1, DeskDuties(2, 10, Asynchronous(), 2), TIMING, [(0, 1)], clock[0])
    desk = DeskProcess(machine, Notes(), (0, 1), DEADLINE)  # type: ignore[arg-type]
    desk.start()
    while clock[0] < 1000.0 + DEADLINE - 1:
        clock[0] += 0.1
        desk.turn()
    assert machine.views[0].view.members == (0, 1)
    assert machine.views[0].safe == {0, 1}
    assert desk.lost == -1
    while clock[0] < 1000.0 + DEADLINE + TIMING.patience + 5:
        clock[0] += 0.1
        desk.turn()
    assert desk.lost == 0
