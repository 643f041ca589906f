"""Random programs of mixed operations: the same over paceline and gloo; and with a fault, told by name.

    python benchmarks/backend/programs.py [--programs 1000] [--faults 200]

A program is a list of steps that all ranks draw from the same seed. A step is an operation with its shape, dtype and
root, waited for at once or some steps later. A fault is one step that one rank does otherwise, or does not live to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
EXACT = (torch.float32, torch.float64)
SHAPES = ((1,), (13,), (3, 7), (40_000,))
# Operations that give a handle, and may be waited for later.
LATER = ("all_reduce", "broadcast", "all_gather", "barrier", "letters")


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    chance = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    drawn = torch.randn(shape, generator=chance)
    return drawn.to(dtype) if dtype.is_floating_point else (drawn * 3).abs().to(dtype)


def same(ours: Any, theirs: Any) -> None:
    """Gloo adds up in another order where there are more than two ranks."""
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if dist.get_world_size() <= 2 or not one.is_floating_point():
            assert torch.equal(one, other), (one, other)
        else:
            exact = one.dtype in (torch.float32, torch.float64)
            torch.testing.assert_close(one, other, rtol=1e-6 if exact else 0.02, atol=1e-6 if exact else 0.05)


OPERATIONS: dict[str, Callable[[Any, Tensor, int], list[Tensor]]] = {}


def operation(do: Callable[[Any, Tensor, int], list[Tensor]]) -> Callable[[Any, Tensor, int], list[Tensor]]:
    OPERATIONS[do.__name__] = do
    return do


def empties(like: Tensor) -> list[Tensor]:
    return [torch.zeros_like(like) for _ in range(dist.get_world_size())]


@operation
def sums(group: Any, x: Tensor, root: int) -> list[Tensor]:
    dist.all_reduce(x, group=group)
    return [x]


@operation
def extremes(group: Any, x: Tensor, root: int) -> list[Tensor]:
    low = x.clone()
    dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
    return [x, low]


@operation
def products(group: Any, x: Tensor, root: int) -> list[Tensor]:
    dist.all_reduce(x, dist.ReduceOp.PRODUCT, group=group)
    return [x]


@operation
def handles(group: Any, x: Tensor, root: int) -> list[Tensor]:
    y = x.clone()
    works = [dist.all_reduce(x, group=group, async_op=True), dist.broadcast(y, root, group=group, async_op=True)]
    future = works[0].get_future()
    works[1].wait()
    return [future.wait()[0], y]


@operation
def broadcasts(group: Any, x: Tensor, root: int) -> list[Tensor]:
    dist.broadcast(x, root, group=group)
    return [x]


@operation
def reduces(group: Any, x: Tensor, root: int) -> list[Tensor]:
    dist.reduce(x, root, group=group)
    return [x] if dist.get_rank() == root else []


@operation
def gathers_all(group: Any, x: Tensor, root: int) -> list[Tensor]:
    outputs, whole = empties(x), torch.cat(empties(x))
    dist.all_gather(outputs, x, group=group)
    dist.all_gather_into_tensor(whole, x, group=group)
    return [*outputs, whole]


@operation
def gathers(group: Any, x: Tensor, root: int) -> list[Tensor]:
    outputs = empties(x) if dist.get_rank() == root else None
    dist.gather(x, outputs, root, group=group)
    return outputs or []


@operation
def scatters(group: Any, x: Tensor, root: int) -> list[Tensor]:
    inputs = [x * (rank + 1) for rank in range(dist.get_world_size())] if dist.get_rank() == root else None
    output = torch.zeros_like(x)
    dist.scatter(output, inputs, root, group=group)
    return [output]


@operation
def scatters_sums(group: Any, x: Tensor, root: int) -> list[Tensor]:
    inputs = [x * (rank + 1) for rank in range(dist.get_world_size())]
    outputs = [torch.zeros_like(x), torch.zeros_like(x)]
    dist.reduce_scatter(outputs[0], inputs, group=group)
    dist.reduce_scatter_tensor(outputs[1], torch.cat(inputs), group=group)
    return outputs


@operation
def all_to_all(group: Any, x: Tensor, root: int) -> list[Tensor]:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    given, taken = torch.cat([x] * ranks), torch.cat(empties(x))
    dist.all_to_all_single(taken, given, group=group)
    rows = [rank + other for other in range(ranks)]  # how many each pair exchanges, the same both ways
    some = numbers((sum(rows), 3), x.dtype)
    into = torch.zeros_like(some)
    dist.all_to_all_single(into, some, rows, rows, group=group)
    return [taken, into]


@operation
def letters(group: Any, x: Tensor, root: int) -> list[Tensor]:
    """Around the ring, tag after tag, received in another order."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if ranks == 1:
        return []
    got = empties(x)
    works = [dist.isend(x + tag, (rank + 1) % ranks, group=group, tag=tag) for tag in range(ranks)]
    works += [dist.irecv(got[tag], (rank - 1) % ranks, group=group, tag=tag) for tag in reversed(range(ranks))]
    for work in works:
        work.wait()
    return got


@operation
def together(group: Any, x: Tensor, root: int) -> list[Tensor]:
    tensors = [x, x * 2, x[:1].clone()]
    with dist._coalescing_manager(group=group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    return tensors


@dataclass(frozen=True)
class Step:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    root: int
    seed: int
    wait_after: int = 0  # so many steps later; only where an operation gives one handle


def make(seed: int, ranks: int, steps: int = 8) -> list[Step]:
    chance = random.Random(seed)
    return [
        Step(
            chance.choice([*OPERATIONS, "later", "later"]), chance.choice(SHAPES), chance.choice(DTYPES),
            chance.randrange(ranks), 100 * seed + number, chance.randrange(4),
        )  # fmt: skip
        for number in range(steps)
    ]


def run(program: list[Step], group: Any, do: Callable[[Step, Any], None] | None = None) -> list[list[Tensor]]:
    """What each step gave. `do` takes the place of a step where it returns something."""
    found: list[list[Tensor]] = []
    waiting: list[tuple[int, Any]] = []
    for number, step in enumerate(program):
        for _, work in [pair for pair in waiting if pair[0] <= number]:
            work.wait()
        waiting = [pair for pair in waiting if pair[0] > number]
        if do is not None:
            do(step, group)
        x = numbers(step.shape, step.dtype, step.seed)
        if step.name == "later":
            kind = step.seed % 2
            given = dist.all_reduce if kind else dist.broadcast
            root = {} if kind else {"src": step.root}
            waiting.append((number + step.wait_after, given(x, group=group, async_op=True, **root)))
            found.append([x])
        else:
            found.append(OPERATIONS[step.name](group, x, step.root))
    for _, work in reversed(waiting):
        work.wait()
    return found


def compare(program: list[Step], ours: Any, theirs: Any) -> None:
    for step, one, other in zip(program, run(program, ours), run(program, theirs), strict=True):
        try:
            same(one, other)
        except AssertionError as error:
            raise AssertionError(f"{step}: {error}") from None
