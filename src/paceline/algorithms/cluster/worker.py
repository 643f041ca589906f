"""A worker of a cluster: it asks the desk for a block of batches, computes their gradients one after another, and
pushes each to every shard.

    ENTERING --Entered, Views--> PULLING --Pulled from every shard--> ASKING --Leased--> COMPUTING <--------+
                                                                        ^                    | `computed`   |
                                                     AllDone            | last of the        v              | next of
                                          FINISHED <------- ASKING      +--- block --- PUSHING -- Pushed ---+ the block
                                                                                                  by all
Under a plan that gathers gradients it pulls again before it computes. Under any plan it does when a push is answered by
Late: the gradient is of an earlier round, or of parameters that were lost with their servers; it is computed again.
It pushes to all shards at once, and takes the newest parameters of each with the answer. What is not answered is sent
again, to the primary of the newest view: a shard that has the batch already says so. To a desk that does not know it
the worker says which block it holds, named by its first batch, and continues with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from paceline.algorithms.cluster.messages import (
    DESK,
    NONE,
    Acknowledged,
    AllDone,
    Enter,
    Entered,
    Late,
    Leased,
    Message,
    NextBatch,
    Process,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Role,
    Unknown,
    View,
    Views,
    WhichViews,
)
from paceline.algorithms.cluster.outputs import Adopt, ComputeGradient, Finished, Output, Send, Timing


class Stage(IntEnum):
    PULLING = 0
    ASKING = 1
    COMPUTING = 2
    PUSHING = 3
    FINISHED = 4


class WorkerMachine:
    """One worker."""

    def __init__(self, number: int, shards: int, timing: Timing, pulls: bool = False) -> None:
        """Take the newest parameters before computing if `pulls`, as under a plan that gathers gradients."""
        self.number, self.shards, self.timing, self.pulls = number, shards, timing, pulls
        #: The newest desk that was heard of, and whether it knows this worker.
        self.epoch, self.entered = 0, False
        #: Whether this worker has introduced itself to that desk. Only `tick` does so again: every answer brings the
        #: views, so a worker that answered views by entering would never end where messages overtake each other.
        self._greeted = False
        #: The worker's number in the plan, which the desk gives it.
        self.slot = NONE
        self.stage = Stage.PULLING
        self.views: dict[int, View] = {}
        #: The batch that is computed or pushed, and the batches of its block.
        self.batch, self.block = NONE, range(0)
        #: The number of the last request for a block, and the first batch of the one that was finished before.
        self.sequence, self.finished = 0, NONE
        #: The version of each shard that the worker computes with.
        self.base = [0] * shards
        #: The view that has shown it.
        self.shown = [0] * shards
        #: The shards whose answer is awaited.
        self.awaited = set(range(shards))
        #: What has acknowledged the pushes of the block.
        self.acknowledged: set[Acknowledged] = set()
        self._since, self._beat = 0.0, 0.0

    def start(self, now: float) -> list[Output]:
        self._since = self._beat = now
        return [Send(DESK, Enter(NONE))]

    def handle(self, now: float, sender: Process, message: Message) -> list[Output]:
        """Take a message, and return what to do."""
        if self.stage is Stage.FINISHED:
            return []
        if isinstance(message, Entered | Unknown | Views | Leased | AllDone):
            if message.epoch < self.epoch:
                return []
            if message.epoch > self.epoch:
                self.epoch, self.entered, self._greeted = message.epoch, False, False
        outputs: list[Output] = []
        if isinstance(message, Unknown):
            if self.entered or not self._greeted:
                self.entered = False
                outputs.append(self._enter())
        elif isinstance(message, Entered):
            outputs += self._entered(now, message)
        elif isinstance(message, Views):
            outputs += self._new_views(now, message)
        elif isinstance(message, Leased | AllDone):
            outputs += self._answered(now, message)
        elif isinstance(message, Pushed):
            outputs += self._pushed(now, message)
        elif isinstance(message, Pulled):
            outputs += self._pulled(now, message)
        elif isinstance(message, Late) and self.stage is Stage.PUSHING and message.batch == self.batch:
            outputs += self._pull(now)
        elif isinstance(message, Refused) and message.shard in self.awaited and self._waits:
            outputs.append(Send(DESK, WhichViews()))
        return outputs

    def tick(self, now: float) -> list[Output]:
        """Send again what has not been answered."""
        if now - self._since < self.timing.resend or self.stage in (Stage.COMPUTING, Stage.FINISHED):
            return []
        self._since = now
        if not self.entered:
            return [self._enter()]
        if self.stage is Stage.ASKING:
            return [self._request()]
        return [*self._exchanges(self.awaited), Send(DESK, WhichViews())]

    def lost(self, now: float, process: Process) -> list[Output]:
        """Ask for the newest views if the connection to a primary has ended that owes an answer."""
        owes = any(self._waits and s in self.views and self.views[s].members[0] == process.number for s in self.awaited)
        return [Send(DESK, WhichViews())] if process.role is Role.SERVER and owes else []

    def computed(self, now: float) -> list[Output]:
        """Push the gradient of the batch, which is ready, to every shard."""
        self.stage, self.awaited, self._since = Stage.PUSHING, set(range(self.shards)), now
        return self._exchanges(self.awaited)

    @property
    def _waits(self) -> bool:
        """Whether the worker waits for shards."""
        return self.stage in (Stage.PULLING, Stage.PUSHING)

    def _enter(self) -> Send:
        self._greeted = True
        return Send(DESK, Enter(self.block.start if self.block else NONE))

    def _request(self) -> Send:
        return Send(DESK, NextBatch(self.epoch, self.sequence, self.finished, tuple(sorted(self.acknowledged))))

    def _exchanges(self, shards: set[int]) -> list[Output]:
        """Push to these shards, or pull from them, as far as their primaries are known."""
        views = [self.views[shard] for shard in sorted(shards) if shard in self.views]
        outputs: list[Output] = []
        for shard, number, members in views:
            pushing = self.stage is Stage.PUSHING
            pushed = Push(shard, number, self.batch, self.base[shard], self.shown[shard])
            message = pushed if pushing else Pull(shard, number)
            outputs.append(Send(Process(Role.SERVER, members[0]), message))
        return outputs

    def _entered(self, now: float, message: Entered) -> Iterator[Output]:
        if not self.entered:
            self.entered, self.slot, self._since = True, message.slot, now
            if self.stage is Stage.ASKING:
                yield self._request()

    def _new_views(self, now: float, message: Views) -> Iterator[Output]:
        """Take the newer views, and turn to the new primaries."""
        newer = {view.shard for view in message.views if view.number > self.views.get(view.shard, view).number}
        newer |= {view.shard for view in message.views if view.shard not in self.views}
        self.views |= {view.shard: view for view in message.views if view.shard in newer}
        if not (self.entered or self._greeted):
            yield self._enter()
        if self._waits and (again := newer & self.awaited):
            self._since = now
            yield from self._exchanges(again)

    def _answered(self, now: float, message: Leased | AllDone) -> Iterator[Output]:
        if self.stage is Stage.ASKING and message.sequence == self.sequence:
            self.finished = NONE
            self.acknowledged.clear()
            if isinstance(message, Leased):
                self.block, self.batch = range(message.batch, message.batch + message.length), message.batch
                yield from self._begin(now)
            else:
                self.stage, self.batch, self.block = Stage.FINISHED, NONE, range(0)
                yield Finished()

    def _pushed(self, now: float, message: Pushed) -> Iterator[Output]:
        if self.stage is Stage.PUSHING and message.batch == self.batch and message.shard in self.awaited:
            self.acknowledged.add(Acknowledged(message.shard, message.view))
            yield from self._exchanged(now, message)

    def _pulled(self, now: float, message: Pulled) -> Iterator[Output]:
        if self.stage is Stage.PULLING and message.shard in self.awaited:
            yield from self._exchanged(now, message)

    def _exchanged(self, now: float, message: Pushed | Pulled) -> Iterator[Output]:
        """Compute with a shard's newest parameters; when all have answered, continue with the block, or ask for one."""
        shard, version = message.shard, message.version
        self.awaited.discard(shard)
        self.base[shard], self.shown[shard] = version, message.view
        yield Adopt(shard, version, self.stage is Stage.PUSHING)
        if not self.awaited and self.stage is Stage.PULLING and self.batch != NONE:
            self.stage = Stage.COMPUTING
            yield ComputeGradient(self.batch)
        elif not self.awaited:
            yield from self._next(now)

    def _begin(self, now: float) -> Iterator[Output]:
        """Compute the batch; if parameters may not be old, pull them before."""
        if self.pulls:
            yield from self._pull(now)
        else:
            self.stage = Stage.COMPUTING
            yield ComputeGradient(self.batch)

    def _pull(self, now: float) -> list[Output]:
        """Pull the newest parameters of every shard."""
        self.stage, self.awaited, self._since = Stage.PULLING, set(range(self.shards)), now
        return self._exchanges(self.awaited)

    def _next(self, now: float) -> Iterator[Output]:
        """Compute the next batch of the block, or ask for another block after its last one."""
        if self.batch + 1 in self.block:
            self.batch += 1
            yield from self._begin(now)
            return
        self.stage, self._since = Stage.ASKING, now
        self.finished, self.sequence = self.block.start if self.block else NONE, self.sequence + 1
        if self.entered:
            yield self._request()
