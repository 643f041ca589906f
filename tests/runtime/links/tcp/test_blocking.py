"""A wait for a peer ends with what was waited for, at the deadline, by silence, or when it is cancelled."""

from __future__ import annotations

import threading

import pytest

from paceline.errors import PeerLost, WaitedTooLong
from paceline.runtime.links.tcp.channel import BlockingConnection
from paceline.runtime.links.tcp.connection import leave
from paceline.runtime.links.tcp.frame import Encoder
from paceline.runtime.links.tcp.waiting import AbortFlag, Pump, SocketWaiter
from paceline.runtime.links.waiting import Cancelled
from tests.runtime.links.tcp.conftest import PATIENCE, MakePair, next_frame

LARGE = 40_000_000  # bytes; more than two sockets hold
WHERE = "in update 7"


def waiter(aborted: AbortFlag, deadline: float = PATIENCE, silence: float = PATIENCE) -> SocketWaiter:
    return SocketWaiter(3, deadline, lambda: WHERE, aborted, silence)


def test_a_request_is_answered(make_pair: MakePair, aborted: AbortFlag) -> None:
    first, second = make_pair()
    server = BlockingConnection(second, waiter(aborted))

    def serve() -> None:
        for _ in range(100):
            frame = server.receive()
            server.send(frame.kind + 1, frame.ints, [frame.body, b"!"])

    thread = threading.Thread(target=serve)
    thread.start()
    client = BlockingConnection(first, waiter(aborted))
    for number in range(100):
        client.send(16, (number,), [b"x" * number])
        answer = client.receive()
        assert (answer.kind, answer.ints, len(answer.body)) == (17, (number,), number + 1)
    thread.join(PATIENCE)
    assert client.waited > 0


def test_two_that_both_send_first_do_not_wait_for_each_other(make_pair: MakePair, aborted: AbortFlag) -> None:
    got: dict[int, int] = {}

    def exchange(side: int, line: BlockingConnection) -> None:
        line.send(16, (side,), [bytes(LARGE)])
        got[side] = len(line.receive().body)

    lines = [BlockingConnection(connection, waiter(aborted)) for connection in make_pair()]
    threads = [threading.Thread(target=exchange, args=(side, line)) for side, line in enumerate(lines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert got == {0: LARGE, 1: LARGE}


def test_a_wait_past_the_deadline_names_the_peer(make_pair: MakePair, aborted: AbortFlag) -> None:
    first, _ = make_pair()
    with pytest.raises(WaitedTooLong, match=f"worker 3 waited 0 s for the other {WHERE}"):
        BlockingConnection(first, waiter(aborted, deadline=0.0)).receive()
    assert first.lost is not None  # half of something may be under way


def test_a_send_past_the_deadline_names_the_peer(make_pair: MakePair, aborted: AbortFlag) -> None:
    first, _ = make_pair()
    with pytest.raises(WaitedTooLong, match="for the other"):
        BlockingConnection(first, waiter(aborted, deadline=0.0)).send(16, (), [bytes(LARGE)])


def test_a_peer_that_leaves_is_told_from_one_that_dies(make_pair: MakePair, aborted: AbortFlag) -> None:
    first, second = make_pair()
    second.post(16)
    leave([second], PATIENCE)
    line = BlockingConnection(first, waiter(aborted))
    assert line.receive().kind == 16
    with pytest.raises(PeerLost, match="the other has left") as error:
        line.receive()
    assert error.value.left


def test_a_send_in_vain_says_too_that_the_peer_has_left(make_pair: MakePair, aborted: AbortFlag) -> None:
    first, second = make_pair()
    second.post(16)
    leave([second], PATIENCE)
    line = BlockingConnection(first, waiter(aborted))
    with pytest.raises(PeerLost, match="the other has left") as error:
        [line.send(17, (), [bytes(100_000)]) for _ in range(1000)]
    assert error.value.left


@pytest.mark.parametrize("body", [b"", bytes(LARGE)])
def test_a_silent_peer_is_lost_before_the_deadline(body: bytes, make_pair: MakePair, aborted: AbortFlag) -> None:
    first, _ = make_pair()
    line = BlockingConnection(first, waiter(aborted, silence=0.05))
    with pytest.raises(PeerLost, match=r"the other has been silent for 0\.05 s"):
        line.send(16, (), [body]) if body else line.receive()


def test_a_peer_that_sends_a_large_body_slowly_is_not_silent(make_pair: MakePair, aborted: AbortFlag) -> None:
    """Poll reports none of its pieces, so they are looked for before it is taken for lost."""
    first, second = make_pair()
    line, body = BlockingConnection(first, waiter(aborted, silence=0.05)), memoryview(bytes(300_000))
    second.stream.send([memoryview(Encoder().head(16, (), len(body))), body[:100_000]])
    while not first.partial:
        assert first.next() is None
    second.stream.send([body[:10]])
    heard = first.heard
    with pytest.raises(PeerLost, match=r"the other has been silent for 0\.05 s"):
        line.receive()
    assert first.heard > heard


def test_the_pump_of_a_peer_that_computes_sends_heartbeats(make_pair: MakePair, aborted: AbortFlag) -> None:
    """The peer answers only after several of them, which it has not sent itself."""
    first, second = make_pair()
    pump, computing = Pump(0.02), threading.Event()
    pump.watch(second)

    def answer() -> None:
        for _ in range(5):
            before = second.sent
            while second.sent == before:
                computing.wait(0.005)
        second.post(17)

    thread = threading.Thread(target=answer)
    thread.start()
    heard = first.heard
    assert BlockingConnection(first, waiter(aborted)).receive().kind == 17
    assert first.heard > heard
    thread.join(PATIENCE)
    pump.forget(second)
    pump.close()


def test_what_is_called_off_ends_at_once(make_pair: MakePair, aborted: AbortFlag) -> None:
    ended = []
    pairs = [make_pair() for _ in range(2)]

    def wait(side: int) -> None:
        line = BlockingConnection(pairs[side][0], waiter(aborted))
        try:
            line.receive() if side else line.send(16, (), [bytes(LARGE)])
        except Cancelled:
            ended.append(side)

    threads = [threading.Thread(target=wait, args=(side,)) for side in range(2)]
    for thread in threads:
        thread.start()
    aborted.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(ended) == [0, 1]


def test_the_pump_sends_what_is_queued_while_its_owner_does_something_else(make_pair: MakePair, pump: Pump) -> None:
    first, second = make_pair()
    pump.watch(first)
    for number in range(3):
        first.post(16 + number, (), [bytes(LARGE)], copy=False)
    assert [next_frame(second).kind for _ in range(3)] == [16, 17, 18]
    pump.forget(first)


def test_a_pump_outlives_its_connections(make_pair: MakePair, pump: Pump) -> None:
    first, second = make_pair()
    third, fourth = make_pair()
    for each in (first, third):
        pump.watch(each)
    second.close()
    first.post(16, (), [bytes(1000)])
    first.close()
    third.post(17, (), [bytes(LARGE)])
    assert next_frame(fourth).kind == 17
    pump.forget(first)
    pump.forget(third)
