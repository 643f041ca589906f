"""DPOR against every interleaving of small random programs, without a thread: the strategies are pure machines."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

from paceline.concurrency.explore.operation import Operation, Option, Place, Touch
from paceline.concurrency.explore.strategies import Decision, Executed, Strategy
from paceline.concurrency.explore.strategies.dpor import Dpor

NOWHERE = Place("", 0, "")
Program = list[list[tuple[str, str]]]  # for each thread: what it does, and to what


class World:
    """A program between two steps: how far each thread has come, and who holds which lock."""

    def __init__(self, program: Program) -> None:
        self.program, self.at, self.holder = program, [0] * len(program), dict[str, int]()

    def pending(self) -> dict[int, Operation]:
        return {
            thread: Operation(verb, what, (Touch(what, "read" if verb == "reads" else "write"),), NOWHERE)
            for thread, lines in enumerate(self.program)
            for verb, what in lines[self.at[thread] : self.at[thread] + 1]
        }

    def options(self) -> list[Option]:
        return [
            Option(thread, False)
            for thread, operation in self.pending().items()
            if not (operation.verb == "takes" and str(operation.subject) in self.holder)
        ]

    def step(self, thread: int) -> None:
        verb, what = self.program[thread][self.at[thread]]
        if verb == "takes":
            self.holder[what] = thread
        elif verb == "releases":
            del self.holder[what]
        self.at[thread] += 1

    @property
    def stuck(self) -> bool:
        return bool(self.pending()) and not self.options()


def execute(program: Program, strategy: Strategy) -> tuple[list[Executed], World, bool]:
    """Run a program under a strategy; the last value is whether the run was cut short."""
    world, steps, current = World(program), list[Executed](), 0
    while options := world.options():
        same = Option(current, False)
        decision = Decision(len(steps), current, 0, options, world.pending(), same if same in options else options[0])
        option = strategy.pick(decision)
        if option is None:
            return steps, world, True
        pending = world.pending()
        steps.append(Executed(option, pending[option.thread], tuple(options), pending))
        world.step(option.thread)
        current = option.thread
    return steps, world, False


def every_run(program: Program, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], World]]:
    """Yield each interleaving with its last state."""
    world = World(program)
    for thread in path:
        world.step(thread)
    if not world.options():
        yield path, world
    for option in world.options():
        yield from every_run(program, (*path, option.thread))


def order(program: Program, path: Sequence[int]) -> frozenset[tuple[tuple[int, int], tuple[int, int]]]:
    """Return in which order a run executes each pair of conflicting operations: equivalent runs have the same."""
    counts, steps = [0] * len(program), []
    for thread in path:
        steps.append((thread, counts[thread], *program[thread][counts[thread]]))
        counts[thread] += 1
    return frozenset(
        ((a[0], a[1]), (b[0], b[1]))
        for a, b in combinations(steps, 2)
        if a[0] != b[0] and a[3] == b[3] and (a[2], b[2]) != ("reads", "reads")
    )


def random_program(seed: int, locks: bool) -> Program:
    chance = random.Random(seed)
    program: Program = []
    for _ in range(chance.choice((2, 3))):
        lines = [(chance.choice(("reads", "writes")), chance.choice("xy")) for _ in range(chance.choice((1, 2, 3)))]
        if locks:
            first, second = chance.sample("ab", 2)
            lines = [("takes", first), *lines[:1], ("takes", second), ("releases", second), ("releases", first)]
        program.append(lines)
    return program


@pytest.mark.parametrize("locks", [False, True], ids=["data", "locks"])
def test_it_executes_every_order_and_ends(locks: bool) -> None:
    for seed in range(40):
        program, search = random_program(seed, locks), Dpor()
        orders, deadlocks, runs = set(), False, 0
        while (strategy := search.next()) is not None:
            steps, world, cut_short = execute(program, strategy)
            search.learn(steps, world.pending())
            runs += 1
            if not cut_short:
                orders.add(order(program, [step.option.thread for step in steps]))
                deadlocks |= world.stuck
        everything = list(every_run(program))
        assert orders == {order(program, path) for path, _ in everything}, program
        assert deadlocks == any(world.stuck for _, world in everything), program
        assert runs <= len(everything), program


def test_independent_threads_need_one_run() -> None:
    search, runs = Dpor(), 0
    while (strategy := search.next()) is not None:
        steps, world, _ = execute([[("writes", "x")] * 3, [("writes", "y")] * 3, [("reads", "z")] * 3], strategy)
        search.learn(steps, world.pending())
        runs += 1
    assert runs == 1
