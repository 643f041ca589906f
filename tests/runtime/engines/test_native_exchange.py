"""Sums that generated code makes: the bits, waits and ends of the same sums in Python, and both in one group."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.halving_doubling import HalvingDoubling
from paceline.algorithms.collectives.rings import Hierarchical, Ring
from paceline.algorithms.collectives.trees import Central, Tree
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.errors import WaitedTooLong
from paceline.kernels.build import library
from paceline.kernels.exchange import Ended
from paceline.kernels.printers.cpp import part
from paceline.kernels.resident import NOTE
from paceline.runtime.engines.workers.collectives import NeighbourMixing, PayloadReduction, Reduction, payloads_of
from paceline.runtime.engines.workers.methods.native_updates import NativeExchange, native_exchange
from paceline.runtime.links.shared_memory import SharedMemoryLink, SharedVectors
from paceline.runtime.links.waiting import Cancelled, Doorbell, Waiter
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import lay_out, trainable
from tests.runtime.links.conftest import MakeMemory, make_memory  # noqa: F401

UPDATES = 6
COLLECTIVES: dict[str, Collective] = {
    "ring": Ring(),
    "tree": Tree(),
    "halving_doubling": HalvingDoubling(),
    "hierarchical": Hierarchical(2),
    "central": Central(),
}
ENTRIES = """
extern "C" int one_exchange(Exchange* e, R* gradient, Note* note) {
    int64_t sums = 0; double total = 0;
    return add_piece(*e, gradient, 0, sums, total, *note) && exchange(*e, gradient, *note);
}
extern "C" int one_mixture(Exchange* e, R* weights, Note* note) {
    offer_weights(*e, weights);
    return mix(*e, weights, *note);
}
"""


@cache
def functions() -> ctypes.CDLL:
    parts = map(part, ("prelude", "call", "stream", "exchange"))
    return library("\n".join(["#define REAL float\n#define LANES 1\n#define DOUBLE 0", *parts, ENTRIES]))[0]


def one_exchange(native: NativeExchange, memory: Tensor, note: np.ndarray) -> bool:
    """Make the exchange of one update."""
    made = functions().one_mixture if native.exchange.share else functions().one_exchange
    address = ctypes.c_void_p(note.ctypes.data)
    return bool(made(ctypes.byref(native.exchange), ctypes.c_void_p(memory.data_ptr()), address))


class World:
    """Workers of one machine with a small model, whose gradients lie in padded rows."""

    def __init__(self, memory: object, workers: int, collective: Collective, deadline: float = 60.0) -> None:
        self.module = nn.Sequential(nn.Linear(10, 13), nn.Linear(13, 4, bias=False))
        self.layout = lay_out(self.module, 1, ())
        self.workers, self.collective, self.deadline = workers, collective, deadline
        self.shared = SharedVectors(memory, workers, Payload.length(self.layout), torch.float32)  # type: ignore[arg-type]
        self.doorbells = [Doorbell.of(memory) for _ in range(workers)]  # type: ignore[arg-type]
        self.cancelled = memoryview(bytearray(8)).cast("q")

    def waiter(self, rank: int) -> Waiter:
        cancelled = self.cancelled
        return Waiter(
            rank, self.doorbells[rank], lambda: bool(cancelled[0]), self.deadline, lambda: "in update 7", crowded=True
        )

    def sums(self, rank: int) -> PayloadReduction:
        link = SharedMemoryLink(self.shared, rank, self.doorbells, self.waiter(rank))
        return PayloadReduction(Reduction(link, self.collective, self.workers), payloads_of(link.vectors, self.layout))

    def mixing(self, rank: int) -> NeighbourMixing:
        link = SharedMemoryLink(self.shared, rank, self.doorbells, self.waiter(rank))
        return NeighbourMixing(link, Neighbours(), self.workers, self.layout, payloads_of(link.vectors, self.layout))

    def native(self, rank: int, memory: Tensor, means: PayloadReduction | NeighbourMixing) -> NativeExchange:
        made = native_exchange(means, self.layout, self.gradients(memory), memory, self.waiter(rank), self.cancelled)
        assert made is not None
        return made

    def gradients(self, memory: Tensor) -> dict[str, Tensor]:
        """Views of padded memory, by the names of parameters."""
        found, start = {}, 3
        for name, parameter in trainable(self.module).items():
            rows, width = parameter.numel() // parameter.shape[-1], parameter.shape[-1]
            whole = memory[start : start + rows * 16].view(rows, 16)
            found[name] = whole[:, :width] if parameter.dim() > 1 else whole[0, :width]
            start += rows * 16
        return found


def own_gradient(rank: int, update: int) -> Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(100 * rank + update))


def all_sums(world: World, rank: int, native: Callable[[int], bool]) -> list[object]:
    """The sums and mean losses that a rank gets; `native` says of each update whether generated code makes it."""
    sums, memory, found = world.sums(rank), torch.zeros(1000), []
    made, weight, note = world.native(rank, memory, sums), (rank + 1) / 10, np.zeros(1, NOTE)
    views = world.gradients(memory)
    for update in range(UPDATES):
        memory.copy_(own_gradient(rank, update))
        note["loss"] = loss = 1.0 + rank / 7
        if native(update):
            made.begin(update, [Chunk(update, 0, 0, 0, 1, weight)], True)
            assert one_exchange(made, memory, note)
            assert made.end() == 1
            found.append((*(view.clone() for view in views.values()), float(note["mean"][0])))
        else:
            weighted = torch._foreach_mul(list(views.values()), weight)
            whole, _, _ = sums.all_reduce(update, GradientSum(weighted, [], loss * weight, weight, 1))
            found.append((*(gradient.clone() for gradient in whole.gradients if gradient is not None), whole.mean))
    return found


def all_mixtures(world: World, rank: int, native: Callable[[int], bool]) -> list[object]:
    """The weights that a rank has after each update, which begin with its own."""
    mixing, memory, found = world.mixing(rank), own_gradient(rank, 0), []
    made, note, views = world.native(rank, memory, mixing), np.zeros(1, NOTE), world.gradients(memory)
    for update in range(UPDATES):
        if native(update):
            made.begin(update, [Chunk(update, 0, 0, 0, 1, 1.0)], True)
            assert one_exchange(made, memory, note)
            assert made.end() == 1
        else:
            mean, _, _ = mixing.mean(update, GradientSum([*views.values()], [], 0.0, 1.0, 1))
            for view, mixed in zip(views.values(), mean.gradients, strict=True):
                view.copy_(mixed)
        found.append(tuple(view.clone() for view in views.values()))
    return found


def in_threads(workers: int, do: Callable[[int], object]) -> list[object]:
    """Return what `do(rank)` returns in a thread for each rank."""
    found: dict[int, object] = {}
    threads = [threading.Thread(target=lambda r=rank: found.update({r: do(r)})) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(workers)]


@pytest.mark.parametrize(
    ("name", "workers"),
    [(name, n) for name in COLLECTIVES for n in (1, 2, 3, 4, 5) if name != "hierarchical" or n in (2, 4)],
)
def test_generated_code_walks_every_table_as_python_does(
    name: str,
    workers: int,
    make_memory: MakeMemory,  # noqa: F811
) -> None:
    """All in Python, all in generated code, and each update by another half of the workers: the same bits."""

    def results(native: Callable[[int, int], bool]) -> list[object]:
        world = World(make_memory(1 << 16), workers, COLLECTIVES[name])
        return in_threads(workers, lambda rank: all_sums(world, rank, lambda update: native(rank, update)))

    expected = results(lambda rank, update: False)
    for native in (lambda rank, update: True, lambda rank, update: (rank + update) % 2 == 0):
        assert same(results(native), expected)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_generated_code_mixes_as_python_does(workers: int, make_memory: MakeMemory) -> None:  # noqa: F811
    """All in Python, all in generated code, and each update by another half of the workers: the same bits."""

    def results(native: Callable[[int, int], bool]) -> list[object]:
        world = World(make_memory(1 << 16), workers, Ring())
        return in_threads(workers, lambda rank: all_mixtures(world, rank, lambda update: native(rank, update)))

    expected = results(lambda rank, update: False)
    for native in (lambda rank, update: True, lambda rank, update: (rank + update) % 2 == 0):
        assert same(results(native), expected)


def same(some: list[object], others: list[object]) -> bool:
    """Whether all ranks have the same bits after every update."""
    return all(
        torch.equal(torch.as_tensor(x), torch.as_tensor(y))
        for mine, theirs in zip(some, others, strict=True)
        for a, b in zip(mine, theirs, strict=True)  # type: ignore[call-overload]
        for x, y in zip(a, b, strict=True)
    )


def alone(make: MakeMemory, deadline: float = 60.0) -> tuple[World, NativeExchange, Tensor, np.ndarray]:
    """The first of two workers, whose peer never comes."""
    world, memory = World(make(1 << 16), 2, Ring(), deadline), torch.zeros(1000)
    native = world.native(0, memory, world.sums(0))
    native.begin(0, [Chunk(0, 0, 0, 0, 1, 0.5)], True)
    return world, native, memory, np.ones(1, NOTE)


def test_a_peer_that_does_not_come_is_named(make_memory: MakeMemory) -> None:  # noqa: F811
    _, native, memory, note = alone(make_memory, deadline=0.01)
    assert not one_exchange(native, memory, note)
    assert native.end() == 0
    with pytest.raises(WaitedTooLong, match="waited 0 s for worker 1 in update 7"):
        native.check()


def test_a_run_that_is_cancelled_is_left(make_memory: MakeMemory) -> None:  # noqa: F811
    world, native, memory, note = alone(make_memory)
    world.cancelled[0] = 1
    assert not one_exchange(native, memory, note)
    with pytest.raises(Cancelled):
        native.check()


def test_a_loss_that_is_not_finite_is_offered_to_nobody(make_memory: MakeMemory) -> None:  # noqa: F811
    world, native, memory, note = alone(make_memory)
    note["loss"] = float("nan")
    assert not one_exchange(native, memory, note)
    assert native.exchange.ended == Ended.NOT_FINITE
    assert native.end() == world.shared.counters[0][1] == 0


def test_a_sleeper_is_rung_by_python(make_memory: MakeMemory) -> None:  # noqa: F811
    """Its nap would last an hour, so only the ring ends it."""
    world, native, memory, note = alone(make_memory, deadline=7200.0)
    native.exchange.nap = 3600 * 10**9
    waiting = threading.Thread(target=one_exchange, args=(native, memory, note), daemon=True)
    waiting.start()
    while not world.doorbells[0].asleep:
        pass
    sums = world.sums(1)
    gradients = list(world.gradients(torch.zeros(1000)).values())
    sums.all_reduce(0, GradientSum(gradients, [], 0.5, 0.5, 1))
    waiting.join(60.0)
    assert not waiting.is_alive()
    assert native.end() == 1


def test_statistics_and_missing_gradients_are_left_to_python(make_memory: MakeMemory) -> None:  # noqa: F811
    world, memory = World(make_memory(1 << 16), 2, Ring()), torch.zeros(1000)
    sums, waiter = world.sums(0), world.waiter(0)
    some = dict(list(world.gradients(memory).items())[:-1])
    assert native_exchange(sums, world.layout, some, memory, waiter, world.cancelled) is None
    normed = nn.Sequential(nn.Linear(10, 13), nn.BatchNorm1d(13))
    layout = lay_out(normed, 1, ("1.running_mean",))
    assert native_exchange(sums, layout, world.gradients(memory), memory, waiter, world.cancelled) is None
