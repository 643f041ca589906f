"""All collectives over TCP give the bits that they give over shared memory; deaths and silence are noticed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.core.collectives import Collective
from paceline.core.collectives.central import Central
from paceline.core.collectives.halving_doubling import HalvingDoubling
from paceline.core.collectives.hierarchical import Hierarchical
from paceline.core.collectives.ring import Ring
from paceline.core.collectives.tree import Tree
from paceline.engines.local.collectives import Reduction
from paceline.links import TURNS, Link
from paceline.links.doorbell import Doorbell
from paceline.links.shared_memory_link import SharedMemoryLink, SharedVectors
from paceline.links.tcp.doors import Address, Loopback, listen
from paceline.links.tcp.handshake import Identity, Peer
from paceline.links.tcp.link import TcpLink
from paceline.links.tcp.meeting import meet
from paceline.links.tcp.pump import Pump
from paceline.links.tcp.waiting import SocketWaiter
from paceline.links.waiting import Waiter
from tests.links.conftest import MakeMemory

RUN, JOB = bytes(16), bytes(32)
NUMBERS = 1000
COLLECTIVES: dict[str, Collective] = {
    "ring": Ring(), "tree": Tree(), "halving_doubling": HalvingDoubling(), "hierarchical": Hierarchical(1),
    "central": Central(),
}  # fmt: skip


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


def over_tcp(ranks: int, numbers: int, do: Callable[[Link], None]) -> None:
    listeners = [listen(Address("127.0.0.1", 0), Loopback()) for _ in range(ranks)]
    addresses = [Address(*listener.getsockname()[:2]) for listener in listeners]

    def run(rank: int) -> None:
        waiter, pump = SocketWaiter(rank, 60.0), Pump()
        me = Identity(Peer(1, rank, 3), RUN, JOB)
        connections = meet(me, listeners[rank], addresses, Loopback(), waiter, pump)
        link = TcpLink(rank, connections, [torch.zeros(numbers) for _ in range(TURNS)], waiter, pump)
        do(link)
        link.close()
        pump.close()
        waiter.called_off.close()

    in_threads(ranks, run)


def reduced(link: Link, collective: Collective, ranks: int, rounds: int = 5) -> list[Tensor]:
    """The sums that a rank gets of vectors that depend on rank and round alone."""
    reduction, results = Reduction(link, collective, ranks), []
    for number in range(rounds):
        chance = torch.Generator().manual_seed(1000 * link.rank + number)
        link.vectors[number % TURNS].copy_(torch.randn(len(link.vectors[0]), generator=chance))
        reduction.sum(number)
        results.append(link.vectors[number % TURNS].clone())
    return results


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_gives_the_bits_that_it_gives_over_shared_memory(
    name: str, ranks: int, make_memory: MakeMemory
) -> None:
    shared = SharedVectors(memory := make_memory(1 << 17), ranks, NUMBERS, torch.float32)
    doorbells = [Doorbell.of(memory) for _ in range(ranks)]
    expected: dict[int, list[Tensor]] = {}
    got: dict[int, list[Tensor]] = {}

    def locally(rank: int) -> None:
        waiter = Waiter(rank, doorbells[rank], lambda: False, 60.0, lambda: "", crowded=True)
        expected[rank] = reduced(SharedMemoryLink(shared, rank, doorbells, waiter), COLLECTIVES[name], ranks)

    def over_the_wire(link: Link) -> None:
        got[link.rank] = reduced(link, COLLECTIVES[name], ranks)

    in_threads(ranks, locally)
    over_tcp(ranks, NUMBERS, over_the_wire)
    for rank in range(ranks):
        assert all(torch.equal(a, b) for a, b in zip(got[rank], expected[rank], strict=True))
