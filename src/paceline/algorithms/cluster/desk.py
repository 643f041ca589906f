"""The desk of a cluster: it leases blocks of batches to workers, and decides which servers hold which shard.

    recovering    servers report what they hold; the desk chooses a view for every shard      (not for the first desk)
    rebuilding    all views are proposed; once every one is established, the leases are rebuilt from the shards
    serving       workers get batches; views change when servers die; after a lossy change it is rebuilding again

The desk is soft state. A batch is finished if every shard has it, so the shards know all that matters: which batches
were finished, which are under way. A worker that still computes one says so when it enters. What the desk decides
wrongly (a block leased twice, since a worker was silent) costs time, and is refused by the shards, batch by batch.

The epoch fences earlier desks: servers and workers ignore messages of an epoch that is older than one they have seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum
from functools import partial

from paceline.algorithms.cluster.leases import DeskDuties, Leases, Registration
from paceline.algorithms.cluster.messages import (
    NONE,
    AllDone,
    Enter,
    Entered,
    Leased,
    Message,
    NextBatch,
    Poll,
    Process,
    Release,
    Role,
    Status,
    Unknown,
    Views,
    WhichViews,
    common,
)
from paceline.algorithms.cluster.outputs import Again, Changed, Finished, Lost, Output, Send, Timing
from paceline.algorithms.cluster.views import EPOCH_BITS, ShardViews
from paceline.algorithms.server.messages import Action, Done, Lease


class Phase(IntEnum):
    RECOVERING = 0
    REBUILDING = 1
    SERVING = 2


class DeskMachine:
    """One desk, of one epoch."""

    def __init__(
        self,
        epoch: int,
        duties: DeskDuties,
        timing: Timing,
        members: Sequence[tuple[int, ...]],
        now: float = 0.0,
        expected: Collection[int] | None = None,
    ) -> None:
        """
        Args:
            epoch: 1 for the first desk of a run, and more than any earlier one afterwards.
            members: for the first desk, the servers that hold each shard at version 0; afterwards as many empty tuples.
            expected: for a later desk, all servers that are believed to be alive, which are to report first; None if
                that is not known.
        """
        self.epoch, self.slots, self.timing = epoch, duties.slots, timing
        self.leases = Leases(duties.slots, duties.batches, duties.gate, duties.block)
        self.views = [ShardViews(shard, duties.copies, now) for shard in range(len(members))]
        self.phase = Phase.REBUILDING if epoch == 1 else Phase.RECOVERING
        self.registered: dict[Process, Registration] = {}
        #: The last status of every server.
        self.statuses: dict[int, Status] = {}
        #: When each process was heard of last, and those whose connection ended since.
        self.heard: dict[Process, float] = {}
        self.gone: set[Process] = set()
        #: Since when a process has been heard of again that was silent or gone.
        self.back: dict[Process, float] = {}
        self.since = self.rebuilding_since = now
        self.expected = None if expected is None else frozenset(expected)
        self._duties = duties
        self._members, self._made, self._beat, self._finished = members, 0, now, False
        #: Acknowledged pushes may be missing since the leases were made.
        self._lossy = False
        #: When every batch was finished, and whether a shard was being copied to another server when last looked.
        self._done_since: float | None = None
        self._copying = False

    def start(self, now: float) -> list[Output]:
        """Propose the first views, or ask what servers hold."""
        outputs: list[Output] = []
        for view, members in zip(self.views, self._members, strict=True):
            for member in members:
                self.heard[_server(member)] = now
            if members:
                outputs += view.first(self._number(), members)
        return outputs

    def handle(self, now: float, sender: Process, message: Message) -> list[Output]:
        """Take a message, and return what to do."""
        self._notice_absence(now)
        self.alive_sign(now, sender)
        self.gone.discard(sender)
        outputs: list[Output] = []
        if isinstance(message, Status):
            outputs += self._status(now, sender.number, message)
        elif isinstance(message, Enter):
            outputs += self._enter(sender, message)
        elif isinstance(message, NextBatch):
            outputs += self._next(sender, message)
        elif isinstance(message, WhichViews):
            outputs.append(Send(sender, self.valid_views()))
        return outputs

    def lost(self, now: float, process: Process) -> list[Output]:
        """Take note that the connection to a process has ended. It may be alive; then it will be heard of again."""
        self._notice_absence(now)
        self.gone.add(process)
        return self._examine_all(now)

    def alive_sign(self, now: float, process: Process) -> None:
        """Take note that a process is alive, as its heartbeat says."""
        if not self._alive(now, process):
            self.back[process] = now
        self.heard[process] = now

    def tick(self, now: float) -> list[Output]:
        """Do what is due: replace servers and workers that are silent, ask again what was not answered."""
        self._notice_absence(now)
        if now - self._beat < self.timing.heartbeat:
            return []
        self._beat = now
        outputs = self._examine_all(now)
        for view in self.views if self.phase != Phase.RECOVERING else ():
            outputs += view.ask_again(self.epoch)
        if self.phase == Phase.RECOVERING:
            servers = [process for process in self.heard if process.role is Role.SERVER]
            outputs += [Send(server, Poll(self.epoch)) for server in servers]
        return outputs

    def _notice_absence(self, now: float) -> None:
        """Count everyone's silence from now on if this desk was away, as when its machine slept."""
        if now - self._beat >= self.timing.silence:
            self.heard, self.back = dict.fromkeys(self.heard, now), dict.fromkeys(self.heard, now)
            self.since = self._beat = now
            for view in self.views:
                view.since = now

    def valid_views(self) -> Views:
        return Views(self.epoch, tuple(view.view for view in self.views if view.established))

    def _number(self) -> int:
        """Return the number of the next view: no other desk makes the same."""
        self._made += 1
        return (self.epoch << EPOCH_BITS) + self._made

    # Servers

    def _status(self, now: float, server: int, status: Status) -> Iterator[Output]:
        if status.epoch < self.epoch:
            yield Send(_server(server), Poll(self.epoch))
            return
        before = self.statuses.get(server)
        if status.epoch > self.epoch or (before is not None and before.serial >= status.serial):
            return
        self.statuses[server] = status
        for view in self.views:
            if view.shard != status.shard:
                view.statuses.pop(server, None)
        if status.shard != NONE:
            yield from self._holder(now, server, status)
        if before is None or self.phase != Phase.SERVING or _position(before) != _position(status):
            yield from self._examine_all(now)

    def _holder(self, now: float, server: int, status: Status) -> Iterator[Output]:
        """Take note of what a server holds; one that the shard has gone on without is dismissed.

        But not as soon as it is heard of again: a desk that was cut off may have been replaced, without knowing it yet,
        and what it calls left behind is what the next one continues from.
        """
        views = self.views[status.shard]
        views.note(now, server, status)
        if self.phase == Phase.RECOVERING:
            return
        if server in views.view.members:
            yield from views.proposals(self.epoch, (server,) if status.view < views.view.number else ())
        elif now - self.back.get(_server(server), -math.inf) < self.timing.silence:
            return
        elif server != views.feeding and views.established:
            views.statuses.pop(server)
            yield Send(_server(server), Release(self.epoch, status.shard, status.view))

    def _alive(self, now: float, process: Process) -> bool:
        last = self.heard.get(process)
        return last is not None and process not in self.gone and now - last < self.timing.silence

    def _silent(self, now: float, server: int) -> bool:
        """Whether a server does not count as alive, but has been heard of lately, and is not known to be gone."""
        process = _server(server)
        last = self.heard.get(process)
        recent = last is not None and now - last < 2 * self.timing.silence
        return recent and process not in self.gone and not self._alive(now, process)

    def _holds(self, now: float, server: int, shard: int) -> bool:
        """Whether a server is alive and has not lost this shard."""
        status = self.statuses.get(server)
        return (status is None or status.shard == shard) and self._alive(now, _server(server))

    def _examine_all(self, now: float) -> list[Output]:
        """Look at everyone, and at what follows from what has changed."""
        outputs: list[Output] = []
        for process in [p for p in self.registered if not self._alive(now, p)]:
            outputs += self._leave(process)
        if self.phase == Phase.RECOVERING:
            return outputs + self._recover(now)
        for view in self.views:
            holds = partial(self._holds, now, shard=view.shard)
            if any(holds(member) for member in view.view.members):
                view.since = now
            silent = now - view.since
            spare, quiet = partial(self._spare, now), partial(self._silent, now)
            outputs += view.mend(self.epoch, self._number, holds, quiet, spare, silent > self.timing.patience / 2)
            if silent > self.timing.patience:
                outputs.append(Lost(view.shard))
        if any(isinstance(output, Changed) and output.lossy for output in outputs):
            self._lossy = True
            self.phase, self.rebuilding_since = Phase.REBUILDING, now
            outputs += [Send(_server(member), Poll(self.epoch)) for view in self.views for member in view.view.members]
        settled = [view.finalize() for view in self.views]
        if any(settled):
            outputs += [Send(worker, self.valid_views()) for worker in self.registered]
        self._copying = any(self._is_being_copied(now, view) for view in self.views)
        if self.phase == Phase.REBUILDING and all(view.fresh(self.rebuilding_since) for view in self.views):
            outputs += self._rebuild()
        elif self.phase == Phase.SERVING and self.leases.done:
            outputs += self._end(now)
        return outputs

    def _is_being_copied(self, now: float, view: ShardViews) -> bool:
        """Whether a shard has fewer servers than it should, and there is one to copy it to."""
        lacks = len(view.view.members) < view.copies and self._spare(now, view) != NONE
        return lacks or not view.established or not view.safe.issuperset(view.view.members)

    def _end(self, now: float) -> Iterator[Output]:
        """Let the workers go, unless a shard is being copied.

        Its last pushes are on too few servers. If these died, too, the last batches would have to be computed again,
        and no worker would be left to do so. A copy that gets stuck is not waited for.
        """
        self._done_since = now if self._done_since is None else self._done_since
        self._copying = self._copying and now - self._done_since < self.timing.stuck
        yield from self._answer_all()

    def _spare(self, now: float, view: ShardViews) -> int:
        """Return the spare that a shard is to get, if possible the one that it is getting; NONE if there is none."""
        nodes = {self._duties.node(member) for member in view.view.members}
        occupied = {other.feeding for other in self.views if other is not view}
        occupied |= {member for other in self.views for member in other.view.members}
        free = [
            s
            for s, status in self.statuses.items()
            if s not in occupied
            and self._duties.node(s) not in nodes
            and self._alive(now, _server(s))
            and (s == view.feeding or status.shard == NONE)
        ]
        return min(free, key=lambda s: (s in view.unreached, s != view.feeding, s), default=NONE)

    # Recovering, rebuilding

    def _recover(self, now: float) -> list[Output]:
        """Choose the views, once all members have reported, or have had the time to."""
        waited = now - self.since
        missing = [v.shard for v in self.views if not any(self._holds(now, s, v.shard) for s in v.statuses)]
        if missing:
            return [Lost(missing[0])] if waited > self.timing.patience else []
        reported = {server for server, status in self.statuses.items() if status.epoch == self.epoch}
        complete = self.expected is not None and self.expected <= reported
        if not complete and waited < self.timing.silence:
            return []
        outputs: list[Output] = []
        for view in self.views:
            outputs += view.recover(self._number(), partial(self._holds, now, shard=view.shard), complete)
        self.phase = Phase.REBUILDING
        self._lossy = any(isinstance(output, Changed) and output.lossy for output in outputs)
        return outputs

    def _rebuild(self) -> Iterator[Output]:
        """Rebuild the leases from what the shards have."""
        durable = common(view.durable for view in self.views)
        active_blocks = {registration.holding for registration in self.registered.values()} - {NONE}
        leases = self.leases
        begun = [-(-view.end // leases.block) for view in self.views]
        given_out = max(leases.given_out, *begun, *(block + 1 for block in active_blocks))
        orphans = [block for block in range(given_out) if not all(b in durable for b in leases.of(block))]
        leases.ready(given_out, orphans)
        for registration in self.registered.values():
            if not isinstance(registration.answer, AllDone):  # that worker asks for nothing more: no gate waits for it
                leases.join(registration)
        # After a loss a worker may have pushed what is lost of the block that it still holds.
        leased = [block for block in orphans if self._lossy or block not in active_blocks]
        again = tuple(b for block in leased for b in leases.of(block) if b not in durable)
        if again or self._lossy:
            yield Again(again, given_out * leases.block if self.epoch > 1 and self._lossy else NONE)
        self._lossy, self._done_since = False, None
        self.phase = Phase.SERVING
        yield from self._answer_all()

    # Checkpoints

    def hold(self, paused: bool) -> list[Output]:
        """Lease nothing that was not leased before, until this is taken back: workers finish what they have."""
        self.leases.hold(paused)
        return list(self._answer_all()) if self.phase == Phase.SERVING else []

    @property
    def drained(self) -> bool:
        """Whether nothing is leased, and nothing will be before the hold is taken back."""
        return self.phase == Phase.SERVING and self.leases.held and self.leases.idle

    # Workers

    def _enter(self, worker: Process, message: Enter) -> Iterator[Output]:
        registration = self.registered.get(worker)
        if registration is None:
            occupied = {other.slot for other in self.registered.values()}
            free = [slot for slot in (worker.number, *range(self.slots)) if slot < self.slots and slot not in occupied]
            if not free:
                return  # the worker asks again
            holding = message.holding // self.leases.block if message.holding != NONE else NONE
            registration = self.registered[worker] = Registration(worker, free[0], holding)
            if self.phase == Phase.SERVING:
                self.leases.join(registration)
        yield Send(worker, Entered(self.epoch, registration.slot))
        yield Send(worker, self.valid_views())

    def _leave(self, worker: Process) -> Iterator[Output]:
        """Let a worker's block be computed by another one."""
        registration = self.registered.pop(worker)
        if self.phase == Phase.SERVING:
            self.leases.leave(registration)
            yield from self._answer_all()

    def _next(self, worker: Process, request: NextBatch) -> Iterator[Output]:
        registration = self.registered.get(worker)
        if registration is None or request.epoch != self.epoch:
            yield Send(worker, Unknown(self.epoch))
            return
        before = registration.request
        if before is not None and request.sequence <= before.sequence:
            if request.sequence == before.sequence and registration.answer is not None:
                yield Send(worker, registration.answer)
            return
        registration.request, registration.answer = request, None
        if self.phase == Phase.SERVING:
            yield from self._answer_all()

    def _finish(self, registration: Registration, request: NextBatch) -> Iterator[Output]:
        """Count a worker's block as finished, if all acknowledgements of it still hold; else lease it again."""
        block = self.leases.leased_to(registration)
        if block == NONE:
            if request.finished >= self.leases.given_out * self.leases.block:
                # An earlier desk gave it out, and its shards, but none of this desk's, have had it.
                registration.request = request._replace(finished=NONE)
                yield Again(tuple(self.leases.of(request.finished // self.leases.block)))
            return
        registration.holding = NONE
        by_all = {shard for shard, _ in request.acknowledged} == set(range(len(self.views)))
        valid = by_all and all(self.views[shard].trust.holds(view) for shard, view in request.acknowledged)
        if block * self.leases.block == request.finished and valid:
            yield from self._give(registration, self.leases.finish(registration, block))
        else:
            self.leases.return_block(registration)
            yield Again(tuple(self.leases.of(block)))

    def _answer_all(self) -> Iterator[Output]:
        """Answer every request that can be answered now: what is finished opens the gate for others."""
        for registration in self._waiting():
            assert registration.request is not None
            yield from self._finish(registration, registration.request)
        for registration in self._waiting():
            yield from self._give(registration, self.leases.ask(registration))
        if self.leases.done and not self._copying and not self._finished:
            self._finished = True
            yield Finished()

    def _waiting(self) -> list[Registration]:
        return [each for each in self.registered.values() if each.request is not None and each.answer is None]

    def _give(self, registration: Registration, action: Action) -> Iterator[Output]:
        """Answer a worker's request, unless it has to wait."""
        assert registration.request is not None
        if isinstance(action, Lease):
            registration.holding, batches = action.batch, self.leases.of(action.batch)
            registration.answer = Leased(self.epoch, registration.request.sequence, batches.start, len(batches))
        elif isinstance(action, Done) and not self._copying:
            registration.answer = AllDone(self.epoch, registration.request.sequence)
        if registration.answer is not None:
            yield Send(registration.worker, registration.answer)


def _position(status: Status) -> tuple[object, ...]:
    """Return what views depend on: everything but the progress of the training."""
    return status.shard, status.view, status.members, status.synced, status.fed


def _server(number: int) -> Process:
    return Process(Role.SERVER, number)
