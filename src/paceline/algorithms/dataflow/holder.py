"""What a worker with operators does next, what it sends, and when an operator makes an update.

Of the work whose messages are there, a gradient comes before a value, since it lets an instance end and frees what is
kept for it; among equals the instance that was admitted first comes first.

An operator makes an update when `every` instances have brought it all of their gradients since its last one
(min_update_frequency in the paper, which counts messages). Nothing waits for an update: the next message is computed
with whatever the parameters then are. So an instance may meet older parameters on its way forward than back.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from paceline.algorithms.dataflow import BACKWARD, FORWARD, GRADIENT, NO_OPERATOR, VALUE, Graph, Message, Work
from paceline.errors import ProtocolError


class OperatorUpdate(NamedTuple):
    """An update of an operator."""

    operator: int
    #: The instances whose gradients it is made of.
    instances: tuple[int, ...]


class Outcome(NamedTuple):
    """What follows from a piece of work."""

    sends: list[Message]
    #: The operator all of whose gradients of this instance are there now; `NO_OPERATOR` if there is none.
    completes: int
    step: OperatorUpdate | None
    #: Whether this worker has nothing more to do for the instance.
    ended: bool


class Holder:
    """The machine of one worker."""

    def __init__(self, number: int, every: int) -> None:
        self.number, self.every = number, every
        self.graphs: dict[int, Graph] = {}
        #: By (instance, call): messages that the next piece of work on this call still waits for.
        self.missing: dict[tuple[int, int], int] = {}
        #: Calls that have been computed forward and wait for their gradients.
        self.forwarded: set[tuple[int, int]] = set()
        #: By (instance, operator): calls whose gradients are not there yet.
        self.owed: dict[tuple[int, int], int] = {}
        #: By instance: calls of this worker that have not been computed backward.
        self.left: dict[int, int] = {}
        #: By operator: the instances that it has gradients of, since its last update.
        self.counted: dict[int, tuple[int, ...]] = {}
        #: Values of instances that have not begun here: another worker was told first.
        self.early: dict[int, list[Message]] = {}
        #: A heap of what became ready, some of which may be done already.
        self._heap: list[tuple[bool, int, int]] = []

    def begin(self, instance: int, graph: Graph) -> None:
        """Begin an instance."""
        self.graphs[instance] = graph
        mine = graph.held_by(self.number)
        self.left[instance] = len(mine)
        for number in mine:
            call = graph.calls[number]
            self.missing[instance, number] = len(call.takes)
            self._enqueue_if_ready(instance, number)
            if call.operator != NO_OPERATOR:
                key = instance, call.operator
                self.owed[key] = self.owed.get(key, 0) + 1
        for message in self.early.pop(instance, []):
            self.arrive(message)

    def arrive(self, message: Message) -> None:
        """Take note of a value or a gradient that another worker has sent."""
        if message.instance not in self.graphs:
            self.early.setdefault(message.instance, []).append(message)
        elif message.what == VALUE:
            for user in self.graphs[message.instance].users[message.call]:
                self._bring(message.instance, user)
        else:
            self._bring(message.instance, message.call)

    def _bring(self, instance: int, call: int) -> None:
        """Count one message that a call has waited for."""
        if self.graphs[instance].calls[call].holder != self.number:
            return
        if not self.missing.get((instance, call)):
            raise ProtocolError(f"call {call} of instance {instance} got a message that it does not wait for")
        self.missing[instance, call] -= 1
        self._enqueue_if_ready(instance, call)

    def _enqueue_if_ready(self, instance: int, call: int) -> None:
        """Remember a call that waits for nothing any longer; the newest call comes first on the way back."""
        if not self.missing[instance, call]:
            back = (instance, call) in self.forwarded
            heapq.heappush(self._heap, (not back, instance, -call if back else call))

    def ready(self, work: Work) -> bool:
        """Whether a piece of work could be done now."""
        key = work.instance, work.call
        return self.missing.get(key) == 0 and (key in self.forwarded) == (work.what == BACKWARD)

    def next(self) -> Work | None:
        """Return what to do next; None if nothing can be done before a message arrives."""
        while self._heap:
            on, instance, call = self._heap[0]
            work = Work(FORWARD if on else BACKWARD, instance, abs(call))
            if self.ready(work):
                return work
            heapq.heappop(self._heap)
        return None

    def done(self, work: Work) -> Outcome:
        """Take note that a piece of work is done."""
        return self._sent_on(work) if work.what == FORWARD else self._sent_back(work)

    def _sent_on(self, work: Work) -> Outcome:
        """A value was computed: it goes once to each worker that takes it."""
        _, instance, call = work
        graph = self.graphs[instance]
        users = graph.users[call]
        self.forwarded.add((instance, call))
        self.missing[instance, call] = len(users)  # their gradients; none for the loss, which begins the way back
        self._enqueue_if_ready(instance, call)
        holders = {graph.calls[user].holder for user in users}
        sends = [Message(other, VALUE, instance, call) for other in sorted(holders - {self.number})]
        for user in users:
            self._bring(instance, user)
        return Outcome(sends, NO_OPERATOR, None, False)

    def _sent_back(self, work: Work) -> Outcome:
        """A gradient was computed: a part of it goes to each call whose value was taken."""
        _, instance, call = work
        graph = self.graphs[instance]
        operator = graph.calls[call].operator
        del self.missing[instance, call]
        self.forwarded.discard((instance, call))
        sends = []
        for other in graph.calls[call].takes:
            if (holder := graph.calls[other].holder) == self.number:
                self._bring(instance, other)
            else:
                sends.append(Message(holder, GRADIENT, instance, other, call))
        self.left[instance] -= 1
        ended = not self.left[instance]
        completes, step = NO_OPERATOR, None
        if operator != NO_OPERATOR:
            self.owed[instance, operator] -= 1
            if not self.owed[instance, operator]:
                del self.owed[instance, operator]
                completes = operator
                self.counted[operator] = (*self.counted.get(operator, ()), instance)
                step = self._step(operator) if len(self.counted[operator]) >= self.every else None
        if ended:
            del self.left[instance], self.graphs[instance]
        return Outcome(sends, completes, step, ended)

    def drain(self) -> list[OperatorUpdate]:
        """Return the updates of what is left at the end of a pass."""
        return [self._step(operator) for operator in sorted(self.counted) if self.counted[operator]]

    def _step(self, operator: int) -> OperatorUpdate:
        return OperatorUpdate(operator, self.counted.pop(operator))

    def key(self) -> tuple[Any, ...]:
        early = tuple((each, tuple(sorted(messages))) for each, messages in sorted(self.early.items()))
        missing, owed = tuple(sorted(self.missing.items())), tuple(sorted(self.owed.items()))
        return missing, tuple(sorted(self.forwarded)), owed, tuple(sorted(self.counted.items())), early

    def copy(self) -> Holder:
        copied = type(self)(self.number, self.every)
        copied.graphs, copied.missing, copied.forwarded = dict(self.graphs), dict(self.missing), set(self.forwarded)
        copied.owed, copied.left, copied.counted = dict(self.owed), dict(self.left), dict(self.counted)
        copied.early = {instance: list(messages) for instance, messages in self.early.items()}
        copied._heap = list(self._heap)
        return copied
