"""Proof: every order in which the messages of a small world can arrive.

Workers, admission and the channels between them are data, so a world can be copied, compared and visited once. A move
is the arrival of the oldest message of one channel, or the next piece of work of one worker. At every state at most
`active` instances are under way. At every end each call was computed once forward, then once backward, every operator
has made updates of each instance that uses it exactly once, and nothing is left: no message, no instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.algorithms.dataflow import BEGIN, DRAINED, ENDED, FORWARD, NO_OPERATOR, Graph, Message, Work
from paceline.algorithms.dataflow.admission import Admission
from paceline.algorithms.dataflow.holder import Holder
from paceline.algorithms.exploration import Explored, breadth_first
from paceline.narrative import Scene

SAYS = {BEGIN: "begins", DRAINED: "learns that all have ended", ENDED: "has an end of"}


@dataclass
class _World:
    """The state of a small world; worker 0 admits."""

    admission: Admission
    holders: list[Holder]
    #: For each (sender, receiver), the messages under way.
    channels: dict[tuple[int, int], tuple[Message, ...]]
    #: Work that was done, and the instances in updates of each operator.
    works: tuple[Work, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    def copy(self) -> _World:
        holders = [each.copy() for each in self.holders]
        return _World(self.admission.copy(), holders, dict(self.channels), self.works, self.steps)

    def key(self) -> tuple[Any, ...]:
        channels = tuple(sorted((ends, kept) for ends, kept in self.channels.items() if kept))
        holders = tuple(each.key() for each in self.holders)
        return self.admission.key(), holders, channels, tuple(sorted(self.works)), tuple(sorted(self.steps))


class _Explorer:
    """The moves and invariants of a small world."""

    def __init__(self, graphs: Sequence[Graph], workers: int, active: int, every: int, holder: type[Holder]) -> None:
        self.graphs, self.workers, self.active, self.every, self.holder = graphs, workers, active, every, holder

    def first(self) -> _World:
        world = _World(
            Admission((len(self.graphs) - 1, len(self.graphs)), self.active),
            [self.holder(number, self.every) for number in range(self.workers)],
            {},
        )
        self._admit(world)
        return world

    def moves(self, world: _World) -> Iterator[tuple[int, int] | int]:
        """Yield the channels that hold a message, and the workers that can work."""
        yield from (ends for ends, kept in sorted(world.channels.items()) if kept)
        yield from (holder.number for holder in world.holders if holder.next() is not None)

    def make(self, world: _World, move: tuple[int, int] | int) -> Scene:
        """Change the world by one move, and describe it."""
        if isinstance(move, int):
            return self._work(world, move)
        message, *rest = world.channels[move]
        world.channels[move] = tuple(rest)
        return self._arrive(world, move, message)

    def _work(self, world: _World, number: int) -> Scene:
        holder = world.holders[number]
        work = holder.next()
        assert work is not None
        outcome = holder.done(work)
        world.works += (work,)
        for message in outcome.sends:
            self._send(world, number, message)
        if outcome.step is not None:
            world.steps += tuple((outcome.step.operator, each) for each in outcome.step.instances)
        if outcome.ended:
            self._send(world, number, Message(0, ENDED, work.instance))
        way = "forward" if work.what == FORWARD else "backward"
        return Scene(f"worker {number}", f"computes call {work.call} of instance {work.instance} {way}")

    def _arrive(self, world: _World, ends: tuple[int, int], message: Message) -> Scene:
        holder = world.holders[ends[1]]
        if message.what == ENDED:
            world.admission.ended(message.instance)
            self._admit(world)
        elif message.what == BEGIN:
            holder.begin(message.instance, self.graphs[message.instance])
        elif message.what == DRAINED:
            for step in holder.drain():
                world.steps += tuple((step.operator, each) for each in step.instances)
        else:
            holder.arrive(message)
        says = SAYS.get(message.what, f"gets a message of worker {ends[0]} about")
        return Scene(f"worker {ends[1]}", f"{says} instance {message.instance}" if message.instance >= 0 else says)

    def _admit(self, world: _World) -> None:
        for message in world.admission.messages(self.workers, lambda instance: self.graphs[instance].holders):
            self._send(world, 0, message)

    def _send(self, world: _World, sender: int, message: Message) -> None:
        ends = sender, message.to
        world.channels[ends] = (*world.channels.get(ends, ()), message)

    def key(self, world: _World) -> tuple[Any, ...]:
        return world.key()

    def ended(self, moves: Sequence[Any]) -> bool:
        """Whether nothing can move."""
        return not moves

    def fault(self, world: _World) -> str | None:
        """Describe an invariant that fails in this state; None if all hold."""
        under_way = len({instance for holder in world.holders for instance in holder.graphs})
        if under_way > self.active:
            return f"{under_way} instances are under way, and the bound is {self.active}"
        if len(set(world.works)) < len(world.works):
            return "a call was computed twice the same way"
        if len(set(world.steps)) < len(world.steps):
            return "an operator made an update of the gradients of one instance twice"
        return None

    def fault_at_end(self, world: _World) -> str | None:
        """Describe what is missing where nothing can move; None if nothing is."""
        expected = {(n, c) for n, graph in enumerate(self.graphs) for c in range(len(graph.calls))}
        if missing := expected - {(each.instance, each.call) for each in world.works if each.what != FORWARD}:
            return f"nothing can move, and these calls never got their gradients: {sorted(missing)}"
        used = {(c.operator, n) for n, graph in enumerate(self.graphs) for c in graph.calls}
        if missing := {each for each in used if each[0] != NO_OPERATOR} - set(world.steps):
            return f"these operators made no update of the gradients of these instances: {sorted(missing)}"
        if not world.admission.finished or any(holder.missing or holder.early for holder in world.holders):
            return "something is left at the end"
        return None


def explore(
    graph: Callable[[int, int], Graph],
    workers: int,
    instances: int,
    active: int,
    every: int,
    holder: type[Holder] = Holder,
) -> Explored:
    """Explore every order of arrivals, and return the shortest story in which an invariant fails, if there is one."""
    explorer = _Explorer([graph(n, workers) for n in range(instances)], workers, active, every, holder)
    return breadth_first(explorer)
