"""The head's side of the servers: how far the training is, the newest parameters, and the pushes they are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.algorithms.cluster.messages import NONE, Message, Process, Pull, Pulled, Role, View, Views, WhichViews
from paceline.algorithms.cluster.outputs import Adopt, Output, Timing
from paceline.errors import RunFailed
from paceline.plans.methods import Server
from paceline.runtime.engines.cluster.servers.history import KnownHistory, rows_of_pushes
from paceline.runtime.engines.cluster.servers.loop import MachineLoop, Other, peer_of
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.hub import Hub, Received
from paceline.runtime.runs.live import RunEvent
from paceline.runtime.runs.schema import from_dict
from paceline.runtime.runs.trace import Columns
from paceline.training.parameters.layout import Layout

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


class Answer(NamedTuple):
    """What a server has said of its shard."""

    server: int
    view: int
    version: int
    #: The first row that follows.
    since: int
    #: The batches in it: all below `mark`, and these.
    mark: int
    above: tuple[int, ...]
    whole: bytes
    rows: bytes


class ShardsCut(NamedTuple):
    """The shards at a moment at which each has the same batches: the first ones."""

    batches: int
    versions: list[int]
    #: The bytes of each shard's version.
    whole: list[bytes]
    #: The rows of the pushes that led there, without those that were returned before.
    pushes: Columns


class Collector:
    """`loop.MachineHost` of the head."""

    def __init__(
        self,
        hub: Hub,
        desk: Address,
        timing: Timing,
        layout: Layout,
        report: Callable[[RunEvent], None],
        server: Server,
        term: int = 0,
    ) -> None:
        """`report` is called with each event of the desk; `term` is that of the head."""
        self.layout, self.report, self.server = layout, report, server
        #: Called when the desk is connected, and when it is no longer.
        self.desk_met: Callable[[], None] = lambda: None
        self.desk_lost: Callable[[str], None] = lambda why: None
        #: Batches that are finished, workers that take part, and whether all is done.
        self.finished, self.workers, self.done = 0, 0, False
        #: Whether the desk has nothing leased, as it was asked to.
        self.drained = False
        #: Called again and again while servers are asked: a desk that ends meanwhile has to be replaced.
        self.meanwhile: Callable[[], None] = lambda: None
        #: The shard that no server holds any longer, so that the run cannot go on.
        self.lost_shard: int | None = None
        self.reader = _Reader()
        self._values: dict[int, Tensor] = {}
        #: What is known of the history of each shard, and what its server has answered last.
        self._known = {shard: KnownHistory(len(layout.shards)) for shard in range(len(layout.shards))}
        self._answers: dict[int, Answer] = {}
        #: The server that each row of `pushes` comes from.
        self.sources: list[int] = []
        self.loop = MachineLoop(Process(Role.HEAD, term), self.reader, hub, self, timing, desk)

    def turn(self, timeout: float) -> None:
        """Handle what has arrived."""
        self.loop.turn(timeout)

    def newest(self, shard: int, count: int) -> list[int]:
        """Return the batches of the last pushes of a shard, of those that were read."""
        batches: list[int] = self._known[shard].rows["batch"].tolist()
        return batches[len(batches) - count :]

    def hold(self, paused: bool) -> None:
        """Let the desk lease nothing new, or go on. A desk that is replaced has to be asked again."""
        self.loop.hub.post(peer_of(DESK), Other.HOLD, (int(paused),))

    def values(self, deadline: float) -> list[Tensor]:
        """Return the newest vector of every shard, from its primary."""
        self._values = {}

        def ask(view: View) -> None:
            if view.shard not in self._values:
                self.loop.send(Process(Role.SERVER, view.members[0]), Pull(view.shard, view.number))

        self._ask(ask, lambda: self._values, deadline)
        return [self._values[shard] for shard in range(len(self.layout.shards))]

    def pushes(self, deadline: float) -> Columns:
        """Return the rows of pushes that were not returned before; `sources` says whose clock each row shows."""
        self._read(False, deadline)
        return self._news()

    def lacking(self, batches: int) -> list[int]:
        """Return the shards that did not have all of the first batches when they were read last."""
        return [shard for shard, answer in sorted(self._answers.items()) if answer.mark < batches]

    def cut(self, deadline: float) -> ShardsCut | None:
        """Return the versions of all shards, if each has the first batches and no other; None if one does not."""
        self._read(True, deadline)
        answers = [self._answers[shard] for shard in range(len(self.layout.shards))]
        batches = {answer.mark for answer in answers}
        if len(batches) > 1 or any(answer.above for answer in answers):
            return None
        versions, contents = [answer.version for answer in answers], [answer.whole for answer in answers]
        return ShardsCut(batches.pop(), versions, contents, self._news())

    def _read(self, with_values: bool, deadline: float) -> None:
        """Ask every shard for what is new in its history, and for its version."""
        self._answers = {}

        def ask(view: View) -> None:
            if view.shard not in self._answers:
                history, server = self._known[view.shard], Process(Role.SERVER, view.members[0])
                ints = (history.count, history.checksum, int(with_values))
                self.loop.hub.post(peer_of(server), Other.HISTORY, ints)

        self._ask(ask, lambda: self._answers, deadline)

    def _news(self) -> Columns:
        """Return the new rows of the histories that were read last."""
        histories = [self._known[shard] for shard in range(len(self.layout.shards))]
        counts = [each.count for each in histories]
        new = [each.take(self._answers[n].since, self._answers[n].rows) for n, each in enumerate(histories)]
        gathers, joins = self.server.gathers, self.server.exchange is not None
        tables = rows_of_pushes([each.rows for each in histories], counts, new, gathers, joins)
        self.sources = [self._answers[n].server for n, table in enumerate(tables) for _ in table]
        return np.concatenate(tables)

    def _ask(self, ask: Callable[[View], None], answered: Callable[[], Collection[int]], deadline: float) -> None:
        """Ask the primary of every shard, again and again, until all have answered."""
        end, due = monotonic() + deadline, 0.0
        while len(answered()) < len(self.layout.shards):
            if monotonic() >= end:
                missing = [s for s in range(len(self.layout.shards)) if s not in answered()]
                raise RunFailed(
                    f"the servers of shard {' and '.join(map(str, missing))} have not answered the head within "
                    f"{deadline:.0f} s"
                )
            if monotonic() >= due:
                due = monotonic() + 1.0
                self.loop.send(DESK, WhichViews())
                for view in self.reader.views.values():
                    ask(view)
            before = len(self.reader.views)
            self.loop.turn(0.05)
            self.meanwhile()
            if len(self.reader.views) > before:
                due = 0.0

    def bodies(self, to: Process, message: Message, body: memoryview) -> Sequence[Buffer]:
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
            self.drained = bool(ints[4])
        elif kind == Other.EVENT:
            self.report(from_dict(RunEvent, json.loads(bytes(body))))
        elif kind == Other.HISTORY:
            shard, view, version, since, size, mark, *above = ints
            rows = bytes(body[size:])
            answer = Answer(sender.number, view, version, since, mark, tuple(above), bytes(body[:size]), rows)
            current = self.reader.views.get(shard)
            if current is not None and current.number == view:  # not a server that the shard has gone on without
                self._answers.setdefault(shard, answer)

    def arrived(self, process: Process) -> None:
        """Take note of the desk; what was asked is asked again."""
        if process == DESK:
            self.desk_met()

    def departed(self, process: Process, why: str) -> None:
        """Take note of a desk that is lost; of servers the desk tells."""
        if process == DESK:
            self.desk_lost(why)
