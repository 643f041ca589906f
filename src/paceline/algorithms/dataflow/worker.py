"""The program of a worker with operators: it yields effects, and is sent their answers.

    Take --message--> what the message says          as long as one has arrived
    Take --None-----> Compute --> Update             else the next call, forward or backward, and what it completes

The first worker also admits instances: it records each, and tells its holders to begin it. Whatever a program has
decided between two messages lies in its `Client`. So a program that is begun again on a copy goes on from there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from paceline.algorithms.dataflow import BEGIN, DRAINED, ENDED, Graph, Message, Work
from paceline.algorithms.dataflow.holder import Holder, OperatorUpdate, Outcome


class Admission:
    """Admission: how many instances are under way.

    One worker admits instances in their order: the next one as soon as fewer than `active` are under way
    (max_active_keys in the paper). An instance has ended when each of its holders has computed all of its gradients.
    Between two epochs all come to their end, so that an evaluation sees parameters that no instance is still changing.

    Admits instances 0, 1, ... up to the last of each pass; `passes` holds the number behind the last of each.
    """

    def __init__(self, passes: Sequence[int], active: int) -> None:
        self.passes, self.active, self.next = tuple(passes), active, 0
        #: For each instance under way, the holders that have not ended it yet.
        self.open: dict[int, int] = {}
        #: Passes after which the workers were told that everything has ended.
        self.drained = 0

    @property
    def may_begin(self) -> bool:
        """Whether the next instance may begin."""
        return self.next < self.passes[self.drained] and len(self.open) < self.active

    def begin(self, holders: Sequence[int]) -> list[Message]:
        """Begin the next instance; return the messages to the workers that have a part in it."""
        instance = self.next
        self.open[instance] = len(holders)
        self.next += 1
        return [Message(worker, BEGIN, instance) for worker in holders]

    def drain(self, workers: int) -> list[Message]:
        """End a pass, of which nothing is under way; return the messages to all workers."""
        self.drained += 1
        return [Message(worker, DRAINED, -1, self.drained - 1) for worker in range(workers)]

    def ended(self, instance: int) -> None:
        """Take note that one of an instance's holders has ended it."""
        self.open[instance] -= 1
        if not self.open[instance]:
            del self.open[instance]

    @property
    def finished(self) -> bool:
        return self.drained == len(self.passes)

    def key(self) -> tuple[Any, ...]:
        return self.next, tuple(sorted(self.open.items())), self.drained

    def copy(self) -> Admission:
        copied = Admission(self.passes, self.active)
        copied.next, copied.open, copied.drained = self.next, dict(self.open), self.drained
        return copied


class Take(NamedTuple):
    """Take a message that has arrived. The answer is the message, or None: do the work instead."""

    #: What can be done without a message; None where the worker has to wait for one.
    work: Work | None


class Send(NamedTuple):
    """Send a message without numbers to another worker."""

    message: Message


class Record(NamedTuple):
    """Record which operators an instance calls. The answer is its graph."""

    instance: int


class Compute(NamedTuple):
    """Compute a call, forward or backward, send its numbers on, and count a gradient that is complete."""

    work: Work
    outcome: Outcome


class Update(NamedTuple):
    """Make an update of an operator, which this instance has completed."""

    step: OperatorUpdate
    instance: int


class Forget(NamedTuple):
    """Forget an instance, for which this worker has nothing more to do."""

    instance: int


class Drain(NamedTuple):
    """End a pass over the data by the updates of what is left of it."""

    steps: Sequence[OperatorUpdate]
    passed: int


Effect = Take | Send | Record | Compute | Update | Forget | Drain
Program = Generator[Any, Any, None]  # of effects


class Client:
    """A worker as its program knows it; `passes` holds the number behind the last instance of each pass."""

    def __init__(self, number: int, workers: int, passes: Sequence[int], active: int, machine: Holder) -> None:
        self.number, self.workers, self.passes, self.machine = number, workers, len(passes), machine
        self.admission = None if number else Admission(passes, active)
        #: Passes that have come to their end here.
        self.passed = 0

    @property
    def ended(self) -> bool:
        return self.passed == self.passes

    def key(self) -> tuple[Any, ...]:
        return self.passed, self.machine.key(), self.admission.key() if self.admission is not None else None

    def copy(self) -> Client:
        copied: Client = object.__new__(Client)
        copied.__dict__.update(self.__dict__, machine=self.machine.copy())
        copied.admission = self.admission.copy() if self.admission is not None else None
        return copied


def follow_messages(client: Client) -> Program:
    """Compute whatever messages have made ready, until every pass has come to its end."""
    machine = client.machine
    yield from _admit(client)
    while not client.ended:
        work = machine.next()
        message = yield Take(work)
        if message is not None:
            yield from _handle(client, message)
            continue
        assert work is not None
        outcome = machine.done(work)
        yield Compute(work, outcome)
        if outcome.step is not None:
            yield Update(outcome.step, work.instance)
        if outcome.ended:
            yield Forget(work.instance)
            yield from _send(client, Message(0, ENDED, work.instance))


def _handle(client: Client, message: Message) -> Program:
    """Do what a message says."""
    if message.what == BEGIN:
        client.machine.begin(message.instance, (yield Record(message.instance)))
    elif message.what == ENDED:
        assert client.admission is not None
        client.admission.ended(message.instance)
        yield from _admit(client)
    elif message.what == DRAINED:
        yield Drain(client.machine.drain(), message.call)
        client.passed += 1
    else:
        client.machine.arrive(message)


def _send(client: Client, message: Message) -> Program:
    if message.to == client.number:
        yield from _handle(client, message)
    else:
        yield Send(message)


def _admit(client: Client) -> Program:
    """Begin the instances that may begin; end a pass all of whose instances have ended."""
    admission = client.admission
    while admission is not None and not admission.finished:
        if admission.may_begin:
            instance = admission.next
            graph: Graph = yield Record(instance)
            for message in admission.begin(graph.holders):
                yield from _send(client, message)
            if client.number not in graph.holders:
                yield Forget(instance)
        elif admission.open:
            return
        else:
            for message in admission.drain(client.workers):
                yield from _send(client, message)
