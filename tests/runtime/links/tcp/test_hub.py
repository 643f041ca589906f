"""A hub meets its peers, exchanges frames with them, and reports each that ends, leaves, stops or misbehaves."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Callable

import pytest
import torch

from paceline.runtime.links import Change
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, listen
from paceline.runtime.links.tcp.frame import SPAN
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Event, Gone, Hub, Policy, Received, Unreached
from paceline.runtime.links.tcp.meeting import ConnectedPeers
from paceline.runtime.links.tcp.waiting import DELAYS, TIMING, Pump, Timing
from tests.runtime.links.tcp.conftest import PATIENCE, until

RUN, JOB = bytes(range(16)), bytes(32)
DESK, WORKER = Peer(1, 0), Peer(2, 0)
PING, PONG = 20, 21
QUICK = Timing(heartbeat=0.02, silence=0.2)  # where a silent peer is waited for
PATIENT = Timing(heartbeat=0.02, silence=PATIENCE)  # where none may be taken for silent, however busy the machine is


def listening_hub(timing: Timing = TIMING, pump: Pump | None = None) -> Hub:
    listener = listen(Address("127.0.0.1", 0), LOOPBACK)
    return Hub(
        Identity(DESK, RUN, JOB), listener=listener, policy=Policy(timing=timing), pump=pump, report=lambda _: None
    )


def dialling_hub(address: Address, peer: Peer = WORKER, timing: Timing = TIMING, pump: Pump | None = None) -> Hub:
    hub = Hub(Identity(peer, RUN, JOB), policy=Policy(timing=timing), pump=pump, report=lambda _: None)
    hub.dial(address, PATIENCE)
    return hub


def fork(do: Callable[[], object]) -> int:
    """Run `do` in a child process, which it does not leave; the child's number."""
    if (pid := os.fork()) == 0:
        try:
            do()
        finally:
            os._exit(1)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def one(events: list[Event]) -> Event:
    (event,) = events
    return event


def test_peers_meet_and_answer(hubs: list[Hub]) -> None:
    desk = listening_hub()
    workers = [dialling_hub(desk.address, Peer(WORKER.role, number)) for number in range(3)]
    hubs += [desk, *workers]
    met = until(hubs, lambda events: len(events) == 6)
    assert Arrived(Peer(WORKER.role, 2)) in met
    assert met.count(Arrived(DESK, desk.address)) == 3
    assert desk.peers == {Peer(WORKER.role, number) for number in range(3)}
    body = os.urandom(300_000)
    assert workers[1].post(DESK, PING, (7, -8), [body[:1000], body[1000:]])
    (got,) = until(hubs, bool)
    assert isinstance(got, Received)
    assert (got.peer, got.kind, got.ints, bytes(got.body)) == (Peer(WORKER.role, 1), PING, (7, -8), body)
    assert desk.post(got.peer, PONG, got.ints)
    assert until(hubs, bool) == [Received(DESK, PONG, (7, -8), memoryview(b""))]


def test_a_peer_that_leaves_says_so(hubs: list[Hub]) -> None:
    desk = listening_hub()
    worker = dialling_hub(desk.address)
    hubs.append(desk)
    until([desk, worker], lambda events: len(events) == 2)
    worker.close()
    assert until([desk], bool) == [Gone(WORKER, "has left", left=True)]
    assert not desk.post(WORKER, PING)


def test_a_killed_peer_is_reported(hubs: list[Hub]) -> None:
    hubs.append(desk := listening_hub())

    def work() -> None:
        worker = dialling_hub(desk.address)
        while True:
            worker.poll(1.0)

    pid = fork(work)
    assert until(hubs, bool) == [Arrived(WORKER)]
    end(pid)
    while desk.post(WORKER, PING):  # also a process that only sends learns of it
        desk.poll(0.0)
    gone = one(desk.poll(PATIENCE)) if WORKER in desk.peers else None
    assert gone is None or (isinstance(gone, Gone) and not gone.left)
    assert not desk.peers


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_dies_or_stops_is_reported_once(signal_number: signal.Signals, hubs: list[Hub]) -> None:
    hubs.append(desk := listening_hub(PATIENT))

    def work() -> None:
        worker = dialling_hub(desk.address, timing=PATIENT)
        while True:
            worker.poll(1.0)

    pid = fork(work)
    until(hubs, lambda events: Arrived(WORKER) in events)
    os.kill(pid, signal_number)
    if signal_number == signal.SIGKILL:
        os.waitpid(pid, 0)
    else:
        desk._policy = desk._policy._replace(timing=QUICK)
    events = until(hubs, bool)
    if signal_number == signal.SIGSTOP:
        end(pid)
    gone = one(events)
    assert isinstance(gone, Gone)
    assert (gone.peer, gone.left) == (WORKER, False)
    assert ("silent for 0.2 s" in gone.why) == (signal_number == signal.SIGSTOP)
    assert desk.poll(0.0) == []


def test_a_peer_that_computes_beats_by_its_pump_and_a_stopped_one_does_not(hubs: list[Hub]) -> None:
    """Its main thread never comes back to the loop; PyTorch releases the interpreter's lock while it computes."""
    hubs.append(desk := listening_hub(PATIENT))

    def work() -> None:
        pump = Pump(0.02)
        worker = dialling_hub(desk.address, timing=PATIENT, pump=pump)
        while not worker.peers:
            worker.poll(1.0)
        matrix = torch.ones(400, 400)
        while True:
            matrix @ matrix

    pid = fork(work)
    until(hubs, lambda events: Arrived(WORKER) in events)
    connection = desk._members[WORKER].connection
    for _ in range(20):  # beats, which only the pump sends
        before = connection.heard
        while connection.heard == before:
            assert WORKER in desk.peers
            desk.poll(0.01)
    os.kill(pid, signal.SIGSTOP)
    desk._policy = desk._policy._replace(timing=QUICK)
    gone = one(until(hubs, bool))
    end(pid)
    assert isinstance(gone, Gone)
    assert "silent" in gone.why


def test_a_process_that_slept_itself_takes_none_for_dead(hubs: list[Hub]) -> None:
    """The peers' heartbeats lie in the kernel, and are read before anyone is judged."""
    pump = Pump(0.02)
    desk, worker = listening_hub(QUICK), None
    worker = dialling_hub(desk.address, timing=QUICK, pump=pump)
    hubs += [desk, worker]
    until(hubs, lambda events: len(events) == 2)
    threading.Event().wait(3 * QUICK.silence)
    assert desk.poll(0.0) == []
    assert desk.peers == {WORKER}
    worker.close()
    pump.close()


def test_a_later_incarnation_replaces_an_earlier_one_and_never_the_reverse(hubs: list[Hub]) -> None:
    hubs.append(desk := listening_hub())
    first, second = Peer(2, 7, 1), Peer(2, 7, 2)
    hubs.append(dialling_hub(desk.address, first))
    until(hubs, lambda events: Arrived(first) in events)
    hubs.append(dialling_hub(desk.address, second))
    events = until(hubs, lambda events: Arrived(second) in events)
    assert Gone(first, "has connected again") in events
    hubs.append(dialling_hub(desk.address, first))
    until(hubs, lambda _: desk.refused == 1)
    assert desk.peers == {second}


def test_an_address_that_is_dialled_twice_is_connected_once(hubs: list[Hub]) -> None:
    hubs += [desk := listening_hub(), worker := dialling_hub(desk_address := desk.address)]
    worker.dial(desk_address, PATIENCE)
    assert len(until(hubs, lambda events: len(events) == 2)) == 2
    for _ in range(10):
        assert desk.poll(0.001) == worker.poll(0.001) == []


def test_a_name_of_several_addresses_is_tried_at_each(hubs: list[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost, which may mean ::1 first."""
    hubs.append(desk := listening_hub())
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, desk.address.port)) for host in ("127.0.0.9", "127.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    hubs.append(dialling_hub(Address("localhost", desk.address.port)))
    assert Arrived(WORKER) in until(hubs, lambda events: len(events) == 2)


def test_a_kind_that_belongs_to_links_ends_the_connection(hubs: list[Hub]) -> None:
    hubs.append(desk := listening_hub())
    hubs.append(worker := dialling_hub(desk.address))
    until(hubs, lambda events: len(events) == 2)
    worker.post(DESK, SPAN, (0, 0, 1))
    gone = one(until([desk], bool))
    assert isinstance(gone, Gone)
    assert "sent what is not allowed: kind 6" in gone.why


def test_a_peer_that_does_not_read_is_disconnected(hubs: list[Hub]) -> None:
    listener = listen(Address("127.0.0.1", 0), LOOPBACK)
    desk = Hub(Identity(DESK, RUN, JOB), listener=listener, policy=Policy(timing=Timing(silence=PATIENCE)))
    hubs += [desk, worker := dialling_hub(desk.address)]
    until(hubs, lambda events: len(events) == 2)
    body = bytes(50_000_000)
    while desk.post(WORKER, PING, (), [body]):
        pass
    gone = one(desk.poll(0.0))
    assert isinstance(gone, Gone)
    assert "does not read" in gone.why
    worker.close(0.0)
    hubs.remove(worker)


def test_many_frames_of_one_peer_do_not_keep_the_others_waiting(hubs: list[Hub]) -> None:
    hubs.append(desk := listening_hub())
    hubs += [loud := dialling_hub(desk.address), quiet := dialling_hub(desk.address, Peer(2, 1))]
    until(hubs, lambda events: len(events) == 4)
    for number in range(1000):
        loud.post(DESK, PING, (number,))
    quiet.post(DESK, PONG)
    got: list[Event] = []
    while len(got) < 1001:
        got += desk.poll(1.0)
    numbers = [event.ints[0] for event in got if isinstance(event, Received) and event.peer == WORKER]
    assert numbers == list(range(1000))
    assert [event.peer for event in got if isinstance(event, Received)].index(Peer(2, 1)) < 500


def test_bodies_are_received_where_their_place_is(hubs: list[Hub]) -> None:
    slots = {0: bytearray(10), 1: bytearray(100_000)}
    listener = listen(Address("127.0.0.1", 0), LOOPBACK)
    desk = Hub(
        Identity(DESK, RUN, JOB),
        listener=listener,
        place=lambda peer, kind, ints, size: memoryview(slots[ints[0]])[:size] if peer == WORKER else None,
    )
    hubs += [desk, worker := dialling_hub(desk.address)]
    until(hubs, lambda events: len(events) == 2)
    worker.post(DESK, PING, (0,), [b"abc"])
    worker.post(DESK, PING, (1,), [b"x" * 100_000])
    got = until(hubs, lambda events: len(events) == 2)
    assert slots == {0: b"abc" + bytes(7), 1: b"x" * 100_000}
    assert all(isinstance(event, Received) and event.body.obj is slots[event.ints[0]] for event in got)


def test_what_has_come_of_a_large_body_shows_that_its_sender_lives(hubs: list[Hub]) -> None:
    """Poll reports a body when it is complete; until then the hub looks for its pieces itself."""
    hubs += [desk := listening_hub(PATIENT), worker := dialling_hub(desk.address, timing=PATIENT)]
    until(hubs, lambda events: len(events) == 2)
    sender, receiver = worker._members[DESK].connection, desk._members[WORKER].connection
    sender.stream.send([memoryview(sender._encoder.head(PING, (), 300_000)), memoryview(bytes(100_000))])
    while not receiver.partial:
        assert not desk.poll(0.01)
    sender.stream.send([memoryview(bytes(10))])
    heard = receiver.heard
    while receiver.heard == heard:
        assert not desk.poll(0.01)


def test_a_connection_is_handed_over_with_what_has_arrived(hubs: list[Hub]) -> None:
    listener = listen(Address("127.0.0.1", 0), LOOPBACK)
    desk = Hub(Identity(DESK, RUN, JOB), listener=listener, policy=Policy(handed_over=(WORKER.role,)))
    hubs += [desk, worker := dialling_hub(desk.address)]
    until(hubs, lambda events: len(events) == 2)
    worker.post(DESK, PING, (5,))
    assert desk.peers == frozenset()
    connection = desk.take_over(WORKER)
    while (frame := connection.next()) is None:
        pass
    assert frame.ints == (5,)
    connection.close()


def test_a_hub_is_woken_by_another_thread(hubs: list[Hub]) -> None:
    hubs.append(desk := listening_hub())
    thread = threading.Thread(target=desk.wake)
    thread.start()
    assert desk.poll(PATIENCE) == []
    thread.join()


def test_a_process_without_descriptors_accepts_again_later(hubs: list[Hub]) -> None:
    told: list[str] = []
    listener = listen(Address("127.0.0.1", 0), LOOPBACK)
    hubs.append(
        desk := Hub(Identity(DESK, RUN, JOB), listener=listener, policy=Policy(timing=QUICK), report=told.append)
    )
    hubs.append(worker := dialling_hub(desk.address))
    worker.poll(0.0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        for _ in range(20):
            desk.poll(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert until(hubs, lambda events: Arrived(WORKER) in events)
    assert "could accept none" in " ".join(told)


def test_members_follow_from_events() -> None:
    members = ConnectedPeers(0, WORKER.role)
    for event in (
        Arrived(Peer(2, 1)),
        Arrived(Peer(2, 2)),
        Arrived(Peer(9, 3)),
        Gone(Peer(2, 1), "has left"),
        Gone(Peer(2, 2), "has connected again"),
        Arrived(Peer(2, 2, 1)),
    ):
        members.note(event)
    assert members.alive() == {0, 2}
    assert members.changes() == [Change(1, True), Change(2, True), Change(1, False), Change(2, False), Change(2, True)]
    assert members.changes() == []
    members.close()


def test_an_address_that_nobody_answers_is_given_up(hubs: list[Hub]) -> None:
    listener = listen(Address("127.0.0.1", 0), LOOPBACK)
    address = Address(*listener.getsockname()[:2])
    listener.close()
    hub = Hub(Identity(WORKER, RUN, JOB))
    hubs.append(hub)
    hub.dial(address, 0.1)
    (event,) = until(hubs, bool)
    assert isinstance(event, Unreached)
    assert event.address == address


def test_a_pump_that_runs_late_says_so_until_it_is_forgotten_and_a_stop_is_no_delay() -> None:
    pump = Pump()
    pump.close()
    nap, second = pump._nap * 1_000_000, 1_000_000_000
    for _ in range(2):
        pump._measure(nap + second)
    assert 0.9 * second < pump.delay < second
    pump._measure(nap + 20 * second)  # it was stopped
    assert 0.9 * second < pump.delay < second
    for _ in range(8 * 20):
        pump._measure(nap)
    assert pump.delay < second / 8


def test_a_process_that_was_stopped_for_a_moment_is_not_waited_for_longer_the_next_time() -> None:
    """A stop of 2.4 s counted as the delay of a crowded machine: three times as long was borne a few seconds later."""
    pump = Pump()
    pump.close()
    nap, second = pump._nap * 1_000_000, 1_000_000_000
    pump._measure(nap + int(2.4 * second))
    for _ in range(8 * 4):  # four seconds in which it runs on time
        pump._measure(nap + second // 1000)
    assert DELAYS * pump.delay < second / 100
