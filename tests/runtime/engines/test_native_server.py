"""A server in generated code: state by state against the machines in Python."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.algorithms.server.desk import DEAD, NONE, Desk
from paceline.algorithms.server.gates import Asynchronous, Backup, Gate, StaleSynchronous
from paceline.algorithms.server.messages import Action, Ask, Death, Finish, Join, Lease, Push, Wait
from paceline.algorithms.server.shard import Shard
from paceline.algorithms.server.version_slots import VersionSlots
from paceline.errors import ProtocolError
from paceline.kernels.build import library
from paceline.kernels.compiled import CompiledCall
from paceline.kernels.exchange import Ended
from paceline.kernels.one_pass import FLAGS, served_step
from paceline.kernels.serve import SPAN, Served, text
from paceline.runtime.engines.servers.shard_memory import ShardMemory
from paceline.runtime.engines.workers.arena import DoubleBuffer
from paceline.runtime.engines.workers.methods.native_pushes import bound_of, desk_in_memory, shard_in_memory
from paceline.runtime.links import waiting
from paceline.runtime.links.membership import Locks
from paceline.runtime.links.waiting import Doorbell
from paceline.runtime.runs.trace import ROW, Kind, TraceRing
from paceline.training.gradients.native_step import PLAIN
from tests.runtime.links.conftest import MakeMemory, make_memory  # noqa: F401

WORKERS, BATCHES = 3, 5
ENTRIES = """
extern "C" int one_finish(Server* s) { return finish(*s); }
extern "C" int one_push(const Call* c, Server* s) { return push(*c, *s, 0); }
"""


def functions() -> ctypes.CDLL:
    step = served_step(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert step is not None
    return library(text(torch.float32, step, PLAIN, False) + ENTRIES, FLAGS)[0]


@pytest.fixture
def locks() -> Iterator[Locks]:
    made = Locks()
    yield made
    os.close(made.descriptor)


# --- the desk -------------------------------------------------------------------------------------------------------


def states_of(desk: Desk) -> set[tuple[int, ...]]:
    """All states that a desk can reach, whatever its workers do and whichever of them die or join."""
    start = [0] * desk.ints
    desk.init(start)
    found, todo = {tuple(start)}, [tuple(start)]
    while todo:
        state = todo.pop()
        for worker in range(WORKERS):
            batch = desk.leased(list(state))[worker]
            finish = [Finish(worker, batch)] if batch not in (NONE, DEAD) else []
            for event in (Ask(worker), *finish, Death(worker), Join(worker)):
                after = list(state)
                try:
                    desk.handle(after, event)
                except ProtocolError:
                    continue
                if tuple(after) not in found:
                    found.add(tuple(after))
                    todo.append(tuple(after))
    return found


@pytest.mark.parametrize("gate", [Asynchronous(), StaleSynchronous(0), StaleSynchronous(2)], ids=str)
def test_the_desk_answers_as_the_machine_does_or_leaves_it_to_python(
    gate: Gate,
    locks: Locks,
    make_memory: MakeMemory,  # noqa: F811
) -> None:
    """In every state that can be reached: the same state after it, or no change where the answer is unusual."""
    desk, memory, native = Desk(WORKERS, BATCHES, gate), make_memory(1 << 14), functions()
    integers, doorbells = DoubleBuffer(memory, desk.ints), [Doorbell.of(memory) for _ in range(WORKERS)]
    addresses = np.array([doorbell.address for doorbell in doorbells], np.int64)
    cancelled = memory.ints(1)
    usual = 0
    for state, worker in itertools.product(sorted(states_of(desk)), range(WORKERS)):
        batch = desk.leased(list(state))[worker]
        if batch in (NONE, DEAD):
            continue
        np.asarray(integers.current)[:] = state
        expected = list(state)
        answer: Action = desk.handle(expected, Finish(worker, batch))
        served = Served(
            desk=desk_in_memory(desk, integers),
            doorbells=addresses.ctypes.data,
            workers=WORKERS,
            worker=worker,
            locks=locks.descriptor,
            batch=batch,
            cancelled=waiting.address_of(cancelled),
            ended=Ended.MADE,
        )
        if native.one_finish(ctypes.byref(served)):
            assert list(integers.current) == expected
            assert answer == Lease(served.batch, again=False)
            usual += 1
        else:
            assert tuple(integers.current) == state
            disturbed = state[2] or state[3] or state[0] == BATCHES
            assert disturbed or isinstance(answer, Wait) or answer == Lease(batch, again=True)
    assert usual


def test_what_is_due_is_left_to_python(locks: Locks, make_memory: MakeMemory) -> None:  # noqa: F811
    """A worker that finishes the batch after which a snapshot or a checkpoint is due leaves it unfinished."""
    desk, memory, native = Desk(1, 100, Asynchronous()), make_memory(1 << 14), functions()
    integers, doorbell, cancelled = DoubleBuffer(memory, desk.ints), Doorbell.of(memory), memory.ints(1)
    addresses = np.array([doorbell.address], np.int64)
    desk.init(integers.current)
    desk.handle(integers.current, Ask(0))
    served = Served(
        desk=desk_in_memory(desk, integers),
        doorbells=addresses.ctypes.data,
        workers=1,
        locks=locks.descriptor,
        cancelled=waiting.address_of(cancelled),
        snapshots=7,
        checkpoints=10,
    )
    due = []
    for batch in range(30):
        served.batch = batch
        if not native.one_finish(ctypes.byref(served)):
            due.append(batch + 1)
            desk.handle(integers.current, Finish(0, batch))
    assert due == [7, 10, 14, 20, 21, 28, 30]


def test_gates_that_generated_code_does_not_know() -> None:
    assert bound_of(Desk(WORKERS, BATCHES, Backup(2))) is None


# --- a shard --------------------------------------------------------------------------------------------------------


def test_a_shard_counts_as_the_machine_does(locks: Locks, make_memory: MakeMemory) -> None:  # noqa: F811
    """Whatever the order of pushes: its integers and those of its slots, and a row before each version."""
    memory, native = make_memory(TraceRing.size() + (1 << 14)), functions()
    machine = Shard(WORKERS)
    slots = VersionSlots(WORKERS, at=machine.ints)
    integers, ring = DoubleBuffer(memory, machine.ints + slots.ints), TraceRing(memory.take(TraceRing.size()))
    version = SimpleNamespace(values=torch.zeros(3))
    shared = ShardMemory(machine, slots, integers, [version] * slots.count, None)  # type: ignore[arg-type, list-item]
    cancelled, slot_addresses = memory.ints(1), np.zeros(slots.count, np.int64)
    shard = shard_in_memory(0, shared, slot_addresses, np.zeros(0, SPAN))
    sent, taken, rows = map(waiting.address_of, ring.memory)
    settings = np.zeros(1)
    served = Served(
        shards=ctypes.addressof(shard),
        workers=WORKERS,
        locks=locks.descriptor,
        sent=sent,
        taken=taken,
        rows=rows,
        room=TraceRing.ROWS,
        cancelled=waiting.address_of(cancelled),
        settings=settings.ctypes.data,
    )
    for order in itertools.product(range(WORKERS), repeat=5):
        shared.init()
        expected = list(integers.current)
        for batch, worker in enumerate(order):
            base = machine.base(expected, worker)
            machine.handle(expected, Push(worker, 0, batch))
            _, target = slots.move(expected, worker)
            served.worker, served.batch = worker, batch
            assert native.one_push(ctypes.byref(CompiledCall()), ctypes.byref(served))
            assert list(integers.current) == expected
            assert (shard.base, shard.own) == (batch + 1, target)
            ring.catch_up()
            (row,) = ring.drain()
            told = [int(row[name]) for name in ("kind", "worker", "update", "shard", "base", "version", "bytes")]
            assert told == [Kind.APPLY, worker, batch, 0, base, batch + 1, 24]
            assert row["start"] <= row["end"]
    assert ROW.size == 8 * 13
    assert row["weight"] == -1.0
