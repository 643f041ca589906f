"""A link between two processes: what is offered is taken, waits end by the deadline or when the link is cancelled."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

import pytest
import torch

from paceline.errors import WaitedTooLong
from paceline.kernels.exchange import stream_copy
from paceline.runtime.links import TURNS, Span
from paceline.runtime.links.memory import Memory
from paceline.runtime.links.shared_memory import SharedMemoryLink, SharedVectors
from paceline.runtime.links.waiting import Cancelled, Doorbell, Waiter
from tests.runtime.links.conftest import MakeMemory

NUMBERS, SIZE = 100, 1 << 16
Copy = Callable[[int, int, int], object]


class World:
    """The memory of a few ranks; a link for any of them."""

    def __init__(self, memory: Memory, ranks: int, deadline: float = 60.0, copy: Copy | None = None) -> None:
        self.shared = SharedVectors(memory, ranks, NUMBERS, torch.float32)
        self.doorbells = [Doorbell.of(memory) for _ in range(ranks)]
        self.deadline, self.copy = deadline, copy

    def link(self, rank: int) -> SharedMemoryLink:
        waiter = Waiter(rank, self.doorbells[rank], lambda: False, self.deadline, lambda: "in update 7")
        return SharedMemoryLink(self.shared, rank, self.doorbells, waiter, self.copy)


def fork(do: Callable[[], object]) -> int:
    """Run `do` in a child process; the child's number."""
    if (pid := os.fork()) == 0:
        status = 1
        try:
            do()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended_well(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_size_covers_what_is_taken(make_memory: MakeMemory) -> None:
    for ranks in (1, 2, 9):
        memory = make_memory(SIZE)
        SharedVectors(memory, ranks, NUMBERS, torch.float64)
        assert memory._taken == SharedVectors.size(ranks, NUMBERS, torch.float64)


@pytest.mark.parametrize("copy", [None, ctypes.memmove, stream_copy()], ids=["where it lies", "memmove", "streamed"])
def test_two_processes_exchange_spans(make_memory: MakeMemory, copy: Copy | None) -> None:
    """Each adds the other's vector to its own, 500 times; vectors alternate, and halves are offered one by one."""
    world, collectives = World(make_memory(SIZE), 2, copy=copy), 500

    def exchange(rank: int) -> float:
        link, other, total = world.link(rank), 1 - rank, 0.0
        for number in range(collectives):
            turn = number % TURNS
            mine = link.vectors[turn]
            mine.fill_(number + 1000 * rank)
            for span in (Span(turn, 0, 50), Span(turn, 50, NUMBERS)):
                link.offer(other, span)
                theirs = link.take(other, span)
                assert theirs.eq(number + 1000 * other).all(), (number, theirs)
                total += float(theirs.sum())
        return total

    pid = fork(lambda: exchange(1))
    total = exchange(0)
    assert ended_well(pid)
    assert total == NUMBERS * sum(number + 1000 for number in range(collectives))


def test_the_nth_take_gets_the_nth_offer_of_that_peer(make_memory: MakeMemory) -> None:
    world = World(make_memory(SIZE), 3)
    first, second, third = (world.link(rank) for rank in range(3))
    whole = Span(0, 0, NUMBERS)
    second.offer(0, whole)
    third.offer(1, whole)
    assert first.take(1, whole).data_ptr() == second.vectors[0].data_ptr()  # no copy
    assert second.take(2, whole).data_ptr() == third.vectors[0].data_ptr()
    assert first.waited == 0
    assert [row.tolist() for row in world.shared.counters] == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]


def test_a_take_past_the_deadline_names_the_peer(make_memory: MakeMemory) -> None:
    world = World(make_memory(SIZE), 2, deadline=0.0)
    with pytest.raises(WaitedTooLong, match=r"worker 0 waited 0 s for worker 1 in update 7"):
        world.link(0).take(1, Span(0, 0, 1))


def test_a_link_that_is_called_off_ends_every_take(make_memory: MakeMemory) -> None:
    world, cancelled = World(make_memory(SIZE), 3), []

    def take(rank: int) -> None:
        try:
            world.link(rank).take(2, Span(0, 0, 1))
        except Cancelled:
            cancelled.append(rank)

    threads = [threading.Thread(target=take, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    world.link(2).abort()
    for thread in threads:
        thread.join(30)
    assert sorted(cancelled) == [0, 1]


def test_what_was_offered_before_the_link_was_called_off_can_be_taken(make_memory: MakeMemory) -> None:
    world = World(make_memory(SIZE), 2)
    first, second = world.link(0), world.link(1)
    second.offer(0, Span(0, 0, 1))
    second.abort()
    first.take(1, Span(0, 0, 1))
    with pytest.raises(Cancelled):
        first.take(1, Span(0, 0, 1))


@pytest.mark.parametrize("before", range(0, 64, 4))
def test_a_streamed_copy_has_every_byte_and_no_other(before: int) -> None:
    """Lines that are whole are streamed, the numbers around them are not."""
    for count in (0, 1, 63, 64, 65, 200, 1000):
        source = torch.randint(1, 256, (count,), dtype=torch.uint8)
        target = torch.zeros(1200, dtype=torch.uint8)
        stream_copy()(target.data_ptr() + before, source.data_ptr(), count)
        assert torch.equal(target[before : before + count], source)
        assert not target[:before].any()
        assert not target[before + count :].any()
