"""Proof: every order in which the messages of a small world can arrive, with deaths anywhere.

Workers are what their programs remember, and channels are data, so a world can be copied, compared and visited once. A
move is what a worker does from one `Take` to the next: it takes the oldest message of a channel, or works, or it dies.
At every state at most `active` instances are under way. At every end without a death each call was computed once
forward, then once backward, every operator has made updates of each instance that uses it exactly once, and nothing is
left: no message, no instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paceline.algorithms.dataflow import BEGIN, DRAINED, ENDED, FORWARD, NO_OPERATOR, Graph, Message, Work
from paceline.algorithms.dataflow.holder import Holder, OperatorUpdate
from paceline.algorithms.dataflow.worker import (
    Client,
    Compute,
    Drain,
    Effect,
    Program,
    Record,
    Send,
    Take,
    Update,
    follow_messages,
)
from paceline.algorithms.exploration import Explored, breadth_first
from paceline.narrative import Scene

SAYS = {BEGIN: "begins", DRAINED: "learns that all have ended", ENDED: "has an end of"}
WORKS, DIES = -1, -2  # instead of the sender of a message that is taken
Move = tuple[int, int]


@dataclass
class _OperatorWorld:
    """The state of a small world."""

    clients: list[Client]
    #: For each (sender, receiver), the messages under way.
    channels: dict[tuple[int, int], tuple[Message, ...]]
    #: Work that was done, and the instances in updates of each operator.
    works: tuple[Work, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    dead: frozenset[int] = frozenset()

    def copy(self) -> _OperatorWorld:
        return _OperatorWorld(list(self.clients), dict(self.channels), self.works, self.steps, self.dead)

    def key(self) -> tuple[Any, ...]:
        channels = tuple(sorted((ends, queue) for ends, queue in self.channels.items() if queue))
        clients = tuple(each.key() for each in self.clients)
        return clients, channels, tuple(sorted(self.works)), tuple(sorted(self.steps)), self.dead


class _OperatorExplorer:
    """The moves and invariants of a small world, whose worker 0 admits."""

    def __init__(
        self, graphs: Sequence[Graph], active: int, deaths: int, clients: list[Client], program: Callable[..., Program]
    ) -> None:
        self.graphs, self.active, self.deaths, self.clients, self.program = graphs, active, deaths, clients, program

    def first(self) -> _OperatorWorld:
        world = _OperatorWorld(self.clients, {})
        for number in range(len(world.clients)):
            self._go_on(world, number)
        return world

    def moves(self, world: _OperatorWorld) -> Iterator[Move]:
        """Yield what each worker can take, whether it can work, and whether it can die."""
        for number, client in enumerate(world.clients):
            if number in world.dead or client.ended:
                continue
            yield from (
                (number, ends[0]) for ends, queue in sorted(world.channels.items()) if queue and ends[1] == number
            )
            if client.machine.next() is not None:
                yield number, WORKS
            if len(world.dead) < self.deaths:
                yield number, DIES

    def make(self, world: _OperatorWorld, move: Move) -> Scene:
        """Change the world by one move, and describe it."""
        number, sender = move
        who = f"worker {number}"
        if sender == DIES:
            world.dead |= {number}
            return Scene(who, "dies")
        message: Message | None = None
        if sender != WORKS:
            message, *rest = world.channels[sender, number]
            world.channels[sender, number] = tuple(rest)
        world.clients[number] = world.clients[number].copy()
        self._go_on(world, number, message)
        if message is None:
            _, instance, call = work = world.works[-1]
            way = "forward" if work.what == FORWARD else "backward"
            return Scene(who, f"computes call {call} of instance {instance} {way}")
        says = SAYS.get(message.what, f"gets a message of worker {sender} about")
        return Scene(who, f"{says} instance {message.instance}" if message.instance >= 0 else says)

    def _go_on(self, world: _OperatorWorld, number: int, *answers: Message | None) -> None:
        """Run a worker's program until it wants to take more messages than it gets here."""
        program, inbox = self.program(world.clients[number]), iter(answers)
        answer: Message | Graph | None = None
        with suppress(StopIteration):
            while True:
                match program.send(answer):
                    case Take():
                        answer = next(inbox)
                    case effect:
                        answer = self._answer(world, number, effect)

    def _answer(self, world: _OperatorWorld, number: int, effect: Effect) -> Graph | None:
        match effect:
            case Record(instance):
                return self.graphs[instance]
            case Send(message):
                self._send(world, number, message)
            case Compute(work, outcome):
                world.works += (work,)
                for message in outcome.sends:
                    self._send(world, number, message)
            case Update(step):
                self._count(world, [step])
            case Drain(steps):
                self._count(world, steps)
        return None

    def _send(self, world: _OperatorWorld, sender: int, message: Message) -> None:
        ends = sender, message.to
        world.channels[ends] = (*world.channels.get(ends, ()), message)

    def _count(self, world: _OperatorWorld, steps: Sequence[OperatorUpdate]) -> None:
        world.steps += tuple((step.operator, instance) for step in steps for instance in step.instances)

    def key(self, world: _OperatorWorld) -> tuple[Any, ...]:
        return world.key()

    def ended(self, moves: Sequence[Move]) -> bool:
        """Whether nothing can go on."""
        return all(sender == DIES for _, sender in moves)

    def fault(self, world: _OperatorWorld) -> str | None:
        """Describe an invariant that fails in this state; None if all hold."""
        under_way = len({instance for client in world.clients for instance in client.machine.graphs})
        if under_way > self.active:
            return f"{under_way} instances are under way, and the bound is {self.active}"
        if len(set(world.works)) < len(world.works):
            return "a call was computed twice the same way"
        if len(set(world.steps)) < len(world.steps):
            return "an operator made an update of the gradients of one instance twice"
        return None

    def fault_at_end(self, world: _OperatorWorld) -> str | None:
        """Describe what is missing where nothing can move; None if nothing is."""
        if world.dead:
            return None  # the others wait, and the run fails
        expected = {(n, c) for n, graph in enumerate(self.graphs) for c in range(len(graph.calls))}
        if missing := expected - {(each.instance, each.call) for each in world.works if each.what != FORWARD}:
            return f"nothing can move, and these calls never got their gradients: {sorted(missing)}"
        used = {(c.operator, n) for n, graph in enumerate(self.graphs) for c in graph.calls}
        if missing := {each for each in used if each[0] != NO_OPERATOR} - set(world.steps):
            return f"these operators made no update of the gradients of these instances: {sorted(missing)}"
        if waiting := [number for number, client in enumerate(world.clients) if not client.ended]:
            return f"workers {waiting} wait for ever"
        if any(client.machine.missing or client.machine.early for client in world.clients):
            return "something is left at the end"
        return None


def explore(
    graph: Callable[[int, int], Graph],
    workers: int,
    instances: int,
    active: int,
    every: int,
    holder: type[Holder] = Holder,
    *,
    deaths: int = 0,
    program: Callable[[Client], Program] = follow_messages,
) -> Explored:
    """Explore every order of arrivals, and return the shortest story in which an invariant fails, if there is one."""
    passes = (instances - 1, instances)
    clients = [Client(number, workers, passes, active, holder(number, every)) for number in range(workers)]
    graphs = [graph(number, workers) for number in range(instances)]
    return breadth_first(_OperatorExplorer(graphs, active, deaths, clients, program))
