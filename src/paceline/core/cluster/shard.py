"""A shard server: the primary of a shard, its backup, or a spare that holds nothing.

    worker                primary                          backup
       --- Push(batch) ---> refuses another view
                            has it?  Pushed again
                            applies it: version v
                            --- Replicate(v, batch) -------> applies it as v, if it has v - 1
       <-- Pushed --------- <-- Replicated(v) --------------
                            only when every backup of the view has v

The invariants, whatever is lost, doubled or late, and whoever is replaced:

- a batch is applied once: `applied` knows every batch, and refuses it from any worker;
- a push is acknowledged by the primary of a view only after every backup of that view has it. A primary that was
  replaced while it was paused cannot acknowledge, as its backups are in a later view;
- the versions of a backup that is in sync are the first ones of its primary's. A backup that enters a view *enrols*
  with its version. The primary answers that it is in sync, or sends a copy: after a change of view it may hold
  versions that were never acknowledged, and that the new primary lacks.

A primary keeps what it has applied in `log` until every backup has it; the engine keeps the gradients of these entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from paceline.core.cluster.applied import Applied
from paceline.core.cluster.messages import (
    NONE,
    Copy,
    Dismiss,
    Enrol,
    Feed,
    InSync,
    Message,
    Poll,
    Process,
    Propose,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Replicate,
    Replicated,
    Role,
    Status,
)
from paceline.core.cluster.outputs import Apply, Forget, Output, Restore, Send, Timing

DESK = Process(Role.DESK, 0)
LOG_LIMIT = 64  # entries that are kept for a spare which does not confirm; then it gets another copy


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
        #: The log is kept for it after this version, as long as it has not confirmed any.
        self.needs = needs
        #: When it was last sent something, or confirmed something.
        self.since = now

    @property
    def has(self) -> int:
        """The version up to which it needs nothing of the log."""
        return self.needs if self.confirmed == NONE else self.confirmed


class ShardMachine:
    """One shard server."""

    def __init__(self, number: int, timing: Timing, shard: int = NONE) -> None:
        """`shard` is the one that the server holds from the start, at version 0; NONE makes it a spare."""
        self.number, self.timing, self.shard = number, timing, shard
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
        #: Workers that wait for their push to be on every backup: version -> the batch and those who sent it.
        self.waiting: dict[int, tuple[int, set[Process]]] = {}
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
            current = self.primary and message.view == self.view
            answer = Pulled(self.shard, self.view, self.version) if current else Refused(self.shard, self.view)
            outputs.append(Send(sender, answer))
        elif isinstance(message, Replicate):
            outputs += self._replicate(sender, message)
        elif isinstance(message, Replicated):
            outputs += self._replicated(now, sender.number, message)
        elif isinstance(message, Enrol):
            outputs += self._enrol(now, sender.number, message)
        elif isinstance(message, InSync):
            if message.view == self.view and self.follows < self.view and message.version == self.version:
                self.follows, self.until = self.view, message.until
                outputs.append(Send(sender, Replicated(self.view, self.version)))
                outputs += self._caught_up()
        elif isinstance(message, Copy):
            outputs += self._copy(sender, message)
        elif isinstance(message, Propose | Feed | Dismiss | Poll) and message.epoch >= self.epoch:
            self.epoch = message.epoch
            outputs += self._obey(now, message)
        return outputs

    def tick(self, now: float) -> list[Output]:
        """Send what is due: the status, and what a follower has not confirmed."""
        outputs: list[Output] = []
        if now - self._beat >= self.timing.heartbeat:
            self._beat = now
            outputs.append(self.status())
            if self.number in self.members[1:]:  # what a backup said may have been lost
                kind = Enrol if self.follows < self.view else Replicated
                outputs.append(Send(self._server(self.members[0]), kind(self.view, self.version)))
        for number, follower in self.followers.items():
            if now - follower.since >= self.timing.resend:
                outputs += self._send_again(now, number, follower)
        return outputs

    def lost(self, now: float, process: Process) -> list[Output]:
        """Do nothing: the desk decides which servers are gone."""
        return []

    def status(self) -> Send:
        """Report to the desk."""
        self._statuses += 1
        mark, above = self.applied.key
        fed = self.feeding if self.feeding != NONE and self.followers[self.feeding].confirmed != NONE else NONE
        return Send(
            DESK,
            Status(
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
            ),
        )

    @property
    def log_start(self) -> int:
        """The oldest version whose gradient the engine still keeps."""
        return self.log[0].version if self.log else self.version + 1

    # A push, and what follows of it

    def _push(self, now: float, sender: Process, push: Push) -> Iterator[Output]:
        if not self.primary or push.view != self.view:
            yield Send(sender, Refused(self.shard, self.view))
        elif push.batch in self.applied:
            waits = next((w for b, w in self.waiting.values() if b == push.batch), None)
            if waits is None:
                yield Send(sender, Pushed(self.shard, self.view, push.batch, self.version))
            else:
                waits.add(sender)
        else:
            self.version += 1
            self.applied.add(push.batch)
            entry = Entry(self.version, push.batch, sender.number, push.base)
            self.log.append(entry)
            for number, follower in self.followers.items():  # before it is applied: backups work at the same time
                if follower.confirmed != NONE:
                    follower.since = now
                    yield Send(self._server(number), Replicate(self.view, *entry))
            yield Apply(*entry)
            self.waiting[self.version] = (push.batch, {sender})
            yield from self._acknowledge()
            if len(self.log) > LOG_LIMIT and self.feeding != NONE:
                yield self._copy_for(now, self.feeding)
                yield from self._acknowledge()

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
            follower.confirmed, follower.since = message.version, now
            yield from self._acknowledge()
        if first:
            yield from self._send_again(now, number, follower)
            yield self.status()  # a spare that is up to date may become a backup

    def _acknowledge(self) -> Iterator[Output]:
        """Acknowledge every push that all backups of the view have, and forget the log that no follower lacks."""
        held = min((self.followers[number].confirmed for number in self.members[1:]), default=self.version)
        for version in [v for v in self.waiting if v <= held]:
            batch, workers = self.waiting.pop(version)
            for worker in sorted(workers):
                yield Send(worker, Pushed(self.shard, self.view, batch, self.version))
        unneeded = min((each.has for each in self.followers.values()), default=self.version)
        while self.log and self.log[0].version <= unneeded:
            self.log.popleft()

    # Followers: enrolling, copies, what is sent again

    def _enrol(self, now: float, number: int, message: Enrol) -> Iterator[Output]:
        """Tell a backup that enters the view how it goes on."""
        follower = self.followers.get(number)
        if follower is None or not self.primary or message.view != self.view:
            return
        follower.since = now
        if self.log_start - 1 <= message.version <= self.entered_at:
            yield Send(self._server(number), InSync(self.view, message.version, self.entered_at))
        else:
            yield self._copy_for(now, number)

    def _copy_for(self, now: float, number: int) -> Send:
        """Send a follower everything; what is applied from now on is kept for it in the log."""
        follower = self.followers[number]
        follower.confirmed, follower.needs, follower.since = NONE, self.version, now
        return Send(self._server(number), Copy(self.view, self.shard, self.version, *self.applied.key))

    def _copy(self, sender: Process, message: Copy) -> Iterator[Output]:
        """Take the primary's state, unless it is older than what this server has of the same primary."""
        if message.view < self.view or (self.primary and message.view == self.view):
            return
        if message.view == self.follows and message.version <= self.version:  # an old copy, or one that was doubled
            yield Send(sender, Replicated(self.view, self.version))
            return
        if message.view > self.view:  # a spare, or a server that was replaced
            self._leave()
            self.members = ()
        self.shard, self.view, self.follows = message.shard, message.view, message.view
        self.version, self.until = message.version, message.version
        self.applied = Applied(message.mark, message.above)
        yield Restore(self.shard, self.version)
        yield Send(sender, Replicated(self.view, self.version))
        yield from self._caught_up()

    def _send_again(self, now: float, number: int, follower: Follower) -> Iterator[Output]:
        """Send a follower what it has not confirmed: the next entries of the log, or a copy of everything."""
        follower.since = now
        if follower.confirmed != NONE:
            for entry in self.log:
                if entry.version > follower.confirmed:
                    yield Send(self._server(number), Replicate(self.view, *entry))
        elif number not in self.members:  # a backup enrols until it is in sync
            yield self._copy_for(now, number)

    # What the desk wants

    def _obey(self, now: float, message: Propose | Feed | Dismiss | Poll) -> Iterator[Output]:
        if isinstance(message, Propose):
            if message.view > self.view and (self.shard == message.shard):
                self._enter(now, message)
                if not self.primary:
                    yield Send(self._server(self.members[0]), Enrol(self.view, self.version))
                yield from self._acknowledge() if self.primary else ()
            yield self.status()
        elif isinstance(message, Feed):
            if self.primary and message.view == self.view and message.spare != self.feeding:
                self.followers.pop(self.feeding, None)
                self.feeding = message.spare
                self.followers[self.feeding] = Follower(now, self.version)
                yield self._copy_for(now, self.feeding)
        elif isinstance(message, Dismiss):
            if message.view >= self.view and self.shard != NONE:
                self._leave()
                self.shard, self.members, self.version, self.applied = NONE, (), 0, Applied()
                self.follows = self.synced = 0
                yield Forget()
            yield self.status()
        else:
            yield self.status()

    def _enter(self, now: float, message: Propose) -> None:
        """Enter a view, as its primary or as a backup."""
        if message.members[0] != self.number:
            self._leave()
        self.view, self.members = message.view, message.members
        if self.primary:
            self.follows = self.synced = self.view
            self.entered_at, self.feeding = self.version, NONE
            start = self.log_start - 1
            self.followers = {number: Follower(now, start) for number in self.members[1:]}

    def _leave(self) -> None:
        """Stop being a primary: what was not acknowledged never will be."""
        self.followers, self.waiting, self.feeding = {}, {}, NONE
        self.log.clear()

    def _server(self, number: int) -> Process:
        return Process(Role.SERVER, number)
