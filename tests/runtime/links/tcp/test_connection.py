"""A connection never blocks, changes nothing that it has queued, and says why it has ended."""

from __future__ import annotations

import select

import pytest

from paceline.errors import FrameError, PeerLost
from paceline.runtime.links.tcp.connection import LONGEST_DELAY, Connection, leave
from paceline.runtime.links.tcp.frame import HEARTBEAT, LEAVE, Encoder, Frame, Limits
from tests.runtime.links.tcp.conftest import PATIENCE, MakePair, next_frame

LARGE = 40_000_000  # bytes; more than two sockets hold


def received(sender: Connection, receiver: Connection, count: int = 1) -> list[Frame]:
    """Let two connections of one thread work until so many frames have arrived."""
    frames: list[Frame] = []
    while len(frames) < count:
        sender.flush()
        frames += receiver.drain()
    return frames


def test_frames_of_all_sizes_keep_their_order(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    for number, size in enumerate((0, 1, 4000, 4100, 70_000, 3_000_000, 5)):
        sender.post(16 + number, (number,), [bytes([number]) * size, b"", b"end"])
    got = received(sender, receiver, 7)
    assert [frame.kind for frame in got] == list(range(16, 23))
    assert [len(frame.body) - 3 for frame in got] == [0, 1, 4000, 4100, 70_000, 3_000_000, 5]
    assert all(bytes(frame.body[-3:]) == b"end" for frame in got)


@pytest.mark.parametrize("copy", [True, False])
def test_what_could_not_be_sent_at_once_is_copied_if_asked(make_pair: MakePair, copy: bool) -> None:
    sender, receiver = make_pair()
    body = bytearray(b"a" * LARGE)
    sender.post(16, (), [body], copy=copy)
    assert sender.wants_write
    body[:] = b"b" * LARGE
    (frame,) = received(sender, receiver)
    assert (bytes(frame.body[-1:]) == b"a") is copy
    assert not sender.wants_write
    assert sender.queued == 0


def test_buffers_that_wait_may_be_changed_once_the_queue_is_copied(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    body = bytearray(b"a" * LARGE)
    sender.post(16, (), [body], copy=False)
    sender.copy_queue()
    body[:] = b"b" * LARGE
    (frame,) = received(sender, receiver)
    assert bytes(frame.body) == b"a" * LARGE


def test_many_buffers_make_one_body(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    sender.post(16, (), [bytes([number % 256]) * 100 for number in range(3000)])
    (frame,) = received(sender, receiver)
    assert bytes(frame.body) == b"".join(bytes([number % 256]) * 100 for number in range(3000))


def test_a_peer_that_does_not_read_is_disconnected_by_name(make_pair: MakePair) -> None:
    sender, _ = make_pair(Limits(queue=1000))
    sender.post(16, (), [bytes(LARGE)])
    with pytest.raises(PeerLost, match=r"the other does not read: \d+ bytes wait for it"):
        sender.post(17)
    assert sender.lost is not None
    assert not sender.wants_write


def test_a_heartbeat_goes_out_only_where_nothing_else_does(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    sender.beat(sender.sent + 10, 20)
    assert receiver.next() is None
    heard = receiver.heard
    sender.beat(sender.sent + 20, 20)
    while receiver.heard == heard:
        assert receiver.next() is None  # it is no frame for anyone
    sender.post(16, (), [bytes(LARGE)])
    queued = sender.queued
    sender.beat(sender.sent + 20, 20)
    assert sender.queued == queued


@pytest.mark.parametrize(
    ("sent", "says"),
    [(b"", "closed the connection; "), (b"paceli", "closed the connection in the middle of a message")],
)
def test_the_end_of_a_peer_is_named(sent: bytes, says: str, make_pair: MakePair) -> None:
    first, second = make_pair()
    if sent:
        first.stream.send([memoryview(sent)])
    first.close()
    with pytest.raises(PeerLost, match=f"this one {says}"):
        next_frame(second)
    assert second.lost is not None
    with pytest.raises(PeerLost):
        second.post(16)


def test_what_a_peer_said_before_it_ended_can_be_read_after_a_post_in_vain(make_pair: MakePair) -> None:
    first, second = make_pair()
    first.post(16, (7,))
    first.close()
    with pytest.raises(PeerLost):
        [second.post(17, (), [bytes(100_000)]) for _ in range(1000)]
    assert next_frame(second).ints == (7,)


def test_a_heartbeat_says_how_late_its_process_runs(make_pair: MakePair) -> None:
    """On a machine that has too much to do heartbeats come late: their process is given more time, but not any time."""
    first, second = make_pair()
    for said, taken in ((400_000_000, 400_000_000), (LONGEST_DELAY + 1, LONGEST_DELAY), (-5, 0)):
        second.beat(second.sent + 1, 0, said)
        second.post(16)
        assert next_frame(first).kind == 16
        assert first.delay == taken


def test_a_connection_that_is_left_delivers_everything_first(make_pair: MakePair) -> None:
    """Heartbeats lie unread at its end, so that the kernel resets the connection when it is closed."""
    first, second = make_pair()
    second.post(HEARTBEAT, (7,))
    for number in range(50):
        first.post(16, (number,))
    leave([first], PATIENCE)
    assert [next_frame(second).ints for _ in range(50)] == [(number,) for number in range(50)]
    assert next_frame(second).kind == LEAVE
    with pytest.raises(PeerLost):
        next_frame(second)


def test_leaving_a_peer_that_does_not_read_ends_in_time(make_pair: MakePair) -> None:
    first, _ = make_pair()
    first.post(16, (), [bytes(LARGE)])
    leave([first], 0.05)
    assert first.lost is not None


def test_what_is_no_frame_ends_the_reading(make_pair: MakePair) -> None:
    first, second = make_pair()
    first.stream.send([memoryview(b"GET / HTTP/1.1\r\n\r\n and more")])
    with pytest.raises(FrameError):
        next_frame(second)


def test_poll_reports_a_large_body_once_it_is_complete(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    body, size = memoryview(bytes(1_000_000)), 300_000
    poller = select.poll()
    poller.register(receiver, select.POLLIN)

    def send(piece: memoryview) -> None:
        assert sender.stream.send([piece]) == len(piece)

    send(memoryview(Encoder().head(16, (), size)))
    send(body[:100_000])
    while not receiver.partial:
        assert receiver.next() is None
    while receiver.next() is not None or poller.poll(0):
        pass  # what was under way when it was asked for
    send(body[:100_000])
    assert not poller.poll(20)
    send(body[:100_000])
    assert poller.poll(1000 * PATIENCE)
    assert len(next_frame(receiver).body) == size
    sender.post(17)  # and the next frame is reported however small it is
    assert poller.poll(1000 * PATIENCE)


def test_the_end_of_a_connection_is_reported_in_the_middle_of_a_body(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    sender.stream.send([memoryview(Encoder().head(16, (), 300_000)), memoryview(bytes(100_000))])
    while not receiver.partial:
        assert receiver.next() is None
    sender.close()
    poller = select.poll()
    poller.register(receiver, select.POLLIN)
    assert poller.poll(1000 * PATIENCE)
    with pytest.raises(PeerLost, match="in the middle of a message"):
        next_frame(receiver)
