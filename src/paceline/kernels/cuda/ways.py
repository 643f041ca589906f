"""How the updates of an epoch are launched: a row each.

    kernels   a kernel for each phase of an update and one for its change, one after the other
    graph     the same, many updates captured in a CUDA graph
    waiting   one kernel for many updates; its blocks wait for each other at a barrier of the text's own
    cluster   the same with the blocks of one cluster, whose barrier is the device's (Hopper and later)

The last two save what a launch costs, which matters where an update takes microseconds. They are kept only where they
win: the first epoch of some length times each way on copies of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from paceline.kernels.cuda.device import CompiledText, Device, Launch

CAPTURED = 16  # updates in a graph
UPDATES = 1000  # of one launch: a screen's watchdog, and others who share the device, wait for it
CLUSTER = 8  # blocks that any device with clusters takes


@dataclass
class Updates:
    """The kernels of a call's updates, as each way of launching needs them."""

    device: Device
    program: CompiledText
    phase: Launch  # a block per chunk
    change: Launch
    phases: int
    call: int  # the address of the call, in the device's memory
    captured: Callable[[], None] | None = None

    def one(self, number: int) -> None:
        """An update, kernel by kernel."""
        for phase in range(self.phases):
            self.program.launch("paceline_phase", self.phase, self.call, number, phase)
        self.program.launch("paceline_change", self.change, self.call, number)

    def together(self) -> Launch:
        """A launch of as many blocks as can wait for each other."""
        launch = replace(self.phase, together=True)
        return replace(launch, blocks=min(launch.blocks, self.program.resident("paceline_updates", launch)))

    def cluster(self) -> Launch:
        """A launch of one cluster."""
        return replace(self.phase, blocks=min(CLUSTER, self.phase.blocks), together=True, cluster=True)


Way = Callable[[Updates, int], None]


def kernels(updates: Updates, count: int) -> None:
    """Launches every kernel of every update on its own."""
    for number in range(count):
        updates.one(number)


def graph(updates: Updates, count: int) -> None:
    """A graph launches the same each time, so updates are counted from where the last graph ended."""

    def record() -> None:
        for number in range(CAPTURED):
            updates.one(number)
        updates.program.launch("paceline_advance", Launch(1, 1), updates.call, CAPTURED)

    replays, rest = divmod(count, CAPTURED)
    if replays:
        updates.captured = updates.captured or updates.device.capture(record)
        for _ in range(replays):
            updates.captured()
    for number in range(rest):
        updates.one(number)


def waiting(updates: Updates, count: int) -> None:
    """Launches one cooperative kernel for many updates."""
    for first, last in _stretches(count):
        updates.program.launch("paceline_updates", updates.together(), updates.call, first, last)


def cluster(updates: Updates, count: int) -> None:
    """Launches one cluster of blocks for many updates."""
    for first, last in _stretches(count):
        updates.program.launch("paceline_updates_of_cluster", updates.cluster(), updates.call, first, last)


def _stretches(count: int) -> Iterator[tuple[int, int]]:
    """The updates of each launch: (the first, the one after the last)."""
    for first in range(0, count, UPDATES):
        yield first, min(first + UPDATES, count)


WAYS: dict[str, Way] = {"kernels": kernels, "graph": graph, "waiting": waiting, "cluster": cluster}


def possible(updates: Updates) -> list[str]:
    """The ways that this device has."""
    ways = ["kernels", "graph"]
    if updates.program.resident("paceline_updates", replace(updates.phase, together=True)):
        ways.append("waiting")
    if updates.program.resident("paceline_updates_of_cluster", updates.cluster()):
        ways.append("cluster")
    return ways
