"""The shared memory of a group, as two ranks of one process see it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paceline.runtime.backend.group_memory import DOORBELL, GroupMemory, size_of
from paceline.runtime.links.memory import Memory


@contextmanager
def two_ranks() -> Iterator[tuple[GroupMemory, GroupMemory]]:
    memory = Memory(size_of(2))
    first = GroupMemory(memory, 0, [os.getpid()] * 2)
    memory.rewind()
    second = GroupMemory(memory, 1, [os.getpid()] * 2)
    yield first, second
    first.processes.close()
    second.processes.close()
    memory.close()


def test_an_arrival_wakes_a_rank_that_sleeps_and_leaves_one_alone_that_does_not() -> None:
    with two_ranks() as (first, second):
        doorbell = second.mine[DOORBELL]
        first.arrive(7)
        assert doorbell[1] == 0, "it was rung while its rank was awake"
        doorbell[0] = 1
        first.arrive(7)
        assert doorbell[1] != 0


def test_views_of_slots_are_made_once() -> None:
    with two_ranks() as (first, _):
        before, after = first.slots(torch.float32, 100), first.slots(torch.float32, 100)
        assert all(one is other for one, other in zip(before, after, strict=True))
        assert before[0].data_ptr() != before[1].data_ptr()
