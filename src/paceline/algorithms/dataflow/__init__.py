"""Dataflow: operators that workers hold, and messages between them, for models whose structure depends on the input.

An *instance* is a chunk of a batch. Its *graph* says which operators it calls, in which order, and which calls take the
values of which others. Every instance may have another graph: a tree LSTM calls one operator at every node of its tree.

    embed ──▶ leaf ──▶ branch ──▶ branch ──▶ head ──▶ loss        values go forward, one message each
          ◀──      ◀──        ◀──        ◀──      ◀──             gradients come back the same way

An operator computes whenever a message is there; it never waits for the other operators, nor for other instances:

    worker.py    the program of a worker, as effects, and how many instances are under way
    holder.py    what a worker does next, what it sends, and when an operator makes an update
    proof.py     every order in which messages of a small world can arrive
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from paceline.algorithms.agenda import Agenda, Chunk

FORWARD, BACKWARD = "F", "B"
NO_OPERATOR = -1  # of a function between two operators, which has no parameters
BEGIN, VALUE, GRADIENT, ENDED, DRAINED = range(5)  # what a message says
WITHOUT_NUMBERS = (BEGIN, ENDED, DRAINED)


class Call(NamedTuple):
    """One use of an operator by an instance."""

    #: The worker that computes it: the operator's holder; of a function, the holder of what it takes first.
    holder: int
    operator: int
    #: The calls whose values it takes, each once.
    takes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The calls of an instance, each after those that it takes values of. The last one is the loss."""

    calls: tuple[Call, ...]

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Return the calls that take the value of each call."""
        consumers: list[list[int]] = [[] for _ in self.calls]
        for number, call in enumerate(self.calls):
            for other in call.takes:
                consumers[other].append(number)
        return tuple(map(tuple, consumers))

    @cached_property
    def holders(self) -> tuple[int, ...]:
        """The workers that have a part in the instance."""
        return tuple(sorted({call.holder for call in self.calls}))

    def takes(self, work: Work, message: Message) -> bool:
        """Whether a message brings what a piece of work of this instance needs."""
        if work.what == FORWARD:
            return message.what == VALUE and message.call in self.calls[work.call].takes
        return message.what == GRADIENT and message.call == work.call

    def held_by(self, worker: int) -> tuple[int, ...]:
        """Return the calls that a worker computes."""
        return tuple(number for number, call in enumerate(self.calls) if call.holder == worker)


class Message(NamedTuple):
    """What one worker tells another, without its numbers."""

    to: int
    what: int
    instance: int
    call: int = -1
    #: The call that a gradient comes from.
    user: int = -1


class Work(NamedTuple):
    """A piece of work: one call of an instance, forward or backward."""

    what: str
    instance: int
    call: int


# The instances of a training: the chunks of all updates, numbered one after another.


class Instances:
    """Numbers the chunks of an agenda that have samples."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        epoch = range(min(agenda.updates_per_epoch, agenda.updates))
        #: For each instance of an epoch: its update within the epoch, and its chunk's number.
        self._places = [(update, chunk.number) for update in epoch for chunk in agenda.filled(update)]
        self._numbers = {place: number for number, place in enumerate(self._places)}
        full_epochs, rest = divmod(agenda.updates, agenda.updates_per_epoch)
        each = len(self._places)
        extra = sum(update < rest for update, _ in self._places)
        #: For each pass over the data, the number behind its last instance.
        self.passes = tuple(each * (number + 1) for number in range(full_epochs)) + (
            (each * full_epochs + extra,) if rest else ()
        )

    def chunk(self, instance: int) -> Chunk:
        """Return the chunk of an instance."""
        epoch, number = divmod(instance, len(self._places))
        update, chunk = self._places[number]
        return self.agenda.chunks(epoch * self.agenda.updates_per_epoch + update)[chunk]

    def number(self, update: int, chunk: int) -> int:
        """Return the number of the instance that is this chunk of this update."""
        epoch, within = divmod(update, self.agenda.updates_per_epoch)
        return epoch * len(self._places) + self._numbers[within, chunk]

    def updates_until(self, passed: int) -> int:
        """Return the updates that so many passes make."""
        return min(passed * self.agenda.updates_per_epoch, self.agenda.updates)


# Instances without a model, for drawings, proofs and simulations in time only: trees of two shapes, and a chain.


def example_graph(instance: int, workers: int) -> Graph:
    """Return the graph of an instance: an operator for leaves, one for branches, one for the head."""
    leaf, branch, head = 0, min(1, workers - 1), workers - 1
    leaves = (2, 3, 1)[instance % 3]
    calls = [Call(leaf, 0) for _ in range(leaves)]
    top = 0
    for number in range(1, leaves):
        calls.append(Call(branch, 1, (top, number)))
        top = len(calls) - 1
    for middle in range(2, workers - 1):  # operators that more workers hold, one after another
        calls.append(Call(middle, middle, (top,)))
        top = len(calls) - 1
    calls.append(Call(head, max(2, workers - 1), (top,)))
    return Graph(tuple(calls))
