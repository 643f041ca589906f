"""Messages between two stages arrive in order and unchanged; a full mailbox waits; a ring never gives a slot twice."""

from __future__ import annotations

import os

import pytest
import torch

from paceline.errors import JobError, WaitedTooLong
from paceline.runtime.links.ring_buffer import Ring
from paceline.runtime.links.shared_memory import TYPES, Mailbox, MailShape, MailSlots
from paceline.runtime.links.waiting import Doorbell, Waiter
from tests.runtime.links.conftest import MakeMemory

SHAPE = MailShape((0, 1), 2, 1000, 3)


def ends(make_memory: MakeMemory, deadline: float = 60.0) -> tuple[Mailbox, Mailbox]:
    memory = make_memory(1 << 16)
    slots = MailSlots(memory, SHAPE)
    doorbells = [Doorbell.of(memory) for _ in range(2)]

    def end(rank: int) -> Mailbox:
        waiter = Waiter(rank, doorbells[rank], lambda: False, deadline, lambda: "in update 0")
        return Mailbox(slots, 1 - rank, doorbells[1 - rank], waiter)

    return end(0), end(1)


def test_the_size_covers_what_is_taken(make_memory: MakeMemory) -> None:
    memory = make_memory(1 << 16)
    MailSlots(memory, SHAPE)
    assert memory._taken == SHAPE.size


def test_every_dtype_shape_and_stride_arrives(make_memory: MakeMemory) -> None:
    sender, receiver = ends(make_memory)
    tensors = [torch.arange(5).to(dtype) for dtype in TYPES]
    for tensor in (*tensors, torch.tensor(3.0), torch.empty(0, 4), torch.arange(6.0).view(2, 3).T):
        size = sender.put([tensor, None])
        got, nothing = receiver.take()
        assert nothing is None
        assert got is not None
        assert (got.dtype, got.shape, got.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert torch.equal(got, tensor)
        assert size == tensor.nbytes


def test_two_processes_keep_the_order(make_memory: MakeMemory) -> None:
    """More messages than slots: the sender waits for the receiver, and the receiver for the sender."""
    sender, receiver = ends(make_memory)
    if (pid := os.fork()) == 0:
        for number in range(300):
            sender.put([torch.full((100,), float(number))])
        os._exit(0)
    for number in range(300):
        (got,) = receiver.take()
        assert got is not None
        assert got.eq(number).all()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert receiver.empty


def test_a_full_mailbox_and_an_empty_one_name_whom_they_wait_for(make_memory: MakeMemory) -> None:
    sender, receiver = ends(make_memory, deadline=0.0)
    with pytest.raises(WaitedTooLong, match="worker 1 waited 0 s for worker 0"):
        receiver.take()
    for _ in range(SHAPE.slots):
        assert not sender.full
        sender.put([None])
    assert sender.full
    with pytest.raises(WaitedTooLong, match="worker 0 waited 0 s for worker 1"):
        sender.put([None])
    receiver.take()
    assert not sender.full


def test_a_message_that_does_not_fit_is_refused(make_memory: MakeMemory) -> None:
    sender, receiver = ends(make_memory)
    with pytest.raises(JobError, match="from stage 0 to 1 is larger than that of the first batch, 1000 bytes"):
        sender.put([torch.zeros(300)])
    assert receiver.empty


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_ring_walks_its_slots_one_after_another(slots: int) -> None:
    raw = memoryview(bytearray(Ring.size(slots, 8)))
    producer, consumer = Ring(raw, slots, 8), Ring(raw, slots, 8)
    written = read = 0
    for burst in (1, slots, 2 * slots, 1):
        for _ in range(burst):
            if not producer.full:
                producer.slot(producer.sent[0] % slots).cast("q")[0] = written
                producer.sent[0] += 1
                written += 1
        assert written - read == min(slots, burst)
        while not consumer.empty:
            assert consumer.slot(consumer.taken[0] % slots).cast("q")[0] == read
            consumer.taken[0] += 1
            read += 1
    assert read == written
