"""All collectives over TCP give the bits that they give over shared memory; deaths and silence are noticed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.halving_doubling import HalvingDoubling
from paceline.algorithms.collectives.rings import Hierarchical, Ring
from paceline.algorithms.collectives.trees import Central, Tree
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.errors import PeerLost, ProtocolError, WaitedTooLong
from paceline.runtime.engines.workers.collectives import Reduction
from paceline.runtime.links import TURNS, Link, Span
from paceline.runtime.links.shared_memory import SharedMemoryLink, SharedVectors
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, Credentials, listen
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.link import TcpLink, raw
from paceline.runtime.links.tcp.meeting import connect, meet
from paceline.runtime.links.tcp.tls import MutualTls, make_keys
from paceline.runtime.links.tcp.waiting import AbortFlag, Pump, SocketWaiter
from paceline.runtime.links.waiting import Cancelled, Doorbell, Waiter
from tests.runtime.links.conftest import MakeMemory
from tests.runtime.links.tcp.conftest import PATIENCE, MakePair

RUN, JOB = bytes(16), bytes(32)
GROUP = 1
NUMBERS = 1000
LARGE = 4_000_000  # numbers; more than two sockets hold
COLLECTIVES: dict[str, Collective] = {
    "ring": Ring(),
    "tree": Tree(),
    "halving_doubling": HalvingDoubling(),
    "hierarchical": Hierarchical(2),
    "central": Central(),
}


def in_threads(ranks: int, do: Callable[[int], None]) -> None:
    """Run `do(rank)` in a thread for each rank, and raise what one of them raises."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            do(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    if errors:
        raise errors[0]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (folder,) = make_keys(tmp_path_factory.mktemp("keys") / "run")
    return folder


class World:
    """The addresses of a few ranks, each of which is then a thread or a process."""

    def __init__(
        self,
        ranks: int,
        numbers: int = NUMBERS,
        deadline: float = PATIENCE,
        silence: float = PATIENCE,
        credentials: Credentials = LOOPBACK,
    ) -> None:
        self.numbers, self.deadline, self.silence, self.credentials = numbers, deadline, silence, credentials
        self.listeners = [listen(Address("127.0.0.1", 0), credentials) for _ in range(ranks)]
        self.addresses = [Address(*listener.getsockname()[:2]) for listener in self.listeners]

    def run(self, rank: int, do: Callable[[TcpLink], None]) -> None:
        """Be one rank, from meeting the others to leaving them."""
        waiter, pump = SocketWaiter(rank, self.deadline, lambda: "in update 7", silence=self.silence), Pump(0.02)
        try:
            me = Identity(Peer(GROUP, rank, 3), RUN, JOB)
            connections = meet(me, self.listeners[rank], self.addresses, self.credentials, waiter, pump)
            link = TcpLink(rank, connections, [torch.zeros(self.numbers) for _ in range(TURNS)], waiter, pump)
            try:
                do(link)
            finally:
                link.close()
        finally:
            pump.close()
            waiter.aborted.close()

    def fork(self, rank: int, do: Callable[[TcpLink], None]) -> int:
        """Be one rank in a child process; its number."""
        if (pid := os.fork()) == 0:
            status = 1
            try:
                for other, listener in enumerate(self.listeners):
                    if other != rank:
                        listener.close()
                self.run(rank, do)
                status = 0
            finally:
                os._exit(status)
        self.listeners[rank].close()
        return pid


def over_tcp(
    ranks: int, do: Callable[[TcpLink], None], numbers: int = NUMBERS, credentials: Credentials = LOOPBACK
) -> None:
    world = World(ranks, numbers, credentials=credentials)
    in_threads(ranks, lambda rank: world.run(rank, do))


def reduced(link: Link, collective: Collective, ranks: int, rounds: int = 5) -> list[Tensor]:
    """The sums that a rank gets of vectors that depend on rank and round alone."""
    reduction, results = Reduction(link, collective, ranks), []
    for number in range(rounds):
        chance = torch.Generator().manual_seed(1000 * link.rank + number)
        link.vectors[number % TURNS].copy_(torch.randn(len(link.vectors[0]), generator=chance))
        reduction.sum(number)
        results.append(link.vectors[number % TURNS].clone())
    return results


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, ranks) for name in COLLECTIVES for ranks in (2, 3, 4) if name != "hierarchical" or ranks % 2 == 0],
)
@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_a_collective_gives_the_bits_that_it_gives_over_shared_memory(
    name: str, ranks: int, kind: str, make_memory: MakeMemory, keys: Path
) -> None:
    shared = SharedVectors(memory := make_memory(1 << 17), ranks, NUMBERS, torch.float32)
    doorbells = [Doorbell.of(memory) for _ in range(ranks)]
    credentials = MutualTls(keys) if kind == "tls" else LOOPBACK
    expected: dict[int, list[Tensor]] = {}
    got: dict[int, list[Tensor]] = {}

    def locally(rank: int) -> None:
        waiter = Waiter(rank, doorbells[rank], lambda: False, 60.0, lambda: "", crowded=True)
        expected[rank] = reduced(SharedMemoryLink(shared, rank, doorbells, waiter), COLLECTIVES[name], ranks)

    def over_the_wire(link: TcpLink) -> None:
        got[link.rank] = reduced(link, COLLECTIVES[name], ranks)

    in_threads(ranks, locally)
    over_tcp(ranks, over_the_wire, credentials=credentials)
    for rank in range(ranks):
        assert all(torch.equal(a, b) for a, b in zip(got[rank], expected[rank], strict=True))


@pytest.mark.parametrize("graph", ["ring", "exponential", "complete"])
def test_neighbours_are_mixed_as_over_shared_memory(graph: str, make_memory: MakeMemory) -> None:
    """What is taken of several ranks without an offer between lies side by side."""
    ranks = 4
    shared = SharedVectors(memory := make_memory(1 << 17), ranks, NUMBERS, torch.float32)
    doorbells = [Doorbell.of(memory) for _ in range(ranks)]
    expected: dict[int, list[Tensor]] = {}
    got: dict[int, list[Tensor]] = {}

    def mixed(link: Link) -> list[Tensor]:
        weights, results = Neighbours(graph).weights(link.rank, ranks), []
        for number in range(5):
            turn = number % TURNS
            link.vectors[turn].fill_(10 * number + link.rank)
            whole = Span(turn, 0, NUMBERS)
            for other, _ in weights[1:]:
                link.offer(other, whole)
            taken = [link.take(other, whole) for other, _ in weights[1:]]
            results.append(torch.stack([link.vectors[turn], *taken]).sum(0))
        return results

    def locally(rank: int) -> None:
        waiter = Waiter(rank, doorbells[rank], lambda: False, 60.0, lambda: "", crowded=True)
        expected[rank] = mixed(SharedMemoryLink(shared, rank, doorbells, waiter))

    in_threads(ranks, locally)
    over_tcp(ranks, lambda link: got.update({link.rank: mixed(link)}))
    for rank in range(ranks):
        assert all(torch.equal(a, b) for a, b in zip(got[rank], expected[rank], strict=True))


@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_that_all_send_much_first_do_not_wait_for_each_other(ranks: int) -> None:
    world = World(ranks, LARGE)

    def exchange(link: TcpLink) -> None:
        others = [rank for rank in range(ranks) if rank != link.rank]
        for number in range(3):
            whole = Span(number % TURNS, 0, LARGE)
            link.vectors[number % TURNS].fill_(10 * number + link.rank)
            for other in others:
                link.offer(other, whole)
            for other in others:
                assert link.take(other, whole)[-1] == 10 * number + other
        assert link.waited >= 0

    pids = [world.fork(rank, exchange) for rank in range(1, ranks)]
    world.run(0, exchange)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * (ranks - 1)


def test_what_was_offered_last_arrives_though_its_rank_takes_nothing_more() -> None:
    taken: list[float] = []
    whole = Span(0, 0, LARGE)

    def do(link: TcpLink) -> None:
        if link.rank == 0:
            link.vectors[0].fill_(5.0)
            link.offer(1, whole)  # and leaves
        else:
            taken.append(float(link.take(0, whole).sum()))

    over_tcp(2, do, LARGE)
    assert taken == [5.0 * LARGE]


def test_what_was_taken_stays_valid_until_the_next_offer() -> None:
    first, second = Span(0, 0, 500), Span(0, 500, NUMBERS)

    def do(link: TcpLink) -> None:
        other = 1 - link.rank
        link.vectors[0].copy_(torch.arange(NUMBERS))
        link.offer(other, first)
        link.offer(other, second)
        one, two = link.take(other, first), link.take(other, second)
        assert (one[0], one[-1], two[0], two[-1]) == (0, 499, 500, 999)
        link.offer(other, first)
        assert link.take(other, first).data_ptr() == one.data_ptr()  # its memory is used again

    over_tcp(2, do)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_ends_the_takes_of_the_others(number: signal.Signals) -> None:
    """Also of those that wait for another rank, if it has died; a stopped one is noticed by those that wait for it."""
    world, whole = World(3), Span(0, 0, NUMBERS)
    ready, both = threading.Event(), threading.Barrier(2)
    lost: dict[int, str] = {}

    def wait_for_ever(link: TcpLink) -> None:
        link.offer(0, whole)
        signal.pause()

    def take(link: TcpLink) -> None:
        awaited = 2 if link.rank == 0 or number == signal.SIGSTOP else 0
        if link.rank == 0:
            link.take(2, whole)
            ready.set()
        assert ready.wait(PATIENCE)
        if number == signal.SIGSTOP:
            link._waiter.silence = 0.3
        with pytest.raises(PeerLost) as error:
            link.take(awaited, whole)
        lost[link.rank] = str(error.value)
        both.wait(PATIENCE)  # the first to leave calls the link off

    pid = world.fork(2, wait_for_ever)

    def kill() -> None:
        assert ready.wait(PATIENCE)
        os.kill(pid, number)

    threading.Thread(target=kill).start()
    in_threads(2, lambda rank: world.run(rank, take))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert all("worker 2 at 127.0.0.1" in why for why in lost.values()), lost
    assert len(lost) == 2
    assert all(("silent" in why) == (number == signal.SIGSTOP) for why in lost.values())


def test_a_link_that_is_called_off_ends_every_take() -> None:
    ended: list[int] = []
    ready = threading.Barrier(3)

    def do(link: TcpLink) -> None:
        ready.wait(PATIENCE)
        if link.rank == 2:
            link.abort()
        try:
            link.take({0: 1, 1: 0, 2: 0}[link.rank], Span(0, 0, 1))  # ranks 0 and 1 wait for each other
        except Cancelled:
            ended.append(link.rank)

    over_tcp(3, do)
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize("how", ["cancels", "leaves"])
def test_an_offer_to_a_rank_that_has_gone_says_why(how: str) -> None:
    """One that was cancelled must not be taken for dead."""
    whole, gone = Span(0, 0, NUMBERS), threading.Event()

    def do(link: TcpLink) -> None:
        if link.rank == 1:
            link.offer(0, whole)
            if how == "cancels":
                link.abort()
            link.close()
            gone.set()
            return
        assert gone.wait(PATIENCE)
        with pytest.raises(Cancelled if how == "cancels" else PeerLost) as error:
            [link.offer(1, whole) for _ in range(1000)]
        assert getattr(error.value, "left", True)

    over_tcp(2, do)


def test_a_rank_that_leaves_in_good_order_disturbs_none_that_waits_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what it has offered before can be taken afterwards."""
    whole, left = Span(0, 0, NUMBERS), threading.Event()

    def do(link: TcpLink) -> None:
        link.vectors[0].fill_(link.rank)
        if link.rank == 2:
            link.offer(0, whole)
            return
        if link.rank == 1:
            link.take(0, whole)
            assert left.wait(PATIENCE)
            link.offer(0, whole)
            return
        link.offer(1, whole)
        source = link._sources[2]
        read_to_the_end = source.read_to_the_end
        monkeypatch.setattr(source, "read_to_the_end", lambda: (read_to_the_end(), left.set()))
        assert link.take(1, whole)[0] == 1
        assert link.take(2, whole)[0] == 2
        with pytest.raises(PeerLost, match=r"worker 2 .* has left"):
            link.take(2, whole)

    over_tcp(3, do)


def test_a_take_past_the_deadline_names_the_peer() -> None:
    world = World(2, deadline=PATIENCE)

    def do(link: TcpLink) -> None:
        if link.rank == 0:
            link._waiter.deadline = 0.0
            with pytest.raises(WaitedTooLong, match=r"worker 0 waited 0 s for worker 1 at .* in update 7"):
                link.take(1, Span(0, 0, 1))
            link.offer(1, Span(0, 0, 1))
        else:
            link.take(0, Span(0, 0, 1))

    in_threads(2, lambda rank: world.run(rank, do))


def test_ranks_that_run_different_collectives_are_told_so() -> None:
    def do(link: TcpLink) -> None:
        link.offer(1 - link.rank, Span(0, 0, 10))
        with pytest.raises(ProtocolError, match=r"where Span\(turn=0, start=0, stop=20\) of 80 bytes was due"):
            link.take(1 - link.rank, Span(0, 0, 20))

    over_tcp(2, do)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_other_dtypes_and_empty_spans_travel(dtype: torch.dtype, make_pair: MakePair, pump: Pump) -> None:
    links, off = [], AbortFlag()
    for rank, connection in enumerate(make_pair()):
        vectors = [torch.arange(9).to(dtype) + 10 * rank for _ in range(TURNS)]
        links.append(TcpLink(rank, {1 - rank: connection}, vectors, SocketWaiter(rank, PATIENCE, aborted=off), pump))
    for span in (Span(1, 2, 9), Span(0, 4, 4)):
        links[1].offer(0, span)
        assert torch.equal(links[0].take(1, span), links[1].vectors[0][span.start : span.stop])
    assert len(raw(torch.empty(0))) == 0
    off.set()
    for link in links:
        link.close()
    off.close()


def test_ranks_that_are_missing_are_named() -> None:
    world = World(3, deadline=0.2)
    with pytest.raises(WaitedTooLong, match=r"worker 1 waited 0 s for worker 0 at 127.0.0.1:\d+ .*worker 2 at"):
        world.run(1, lambda link: None)
    for listener in world.listeners:
        listener.close()


def test_a_meeting_that_is_called_off_ends() -> None:
    world, ended = World(2), threading.Event()
    waiter, pump = SocketWaiter(0, PATIENCE), Pump()

    def wait() -> None:
        try:
            meet(Identity(Peer(GROUP, 0), RUN, JOB), world.listeners[0], world.addresses, LOOPBACK, waiter, pump)
        except Cancelled:
            ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    waiter.aborted.set()
    thread.join(PATIENCE)
    assert ended.is_set()
    world.listeners[1].close()
    waiter.aborted.close()
    pump.close()


def test_a_rank_of_an_earlier_group_is_not_met() -> None:
    world = World(2)
    met: list[Peer] = []

    def late() -> None:
        waiter = SocketWaiter(1, PATIENCE)
        peer, connection = connect(Identity(Peer(GROUP, 1, 2), RUN, JOB), world.addresses[0], LOOPBACK, waiter)
        met.append(peer)
        while connection.lost is None:
            try:
                connection.next()
            except PeerLost:
                break
        connection.close()
        waiter.aborted.close()
        world.run(1, lambda link: link.offer(0, Span(0, 0, 1)))

    thread = threading.Thread(target=late)
    thread.start()
    world.run(0, lambda link: met.append(Peer(*map(int, link.take(1, Span(0, 0, 1)).shape * 3))))
    thread.join(PATIENCE)
    assert met == [Peer(GROUP, 0, 3), Peer(1, 1, 1)]
