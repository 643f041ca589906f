"""Rows: a room that caught up by rows is a room that was copied whole, whoever pushes and whoever is killed when."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from paceline.algorithms.server.version_slots import VersionSlots
from paceline.training.parameters.layout import ParameterSpan as Span
from paceline.training.parameters.layout import ShardLayout
from paceline.training.parameters.rows import Journal, RowPartition, coalesced, outside
from paceline.training.parameters.shard_version import ShardVersion, StateField, VersionShape

HEIGHT, OTHER = 40, 24
LAYOUT = ShardLayout(
    (
        Span("table", (HEIGHT, 2), 0, 2 * HEIGHT),
        Span("dense", (3,), 80, 3),
        Span("other", (OTHER, 1), 96, OTHER),
    ),
    (),
    128,
)
BY_ROW, NUMBER = StateField((HEIGHT, 1), torch.float32, Tensor), StateField((), torch.float64, int)
SHAPE = VersionShape(LAYOUT, torch.float32, [{"sum": BY_ROW, "step": NUMBER}, {}, {}], [{}, {}, {}], (0, 2))

COMMITS, DIES_AT_ONCE, DIES_HALF_WAY, DIES_AT_THE_END = range(4)


class World:
    """Slots whose versions are copied by rows, and the newest version made without."""

    def __init__(self, workers: int) -> None:
        self.slots = VersionSlots(workers)
        self.state = [0] * self.slots.ints
        self.slots.init(self.state)
        self.copies = [ShardVersion(SHAPE, torch.zeros(SHAPE.size, dtype=torch.uint8)) for _ in range(self.slots.count)]
        ints = torch.zeros(Journal.size(SHAPE.heights, self.slots.count), dtype=torch.int64)
        self.journal = Journal(SHAPE.heights, self.slots.count, ints)
        self.partitions = [RowPartition(version) for version in self.copies]
        self.truth = ShardVersion(SHAPE, torch.zeros(SHAPE.size, dtype=torch.uint8))
        self.alive, self.version, self.whole = list(range(workers)), 0, 0

    def push(self, worker: int, touched: list[int], fate: int = COMMITS) -> None:
        draft, version = list(self.state), self.version + 1
        source, target = self.slots.move(draft, worker)
        missing, made = self.journal.begin(version, source, target), self.copies[target]
        others = [row for row in touched if row < OTHER]
        if fate != DIES_AT_ONCE:
            self.partitions[target].follow(self.partitions[source], missing)
            for table, rows in enumerate((touched, others)):
                self.journal.note(version, table, torch.tensor(rows, dtype=torch.int64))
                if fate == DIES_HALF_WAY:
                    break
            self._change(made, touched, others, -1e6 if fate != COMMITS else version)
        if fate != COMMITS:
            self.alive.remove(worker)
            return
        self.state, self.version = draft, version
        self.whole += sum(rows is None for rows in missing)
        self._change(self.truth, touched, others, version)
        assert torch.equal(made.raw, self.truth.raw), "what was copied by rows is not the newest version"

    @staticmethod
    def _change(version: ShardVersion, touched: list[int], others: list[int], by: float) -> None:
        table, dense, other = version.parameters
        table[touched] += by
        version.state.views[0]["sum"][touched] += by * by
        dense += by
        other[others] -= by
        version.state.views[0]["step"] += 1


def test_every_order_of_a_few_pushes_with_a_death_anywhere() -> None:
    for order in itertools.product(range(3), repeat=4):
        for death, fate in itertools.product(range(3), (DIES_AT_ONCE, DIES_HALF_WAY, DIES_AT_THE_END)):
            world = World(3)
            for number, worker in enumerate(order):
                if worker in world.alive:
                    world.push(worker, [number, 10 + worker], fate if number == death else COMMITS)


@pytest.mark.parametrize("seed", range(40))
def test_long_walks_with_few_and_many_rows_and_deaths(seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance.choice([1, 2, 3, 6]))
    for _ in range(150):
        fate = COMMITS
        if len(world.alive) > 1 and chance.random() < 0.05:
            fate = chance.choice([DIES_AT_ONCE, DIES_HALF_WAY, DIES_AT_THE_END])
        rows = chance.sample(range(HEIGHT), chance.choice([0, 1, 1, 2, 5, 6, 30]))  # 5 are as many as are written down
        world.push(chance.choice(world.alive), rows, fate)


def test_tables_are_hardly_ever_copied_whole_while_few_rows_are_touched() -> None:
    world = World(2)
    for number in range(100):
        world.push(number % 2, [number % HEIGHT])
    assert world.whole == 0
    world.push(0, list(range(HEIGHT)))
    world.push(1, [1])
    assert world.whole == 2  # both tables


def test_what_lies_outside_of_some_tensors() -> None:
    raw = torch.arange(20, dtype=torch.uint8)

    def left(inner: Iterable[slice]) -> list[list[int]]:
        return [part.tolist() for part in outside(raw, [raw[piece] for piece in inner])]

    assert left([]) == [list(range(20))]
    assert left([slice(15, 20), slice(0, 3)]) == [list(range(3, 15))]
    assert left([slice(4, 18), slice(2, 4)]) == [[0, 1], [18, 19]]


def test_a_sparse_gradient_names_each_row_once() -> None:
    table = torch.nn.Embedding(9, 2, sparse=True)
    table(torch.tensor([7, 2, 7])).sum().backward()
    gradient = coalesced(table.weight.grad)
    assert gradient is not None
    assert gradient.indices().tolist() == [[2, 7]]
    assert gradient.values().tolist() == [[1, 1], [2, 2]]
