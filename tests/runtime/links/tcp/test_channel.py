"""Messages of tensors arrive in order and unchanged; a full channel waits; what does not fit its frame is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from paceline.errors import FrameError, PeerLost, WaitedTooLong
from paceline.runtime.links.shared_memory import TYPES
from paceline.runtime.links.tcp.channel import TcpChannel
from paceline.runtime.links.tcp.connection import Connection
from paceline.runtime.links.tcp.frame import MESSAGE, SPAN
from paceline.runtime.links.tcp.waiting import AbortFlag, Pump, SocketWaiter
from tests.runtime.links.tcp.conftest import PATIENCE, MakePair

SLOTS = 3


@pytest.fixture
def ends(make_pair: MakePair, pump: Pump, aborted: AbortFlag) -> Iterator[tuple[TcpChannel, TcpChannel]]:
    pair = make_pair()
    made = [
        TcpChannel(end, SLOTS, SocketWaiter(rank, PATIENCE, aborted=aborted), pump) for rank, end in enumerate(pair)
    ]
    yield made[0], made[1]
    for connection in pair:
        pump.forget(connection)


def test_every_dtype_shape_and_stride_arrives(ends: tuple[TcpChannel, TcpChannel]) -> None:
    sender, receiver = ends
    tensors = [torch.arange(5).to(dtype) for dtype in TYPES]
    odd = (torch.tensor(3.0), torch.empty(0, 4), torch.arange(6.0).view(2, 3).T, torch.arange(6.0)[2:].view(2, 2).T)
    for tensor in (*tensors, *odd):
        size = sender.put([tensor, None])
        got, nothing = receiver.take()
        assert nothing is None
        assert got is not None
        assert (got.dtype, got.shape, got.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert torch.equal(got, tensor)
        assert size % 64 == 0
        assert size >= tensor.nbytes


def test_tensors_with_gaps_arrive_without_them(ends: tuple[TcpChannel, TcpChannel]) -> None:
    sender, receiver = ends
    for tensor in (torch.arange(10.0)[::2], torch.ones(1).expand(3, 4)):
        sender.put([tensor])
        (got,) = receiver.take()
        assert got is not None
        assert torch.equal(got, tensor)


def test_messages_keep_their_order_and_may_be_changed_after_they_were_put(ends: tuple[TcpChannel, TcpChannel]) -> None:
    sender, receiver = ends
    numbers = 500_000

    def send() -> None:
        message = torch.empty(numbers)
        for number in range(20):
            sender.put([message.fill_(number), torch.tensor(number)])

    thread = threading.Thread(target=send)
    thread.start()
    for number in range(20):
        got, last = receiver.take()
        assert got is not None
        assert last == number
        assert got.eq(number).all()
    thread.join(PATIENCE)
    assert receiver.empty


def test_a_full_channel_and_an_empty_one_name_whom_they_wait_for(ends: tuple[TcpChannel, TcpChannel]) -> None:
    sender, receiver = ends
    for _ in range(SLOTS):
        assert not sender.full
        sender.put([None])
    assert sender.full
    assert not receiver.empty
    receiver.take()
    while sender.full:
        pass
    sender.put([torch.ones(2)])
    sender._waiter.deadline = 0.0
    with pytest.raises(WaitedTooLong, match="worker 0 waited 0 s for the other"):
        sender.put([None])
    for _ in range(SLOTS):
        receiver.take()
    with pytest.raises(PeerLost, match="this one closed the connection"):
        receiver.take()


def test_a_neighbour_that_leaves_is_missed_only_when_more_is_wanted(ends: tuple[TcpChannel, TcpChannel]) -> None:
    sender, receiver = ends
    sender.put([torch.ones(2)])
    sender.close()
    assert receiver.take()[0] is not None
    with pytest.raises(PeerLost, match="this one has left"):
        receiver.take()
    receiver.close()


FLOAT = TYPES.index(torch.float32)


@pytest.mark.parametrize(
    ("ints", "size", "says"),
    [
        ((), 0, "fewer integers"),
        ((1,), 0, "fewer integers"),
        ((10**15,), 0, "fewer integers"),
        ((1, 99, 1, 1, 1), 64, "dtype 99"),
        ((1, FLOAT, 9), 64, "9 dimensions"),
        ((1, FLOAT, -1), 64, "-1 dimensions"),
        ((1, FLOAT, 1, 16), 64, "fewer integers"),
        ((1, FLOAT, 1, 17, 1), 64, "beyond its end"),
        ((1, FLOAT, 1, 2, 2), 64, "beyond its end"),
        ((1, FLOAT, 1, -4, 1), 64, r"shape \(-4,\)"),
        ((1, FLOAT, 2, 0, 2**62, 1, 1), 64, "shape"),
        ((1, FLOAT, 1, 4, 1), 128, "of 128 bytes has tensors of 64"),
        ((1, FLOAT, 1, 4, 1, 5), 64, "tensors of 64"),
        ((2, FLOAT, 1, 16, 1, FLOAT, 1, 16, 1), 64, "beyond its end"),
    ],
)
def test_a_message_that_does_not_describe_its_body_is_refused(
    ints: tuple[int, ...], size: int, says: str, ends: tuple[TcpChannel, TcpChannel]
) -> None:
    sender, receiver = ends
    connection: Connection = sender._connection
    connection.post(MESSAGE, ints, [bytes(size)])
    with pytest.raises(FrameError, match=says):
        receiver.take()


def test_a_frame_of_another_kind_is_refused(ends: tuple[TcpChannel, TcpChannel]) -> None:
    sender, receiver = ends
    sender._connection.post(SPAN)
    with pytest.raises(FrameError, match=f"this one sent frame {SPAN} where {MESSAGE} was due"):
        receiver.take()
