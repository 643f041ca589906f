"""A shard server: the primary of a shard, its backup, or a spare that holds nothing.

    worker                primary                          backup
       --- Push(batch) ---> refuses another view
                            has it?  Pushed again
                            applies it: version v
                            --- Replicate(v, batch) -------> applies it as v, if it has v - 1
       <-- Pushed --------- <-- Replicated(v) --------------
                            only when every backup of the view has v

The invariants, whatever is lost, doubled or late, and whatever is replaced:

- a batch is applied once: `applied` knows every batch, and refuses it from any worker;
- under a plan that gathers, a round is so many versions in a row, and each is a push computed from the parameters of
  its round. One from older parameters is answered by Late;
- a push is acknowledged by the primary of a view only after every backup of that view has it. A primary that was
  replaced while it was paused cannot acknowledge, as its backups are in a later view;
- what a worker is shown is on every backup of the view: the parameters of an answer are those of the newest version
  that all backups have, so no gradient is computed from parameters that a failure loses. Where more was lost, a
  gradient of lost parameters is answered by Late;
- the versions of a backup that is in sync are the first ones of its primary's. A backup that enters a view *enrols*
  with its version. The primary answers that it is in sync, or sends a copy: after a change of view it may hold
  versions that were never acknowledged, and that the new primary lacks.

A primary keeps what it has applied in `log` until every backup has it; the engine keeps the gradients of these entries.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from paceline.algorithms.cluster.messages import (
    DESK,
    NONE,
    Applied,
    Copy,
    Enrol,
    InSync,
    Late,
    Message,
    Poll,
    Process,
    Propose,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Release,
    Replicate,
    Replicated,
    Role,
    Start,
    Status,
    SyncSpare,
)
from paceline.algorithms.cluster.outputs import Apply, Forget, Output, Restore, Send, Timing

LOG_LIMIT = 64


class ShardMachine:
    """One shard server."""

    def __init__(
        self, number: int, timing: Timing, shard: int = NONE, log_limit: int = LOG_LIMIT, gathers: int = 0
    ) -> None:
        """
        Args:
            shard: the one that the server holds from the start, at version 0; NONE makes it a spare.
            log_limit: entries that are kept for a spare which does not confirm them.
            gathers: pushes of a round, after which the parameters change; each must be computed from the parameters of
                its round. 0: every push changes them, and may be as old as it is.
        """
        self.number, self.timing, self.shard, self.log_limit, self.gathers = number, timing, shard, log_limit, gathers
        #: The newest desk that was heard of; older ones are ignored.
        self.epoch = 0
        #: The view that the server is in; 0 before the first.
        self.view, self.members = 0, ()  # type: int, tuple[int, ...]
        #: The last view whose primary has vouched for this state, so that what it replicates continues it.
        self.follows = 0
        #: The last view in which the server had every push that was acknowledged before; reached at version `until`.
        self.synced, self.until = 0, 0
        self.version, self.applied = 0, Applied()
        self.log: deque[Entry] = deque()
        #: As primary: the other members of the view, and the spare that is brought up to date.
        self.followers: dict[int, Follower] = {}
        self.feeding = NONE
        #: The version at which this server entered its view as primary.
        self.entered_at = 0
        #: As primary: what a server that follows an earlier view has is a part of this server's state, up to a version.
        self.lineage: dict[int, int] = {}
        #: Where each primary has begun that this server's state comes from. Usually nothing was lost there: what was
        #: shown is on every backup.
        self.starts: tuple[Start, ...] = ()
        #: Workers that wait for their push to be on every backup: batch -> its version, and those who sent it.
        self.waiting: dict[int, tuple[int, set[Process]]] = {}
        #: Workers that wait for parameters, without a push.
        self.pulling: set[Process] = set()
        #: The engine's tensors have been brought to this version, so none before it can be shown.
        self.shown = 0
        #: The backup that makes no progress, or NONE.
        self.missing = NONE
        #: The newest view of each shard that it was dismissed from.
        self.left: dict[int, int] = {}
        self._beat, self._statuses = 0.0, 0

    @property
    def primary(self) -> bool:
        return bool(self.members) and self.members[0] == self.number

    def handle(self, now: float, sender: Process, message: Message) -> list[Output]:
        """Take a message, and return what to do."""
        outputs: list[Output] = []
        if isinstance(message, Push):
            outputs += self._push(now, sender, message)
        elif isinstance(message, Pull):
            if self.primary and message.view == self.view:
                self.pulling.add(sender)
                outputs += self._acknowledge()
            else:
                outputs.append(Send(sender, Refused(self.shard, self.view)))
        elif isinstance(message, Replicate):
            outputs += self._replicate(sender, message)
        elif isinstance(message, Replicated):
            outputs += self._replicated(now, sender.number, message)
        elif isinstance(message, Enrol):
            outputs += self._enrol(now, sender.number, message)
        elif isinstance(message, InSync):
            if message.view == self.view and self.follows < self.view and message.version == self.version:
                self.follows, self.until, self.starts = self.view, message.until, message.starts
                outputs.append(Send(sender, Replicated(self.view, self.version)))
                outputs += self._caught_up()
        elif isinstance(message, Copy):
            outputs += self._copy(sender, message)
        elif isinstance(message, Propose | SyncSpare | Release | Poll) and message.epoch >= self.epoch:
            self.epoch = message.epoch
            outputs += self._on_desk_message(now, message)
        return outputs

    def tick(self, now: float) -> list[Output]:
        """Send what is due: the status, and what a follower has not confirmed."""
        outputs: list[Output] = []
        if now - self._beat >= self.timing.heartbeat:
            if now - self._beat >= self.timing.silence:  # this server was away, not the others
                for follower in self.followers.values():
                    follower.progress = now
            self._beat = now
            lacking = (m for m in self.members[1:] if m in self.followers)
            self.missing = next((m for m in lacking if self.followers[m].stuck(now, self.version, self.timing)), NONE)
            outputs.append(self.status())
            if self.number in self.members[1:]:  # what a backup said may have been lost
                outputs.append(self._report())
        for number, follower in self.followers.items():
            if now - follower.since >= self.timing.resend:
                outputs += self._send_again(now, number, follower)
        return outputs

    def lost(self, now: float, process: Process) -> list[Output]:
        """Take note that the connection to a process has ended: a copy for it may have been lost.

        A follower that is alive comes back at once. One that does not is given up after a silence, as where two servers
        do not reach each other and the desk reaches both.
        """
        if process.role is Role.SERVER and (follower := self.followers.get(process.number)) is not None:
            follower.copied = NEVER
            follower.progress = min(follower.progress, now - self.timing.stuck + self.timing.silence)
        return []

    def status(self) -> Send:
        """Report to the desk."""
        self._statuses += 1
        mark, above = self.applied.key
        fed = self.feeding if self.feeding != NONE and self.followers[self.feeding].confirmed != NONE else NONE
        status = Status(
            self.epoch,
            self._statuses,
            self.shard,
            self.view,
            self.members,
            self.synced,
            self.version,
            mark,
            above,
            fed,
            self.missing,
        )
        return Send(DESK, status)

    def _report(self) -> Send:
        """Tell the primary what this backup has."""
        entering = self.follows < self.view
        message = Enrol(self.view, self.follows, self.version) if entering else Replicated(self.view, self.version)
        return Send(self._server(self.members[0]), message)

    @property
    def log_start(self) -> int:
        """The oldest version whose gradient the engine still keeps."""
        return self.log[0].version if self.log else self.version + 1

    # A push, and what follows of it

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        if not self.primary or push.view != self.view:
            yield Send(sender, Refused(self.shard, self.view))
        elif push.batch in self.applied:
            # What an earlier primary applied may not be on all backups before they have what this one entered with.
            _, workers = self.waiting.setdefault(push.batch, (self.entered_at, set()))
            workers.add(sender)
            yield from self._acknowledge()
        elif self._outdated(push):
            yield Send(sender, Late(self.shard, self.view, push.batch))
        else:
            self.version += 1
            self.applied.add(push.batch)
            entry = Entry(self.version, push.batch, sender.number, push.base)
            self.log.append(entry)
            for number, follower in self.followers.items():  # before it is applied: backups work at the same time
                if follower.confirmed == self.version - 1:
                    follower.progress = now
                if follower.confirmed != NONE:
                    follower.since = now
                    yield Send(self._server(number), Replicate(self.view, *entry))
            yield Apply(*entry)
            self.waiting[push.batch] = (self.version, {sender})
            if len(self.log) > self.log_limit and self.feeding != NONE:
                self.followers[self.feeding].needs = self.version  # it gets a copy when it has become a backup
            yield from self._acknowledge()

    def _outdated(self, push: Push) -> bool:
        """Whether a gradient is of an earlier round, or was computed from parameters that this shard has never had."""
        if self.gathers and push.base // self.gathers != self.version // self.gathers:
            return True
        later = (start for start in self.starts if start.view > push.shown)
        return push.shown != self.view and any(s.version < push.base or s.follows < push.shown for s in later)

    def _replicate(self, sender: Process, message: Replicate) -> Iterator[Output]:
        """Apply what the primary has applied."""
        if message.view < self.view:
            yield Send(sender, Refused(self.shard, self.view))
        elif message.view == self.view and self.follows == self.view and not self.primary:
            if message.version == self.version + 1:
                self.version += 1
                self.applied.add(message.batch)
                yield Apply(*message[1:])
            yield Send(sender, Replicated(self.view, self.version))
            yield from self._caught_up()

    def _caught_up(self) -> Iterator[Output]:
        """Report that the server has every acknowledged push, once it has."""
        if self.synced < self.follows and self.version >= self.until:
            self.synced = self.follows
            yield self.status()

    def _replicated(self, now: float, number: int, message: Replicated) -> Iterator[Output]:
        """Note what a follower has, and acknowledge what all backups have."""
        follower = self.followers.get(number)
        if follower is None or message.view != self.view:
            return
        first = follower.confirmed == NONE
        if message.version > follower.confirmed:
            follower.confirmed, follower.since, follower.progress = message.version, now, now
            yield from self._acknowledge()
        if first:
            yield from self._send_again(now, number, follower)
            yield self.status()  # a spare that is up to date may become a backup

    def _acknowledge(self) -> Iterator[Output]:
        """Answer every push that all backups of the view have, and forget the log that no follower lacks.

        The parameters that go with an answer are of the newest version that all backups have.
        """
        confirmed = min((self.followers[number].confirmed for number in self.members[1:]), default=self.version)
        if confirmed >= self.shown:
            for batch in [batch for batch, (version, _) in self.waiting.items() if version <= confirmed]:
                for worker in sorted(self.waiting.pop(batch)[1]):
                    self.shown = confirmed
                    yield Send(worker, Pushed(self.shard, self.view, batch, confirmed))
            for worker in sorted(self.pulling):
                self.shown = confirmed
                yield Send(worker, Pulled(self.shard, self.view, confirmed))
            self.pulling.clear()
        unneeded = min((each.has for each in self.followers.values()), default=self.version)
        while self.log and self.log[0].version <= unneeded:
            self.log.popleft()

    # Followers: enrolling, copies, what is sent again

    def _enrol(self, now: float, number: int, message: Enrol) -> Iterator[Output]:
        """Tell a backup that enters the view how it goes on."""
        follower = self.followers.get(number)
        if follower is None or message.view != self.view or follower.confirmed != NONE:  # it was lost or is outdated
            return
        follower.since = now
        if self.log_start - 1 <= message.version <= self.lineage.get(message.follows, NONE):
            yield Send(self._server(number), InSync(self.view, message.version, self.entered_at, self.starts))
        else:
            yield from self._copy_for(now, number)

    def _copy_for(self, now: float, number: int) -> Iterator[Output]:
        """Send a follower everything, unless a copy is under way; what is applied from now on is kept for it."""
        follower = self.followers[number]
        if now - follower.copied >= self.timing.stuck:
            follower.confirmed, follower.needs, follower.since, follower.copied = NONE, self.version, now, now
            self.shown = self.version
            yield Send(self._server(number), Copy(self.view, self.shard, self.version, *self.applied.key, self.starts))

    def _copy(self, sender: Process, message: Copy) -> Iterator[Output]:
        """Take the primary's state, unless it is older than what this server has of the same primary."""
        if message.view < max(self.view, self.left.get(message.shard, 0)) or (
            self.primary and message.view == self.view
        ):
            return
        if self.shard not in (NONE, message.shard):
            return  # until the desk has dismissed this server from its shard
        if message.view == self.follows and message.version <= self.version:  # an old copy, or one that was doubled
            yield Send(sender, Replicated(self.view, self.version))
            return
        if message.view > self.view:  # a spare, or a server that was replaced
            self._leave()
            self.members = ()
        self.shard, self.view, self.follows = message.shard, message.view, message.view
        self.version, self.until, self.starts = message.version, message.version, message.starts
        self.applied = Applied(message.mark, message.above)
        yield Restore(self.shard, self.version)
        yield Send(sender, Replicated(self.view, self.version))
        yield from self._caught_up()

    def _send_again(self, now: float, number: int, follower: Follower) -> Iterator[Output]:
        """Send a follower what it has not confirmed: the next entries of the log, or a copy of everything."""
        follower.since = now
        if follower.confirmed >= self.log_start - 1:
            for entry in self.log:
                if entry.version > follower.confirmed:
                    yield Send(self._server(number), Replicate(self.view, *entry))
        elif follower.confirmed != NONE or number not in self.members:  # a backup enrols until it is in sync
            yield from self._copy_for(now, number)

    # What the desk wants

    def _on_desk_message(self, now: float, message: Propose | SyncSpare | Release | Poll) -> Iterator[Output]:
        if isinstance(message, Propose):
            if message.view > self.view and self.shard == message.shard:
                self._enter(now, message)
                yield from self._acknowledge() if self.primary else [self._report()]
            yield self.status()
        elif isinstance(message, SyncSpare):
            if self.primary and message.view == self.view and message.spare not in self.members:
                yield from self._feed(now, message.spare)
        elif isinstance(message, Release):
            if message.shard == self.shard and message.view >= self.view:
                self._leave()
                self.left[self.shard] = self.view
                self.shard, self.members, self.version, self.applied, self.starts = NONE, (), 0, Applied(), ()
                self.view = self.follows = self.synced = 0
                yield Forget()
            yield self.status()
        else:
            yield self.status()

    def _feed(self, now: float, spare: int) -> Iterator[Output]:
        """Bring a spare up to date; one that has lost what it had gets another copy."""
        if spare != self.feeding:
            self.followers.pop(self.feeding, None)
            self.feeding, self.followers[spare] = spare, Follower(now, self.version)
        if self.followers[spare].confirmed != NONE or self.followers[spare].copied == NEVER:
            yield from self._copy_for(now, spare)

    def _enter(self, now: float, message: Propose) -> None:
        """Enter a view, as its primary or as a backup."""
        leads = message.members[0] == self.number
        if not (leads and self.primary):
            self._leave()
        if leads:
            self.lineage[self.follows] = self.version
            # Also for one that leads already: others may have led in between, and a desk that did not hear of them may
            # have come back to it.
            self.starts = (*self.starts, Start(message.view, self.version, self.follows))
        self.view, self.members, self.missing = message.view, message.members, NONE
        if leads:
            self.follows = self.synced = self.view
            self.entered_at, self.shown, self.feeding = self.version, self.version, NONE
            start = self.log_start - 1
            self.followers = {number: Follower(now, start) for number in self.members[1:]}

    def _leave(self) -> None:
        """Stop being a primary: what was not acknowledged never will be."""
        self.followers, self.waiting, self.lineage, self.feeding = {}, {}, {}, NONE
        self.pulling.clear()
        self.log.clear()

    def _server(self, number: int) -> Process:
        return Process(Role.SERVER, number)


# --- The servers that follow a primary, as it sees them, and what it keeps for them -----------------------------------

NEVER = -math.inf


class Entry(NamedTuple):
    """A push that the primary has applied."""

    version: int
    batch: int
    worker: int
    base: int


class Follower:
    """A backup or a spare, as its primary sees it."""

    def __init__(self, now: float, needs: int) -> None:
        #: The version up to which it has confirmed every one; NONE until it is in sync.
        self.confirmed = NONE
        #: The log is kept for it after this version.
        self.needs = needs
        #: When it was last sent something, or confirmed something.
        self.since = now
        #: When it was last sent a copy of everything, which may take long; NEVER if it has not been.
        self.copied = NEVER
        #: When it confirmed more than before, or began to lack something.
        self.progress = now

    @property
    def has(self) -> int:
        """The version up to which it needs nothing of the log."""
        return max(self.needs, self.confirmed)

    def stuck(self, now: float, version: int, timing: Timing) -> bool:
        """Whether it lacks something of a version, and has made no progress for too long."""
        copying = self.confirmed == NONE and self.copied != NEVER
        return self.confirmed < version and now - self.progress > (timing.patience if copying else timing.stuck)
