"""The head's side of the servers: how far the training is, the newest parameters, and the pushes they are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from paceline.core.cluster.messages import NONE, Message, Process, Pull, Pulled, Role, View, Views, WhichViews
from paceline.core.cluster.outputs import Adopt, Output, Timing
from paceline.engines.cluster.servers.loop import MachineLoop
from paceline.engines.cluster.servers.shard_state import history_dtype
from paceline.engines.cluster.servers.wire import Other, peer_of
from paceline.errors import RunFailed
from paceline.links.tcp.connection import Buffer
from paceline.links.tcp.doors import Address
from paceline.links.tcp.hub import Hub, Received
from paceline.parameters.layout import Layout
from paceline.runs.events import Event
from paceline.runs.schema import from_dict
from paceline.runs.trace import DTYPE, Columns, Kind

DESK = Process(Role.DESK, 0)


class _Reader:
    """The machine of a process that only reads."""

    def __init__(self) -> None:
        self.views: dict[int, View] = {}

    def handle(self, now: float, sender: Process, message: Message) -> list[Output]:
        if isinstance(message, Views):
            self.views |= {view.shard: view for view in message.views}
        return [Adopt(message.shard, message.version)] if isinstance(message, Pulled) else []

    def tick(self, now: float) -> list[Output]:
        return []

    def lost(self, now: float, process: Process) -> list[Output]:
        return []


class Collector:
    """`loop.Owner` of the head."""

    def __init__(self, hub: Hub, desk: Address, timing: Timing, layout: Layout, tell: Callable[[Event], None]) -> None:
        """`tell` is called with each event that the desk tells of."""
        self.layout, self.tell = layout, tell
        #: Called when the desk is connected, and when it is no longer.
        self.desk_met: Callable[[], None] = lambda: None
        self.desk_lost: Callable[[str], None] = lambda why: None
        #: Batches that are finished, workers that take part, and whether all is done.
        self.finished, self.workers, self.done = 0, 0, False
        #: The shard that no server holds any longer, so that the run cannot go on.
        self.lost_shard: int | None = None
        self.reader = _Reader()
        self._values: dict[int, Tensor] = {}
        self._histories: dict[int, Columns] = {}
        #: The server that each row of `pushes` comes from.
        self.sources: list[int] = []
        self._sources: dict[int, int] = {}
        self.loop = MachineLoop(Process(Role.HEAD, 0), self.reader, hub, self, timing, desk)

    def turn(self, timeout: float) -> None:
        """Handle what has arrived."""
        self.loop.turn(timeout)

    def values(self, deadline: float, called_off: Callable[[], bool] = lambda: False) -> list[Tensor]:
        """Return the newest vector of every shard, from its primary."""
        self._values = {}

        def ask(view: View) -> None:
            if view.shard not in self._values:
                self.loop.send(Process(Role.SERVER, view.members[0]), Pull(view.shard, view.number))

        self._ask(ask, lambda: len(self._values), deadline)
        return [self._values[shard] for shard in range(len(self.layout.shards))]

    def pushes(self, deadline: float) -> Columns:
        """Return the rows of all pushes that the shards are made of; `sources` says whose clock each row shows."""
        self._histories, self._sources = {}, {}

        def ask(view: View) -> None:
            if view.shard not in self._histories:
                server = Process(Role.SERVER, view.members[0])
                self.loop.hub.post(peer_of(server), Other.HISTORY)

        self._ask(ask, lambda: len(self._histories), deadline)
        taken = {
            shard: set(zip(h["worker"].tolist(), h["batch"].tolist(), strict=True))
            for shard, h in self._histories.items()
        }
        parts: list[Columns] = []
        self.sources = []
        for shard, history in self._histories.items():
            found = [_rows(shard, history, self.layout), *(_pulls(other, history, taken[other]) for other in taken)]
            parts += found
            self.sources += [self._sources[shard]] * sum(map(len, found))
        return np.concatenate(parts)

    def _ask(self, ask: Callable[[View], None], answered: Callable[[], int], deadline: float) -> None:
        """Ask the primary of every shard, again and again, until all have answered."""
        end, due = monotonic() + deadline, 0.0
        while answered() < len(self.layout.shards):
            if monotonic() >= end:
                raise RunFailed(f"the servers have not answered the head within {deadline:.0f} s")
            if monotonic() >= due:
                due = monotonic() + 1.0
                self.loop.send(DESK, WhichViews())
                for view in self.reader.views.values():
                    ask(view)
            before = len(self.reader.views)
            self.loop.turn(0.05)
            if len(self.reader.views) > before:
                due = 0.0

    def bodies(self, message: Message, body: memoryview) -> Sequence[Buffer]:
        return ()

    def carry_out(self, output: Output, body: memoryview) -> None:
        if isinstance(output, Adopt):
            self._values[output.shard] = torch.frombuffer(bytearray(body), dtype=self.layout.dtype)

    def handled(self, message: Message, body: memoryview) -> None:
        """Nothing has to be released."""

    def postpones(self, event: Received, message: Message) -> bool:
        return False

    def other(self, sender: Process, kind: int, ints: tuple[int, ...], body: memoryview) -> None:
        if kind == Other.PROGRESS:
            self.finished, self.workers, self.done = ints[0], ints[1], bool(ints[2])
            self.lost_shard = ints[3] if ints[3] != NONE else None
        elif kind == Other.EVENT:
            self.tell(from_dict(Event, json.loads(bytes(body))))
        elif kind == Other.HISTORY and ints[0] not in self._histories:
            dtype = history_dtype(len(self.layout.shards))
            self._histories[ints[0]] = np.frombuffer(bytes(body), dtype)
            self._sources[ints[0]] = sender.number

    def arrived(self, process: Process) -> None:
        """Take note of the desk; what was asked is asked again."""
        if process == DESK:
            self.desk_met()

    def departed(self, process: Process, why: str) -> None:
        """Take note of a desk that is lost; of servers the desk tells."""
        if process == DESK:
            self.desk_lost(why)


def _rows(shard: int, history: Columns, layout: Layout) -> Columns:
    """Return a shard's history as rows of the trace; each push moved gradients there and parameters back."""
    rows = np.zeros(len(history), DTYPE)
    rows["kind"], rows["shard"], rows["update"] = Kind.APPLY, shard, history["batch"]
    for name in ("version", "worker", "base", "start", "end"):
        rows[name] = history[name]
    rows["bytes"] = history["pushed"] + layout.shards[shard].length * layout.bytes_per_number
    return rows


def _pulls(shard: int, history: Columns, taken: set[tuple[int, int]]) -> Columns:
    """Return which version of another shard a push was computed from, where that one did not take it."""
    keys = zip(history["worker"].tolist(), history["batch"].tolist(), strict=True)
    missing = history[np.array([key not in taken for key in keys], bool)]
    rows = np.zeros(len(missing), DTYPE)
    rows["kind"], rows["shard"], rows["update"] = Kind.PULL, shard, missing["batch"]
    rows["worker"], rows["base"], rows["version"] = missing["worker"], missing["bases"][:, shard], -1
    rows["start"] = rows["end"] = missing["start"]
    return rows
