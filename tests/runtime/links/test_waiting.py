"""Doorbells, waits and record locks."""

from __future__ import annotations

import itertools
import os
import threading

import pytest
import torch

from paceline.errors import WaitedTooLong
from paceline.runtime.engines.workers.arena import DoubleBuffer
from paceline.runtime.links import waiting
from paceline.runtime.links.membership import Locks, RecordLock
from paceline.runtime.links.memory import Memory, SharedTensors
from paceline.runtime.links.waiting import ASLEEP, RINGS, Cancelled, Doorbell, Spin, Waiter, wait
from tests.runtime.links.conftest import MakeMemory


def test_a_ring_wakes_a_process_that_sleeps(make_memory: MakeMemory) -> None:
    """The parent's nap is far longer than the test's time limit; only the ring can end it."""
    memory = make_memory()
    doorbell, state = Doorbell.of(memory), memory.ints(1)
    if (pid := os.fork()) == 0:
        while not doorbell.asleep:
            os.sched_yield()
        state[0] = 1
        doorbell.ring()
        os._exit(0)
    while not state[0]:
        doorbell.nap(1000.0, lambda: state[0] == 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not doorbell.asleep


def test_a_ring_between_the_flag_and_the_sleep_is_not_lost(make_memory: MakeMemory) -> None:
    doorbell = Doorbell.of(make_memory())

    def ready() -> bool:  # asked after the flag was raised and before the sleep
        doorbell.ring()
        return False

    doorbell.nap(1000.0, ready)


def test_ringing_an_awake_owner_does_nothing(monkeypatch: pytest.MonkeyPatch, make_memory: MakeMemory) -> None:
    cell = make_memory().ints(2)
    doorbell = Doorbell(cell)
    monkeypatch.setattr(waiting, "wake", lambda address: pytest.fail("a system call for nothing"))
    doorbell.ring()
    assert cell.tolist() == [0, 0]
    with pytest.raises(ZeroDivisionError):
        doorbell.nap(1000.0, lambda: bool(1 // 0))
    assert cell[ASLEEP] == 0


def test_without_a_futex_a_sleeper_looks_again(monkeypatch: pytest.MonkeyPatch, make_memory: MakeMemory) -> None:
    monkeypatch.setattr(waiting, "SYSCALL", None)
    cell = make_memory().ints(2)
    Doorbell(cell).nap(1000.0, lambda: False)
    Doorbell(cell).wake()
    assert cell[RINGS] != 0


def test_a_wait_asks_before_each_nap_whether_it_is_of_use(make_memory: MakeMemory) -> None:
    asked: list[int] = []

    def nap(waited: int) -> float:
        asked.append(waited)
        if len(asked) == 3:
            raise Cancelled
        return 0.0

    for doorbell in (None, Doorbell.of(make_memory())):
        asked.clear()
        with pytest.raises(Cancelled):
            wait(lambda: False, doorbell, Spin(0, 0), nap)
        assert asked == sorted(asked)
        assert len(asked) == 3
    assert wait(lambda: True, None, Spin(0, 0), nap) >= 0
    assert len(asked) == 3


def test_a_waiter_raises_when_called_off_but_not_if_it_is_ready(make_memory: MakeMemory) -> None:
    off = threading.Event()
    waiter = Waiter(3, Doorbell.of(make_memory()), off.is_set, 60.0, lambda: "in update 1", crowded=True)
    off.set()
    with pytest.raises(Cancelled):
        waiter.until(lambda: False, lambda: "worker 1")
    answers = itertools.chain([False, False], itertools.repeat(True))
    assert waiter.until(lambda: next(answers), lambda: "worker 1") >= 0


def test_a_lock_that_another_process_holds_is_named(make_memory: MakeMemory) -> None:
    locks, state = Locks(), make_memory().ints(1)
    waiter = Waiter(0, None, lambda: False, 0.0, lambda: "in update 2")
    if (pid := os.fork()) == 0:
        with RecordLock(locks, 5, waiter, "shard 5"):
            state[0] = 1
            while state[0] != 2:
                os.sched_yield()
        os._exit(0)
    while not state[0]:
        os.sched_yield()
    with pytest.raises(WaitedTooLong, match=f"for process {pid}, which holds shard 5 in update 2"):
        RecordLock(locks, 5, waiter, "shard 5").__enter__()
    with RecordLock(locks, 4, waiter, "another lock") as waited:
        assert waited == 0
    state[0] = 2
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(locks.descriptor)


def test_a_draft_changes_nothing_before_it_is_committed(make_memory: MakeMemory) -> None:
    buffer = DoubleBuffer(make_memory(), 3)
    draft = buffer.begin()
    draft[1] = 7
    assert buffer.current.tolist() == [0, 0, 0]
    assert buffer.begin().tolist() == [0, 0, 0]  # as after the death of the process that made the first draft
    buffer.begin()[1] = 8
    buffer.commit()
    assert buffer.current.tolist() == [0, 8, 0]


def test_shared_tensors_are_found_behind_their_descriptor() -> None:
    given = [torch.arange(5), torch.ones(2, 3, dtype=torch.float64), torch.empty(0)]
    shared = SharedTensors(given)
    there = SharedTensors(given, Memory.of(os.dup(shared.memory.descriptor), shared.memory.size))
    for own, other in zip(given, there.open(), strict=True):
        assert torch.equal(own, other)
    shared.memory.close()
    there.memory.close()
