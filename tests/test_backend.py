"""The torch.distributed backend: against gloo, DDP, deaths, mismatches, random programs."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

THIS = Path(__file__)
SECONDS = 60.0
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def start(scene: str, ranks: int, folder: Path) -> list[subprocess.Popen[str]]:
    """A process for each rank, which plays a scene of this file; they know only a file store."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    return [
        subprocess.Popen(
            [sys.executable, str(THIS), scene, str(rank), str(ranks), str(folder / "store")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        for rank in range(ranks)
    ]


def play(scene: str, ranks: int, folder: Path, fails: bool = False) -> list[str]:
    """What each rank said: its output, or its errors if it is to fail."""
    crew = start(scene, ranks, folder)
    try:
        said = [process.communicate(timeout=SECONDS) for process in crew]
    finally:
        for process in crew:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(crew, said, strict=True):
        assert (process.returncode != 0) == fails, errors
    return [errors if fails else out for out, errors in said]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("scene", ["collectives", "letters", "long_vectors"])
def test_every_operation_gives_what_gloo_gives(scene: str, ranks: int, tmp_path: Path) -> None:
    if ranks > 1 or scene == "collectives":
        play(scene, ranks, tmp_path)


@pytest.mark.parametrize("scene", ["groups", "training", "sharded_training", "random_programs", "sparse", "elsewhere"])
def test_scene(scene: str, tmp_path: Path) -> None:
    play(scene, 4 if scene == "groups" else 2, tmp_path)


@pytest.mark.parametrize("slip", ["reduction", "length", "dtype", "operation", "root"])
def test_a_mismatch_is_told_to_all_with_both_lines(slip: str, tmp_path: Path) -> None:
    for text in play(f"slip_{slip}", 3, tmp_path, fails=True):
        lines = [number for number, line in enumerate(THIS.read_text().splitlines(), 1) if f"# {slip}," in line]
        assert "CollectivesDiffer" in text, text
        for rank in range(3):
            at = lines[0] if rank == 1 else lines[1]
            assert re.search(rf"rank {rank}: .*, at .*{THIS.name}:{at}\n", text), text


@pytest.mark.parametrize("scene", ["waits", "waits_for_a_letter", "trains_for_ever"])
def test_a_killed_rank_is_named_at_once(scene: str, tmp_path: Path) -> None:
    crew = start(scene, 3 if scene == "waits" else 2, tmp_path)
    try:
        for process in crew:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        crew[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        for process in crew[:1] + crew[2:]:
            _, errors = process.communicate(timeout=SECONDS)
            assert time.monotonic() - killed < 2.0
            assert re.search(r"RankGone: .* for rank 1, which is gone: its process \d+ has ended", errors), errors
            assert re.search("rank 1 was last in (all_reduce|broadcast) of", errors)
    finally:
        for process in crew:
            process.kill()
            process.communicate()


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    late, waiting = play("late", 2, tmp_path)
    assert "for rank 0, which did not come within" in waiting
    assert "rank 0 was last in barrier (its round 3; here it is round 4)" in waiting
    assert "failed before" in waiting
    assert late == ""


def test_waiting_can_be_aborted(tmp_path: Path) -> None:
    aborted, left = play("aborts", 2, tmp_path)
    assert "barrier was aborted while it waited for rank 1" in aborted
    assert "for rank 0, which has left the group" in left


# Scenes: played in a process for each rank.


def both() -> tuple[Any, Any]:
    return dist.group.WORLD, dist.new_group(backend="gloo")


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


def collectives() -> None:
    ours, gloo = both()
    for dtype in DTYPES:
        for shape in ((7,), (4, 5), (0,), (1,)):
            for root, (name, do) in enumerate(OPERATIONS.items()):
                if shape == (0,) and name == "all_to_all":
                    continue
                x, root = numbers(shape, dtype), root % dist.get_world_size()
                same(do(ours, x.clone(), root), do(gloo, x.clone(), root))
    x = torch.full((3, 4), dist.get_rank() + 1.0).T  # does not lie in one row
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert torch.equal(x, torch.full((4, 3), (dist.get_world_size() + 1) / 2))
    flags = torch.tensor([dist.get_rank() == 0, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, False]
    things: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(things, {"rank": dist.get_rank()})
    assert things == [{"rank": rank} for rank in range(dist.get_world_size())]
    tensors = [numbers((5,), torch.float32, seed) for seed in range(3)]
    expected = [tensor.clone() for tensor in tensors]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in expected:
        dist.all_reduce(tensor, group=gloo)
    same(tensors, expected)


def long_vectors() -> None:
    """Longer than a slot, and where segments are added up apart."""
    ours, gloo = both()
    for length in (70_000, 2_500_003):
        for name in ("sums", "broadcasts", "reduces", "gathers_all", "scatters", "scatters_sums", "all_to_all"):
            x = numbers((length,), torch.float32)
            same(OPERATIONS[name](ours, x.clone(), 1), OPERATIONS[name](gloo, x.clone(), 1))
    x = numbers((70_000,), torch.float32)
    dist.all_reduce(x)
    everybodys = empties(x)
    dist.all_gather(everybodys, x)
    assert all(torch.equal(x, other) for other in everybodys)  # the same bits


def letters() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for length in (0, 10, 50_000, 1_000_000):  # the last is longer than a ring of blocks
        mine, theirs = torch.full((length,), float(rank)), torch.empty(length)
        works = [dist.isend(mine, right), dist.irecv(theirs, left)]
        for work in works if rank else reversed(works):
            work.wait()
        assert torch.equal(theirs, torch.full((length,), float(left)))
        swapped = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, theirs, left)]
        for work in dist.batch_isend_irecv(swapped):
            work.wait()
    # Tags decide, not the order; and many are under way at once.
    sent = [torch.full((20_000,), tag) for tag in range(30)]
    works = [dist.isend(tensor, right, tag=tag) for tag, tensor in enumerate(sent)]
    for tag in reversed(range(30)):
        got = torch.empty(20_000, dtype=torch.int64)
        dist.recv(got, left, tag=tag)
        assert torch.equal(got, sent[tag])
    for work in works:
        work.wait()
    if rank == 0:
        dist.send(torch.zeros(3), 1)
    if rank == 1:
        with pytest.raises(RuntimeError, match="rank 0 sent 3 float32 with tag 0, and rank 1 receives 4 float64"):
            dist.recv(torch.zeros(4, dtype=torch.float64), 0)


def groups() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=pairs[rank % 2])
    assert x.item() == 2 + 2 * (rank % 2)
    y = torch.tensor([float(rank)])
    dist.broadcast(y, 2 + rank % 2, group=pairs[rank % 2])
    assert y.item() == 2 + rank % 2
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    z = torch.tensor([float(rank)])
    dist.all_reduce(z, group=mesh["rows"].get_group())
    assert z.item() == 2 * (rank % 2) + 2
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    whole = torch.arange(12.0).view(6, 2)
    split = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert torch.equal(split.redistribute(mesh, [Replicate(), Replicate()]).to_local(), whole)


def train(model: nn.Module, steps: int = 6) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = numbers((8, 20), torch.float32, step), numbers((8, 3), torch.float32, step + 100)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return torch.cat([getattr(p, "full_tensor", p.detach)().detach().flatten() for p in model.parameters()])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def training() -> None:
    ours, gloo = both()
    for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}, {"find_unused_parameters": True}):
        models = [nn.parallel.DistributedDataParallel(network(), process_group=g, **options) for g in (ours, gloo)]
        found = [train(model) for model in models]
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def sharded_training() -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    ours, gloo = both()
    found = [train(fully_shard(network(), mesh=DeviceMesh.from_group(group, "cpu"))) for group in (ours, gloo)]
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def random_programs(count: int = 30) -> None:
    ours, gloo = both()
    for seed in range(count):
        chance = random.Random(seed)  # the same on all ranks
        for number in range(8):
            name = chance.choice(list(OPERATIONS))
            shape = chance.choice([(1,), (13,), (3, 7), (40_000,)])
            dtype, root = chance.choice(DTYPES), chance.randrange(dist.get_world_size())
            x = numbers(shape, dtype, seed + number)
            same(OPERATIONS[name](ours, x.clone(), root), OPERATIONS[name](gloo, x.clone(), root))


def sparse() -> None:
    import warnings

    x = torch.sparse_coo_tensor(torch.tensor([[dist.get_rank(), 2]]), torch.ones(2), (4,))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            y = x.clone()
            dist.all_reduce(y)
            assert y.to_dense().tolist() == [1.0, 1.0, 2.0, 0.0]
    expected = ["the paceline backend leaves all_reduce of a sparse tensor to gloo"] if dist.get_rank() == 0 else []
    assert [str(warning.message) for warning in said if "paceline" in str(warning.message)] == expected


def elsewhere() -> None:
    """Rank 1 believes that it is on another machine."""
    from paceline.backend import rendezvous

    if dist.get_rank() == 1:
        rendezvous.machine = lambda: "another"
    if dist.get_rank() == 0:
        with pytest.warns(UserWarning, match="uses gloo, without shared memory: rank 1 is on another machine"):
            group = dist.new_group()
    else:
        group = dist.new_group()
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [2.0, 2.0, 2.0]


def slip_reduction() -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX)  # reduction, second
    dist.all_reduce(torch.ones(3))  # reduction, first


def slip_length() -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(4))  # length, second
    dist.all_reduce(torch.ones(3))  # length, first


def slip_dtype() -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(3, dtype=torch.float64))  # dtype, second
    dist.all_reduce(torch.ones(3))  # dtype, first


def slip_operation() -> None:
    if dist.get_rank() == 1:
        dist.barrier()  # operation, second
    dist.all_reduce(torch.ones(3))  # operation, first


def slip_root() -> None:
    if dist.get_rank() == 1:
        dist.broadcast(torch.ones(3), 1)  # root, second
    dist.broadcast(torch.ones(3), 0)  # root, first


def ready() -> None:
    dist.all_reduce(torch.ones(3))
    print("ready", flush=True)


def asleep() -> None:
    while True:
        signal.pause()


def waits() -> None:
    ready()
    if dist.get_rank() == 1:
        asleep()
    dist.barrier()


def waits_for_a_letter() -> None:
    ready()
    if dist.get_rank() == 1:
        asleep()
    dist.recv(torch.ones(3), 1)


def trains_for_ever() -> None:
    model = nn.parallel.DistributedDataParallel(network())
    train(model, 2)
    ready()
    train(model, 10**9)


def late() -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.2))
    dist.barrier(group=group)
    if dist.get_rank() == 1:
        for _ in range(2):
            try:
                dist.barrier(group=group)
            except RuntimeError as error:
                print(error)
    dist.barrier()


def aborts() -> None:
    import threading

    group = dist.new_group()
    if dist.get_rank() == 0:
        threading.Timer(0.1, group.abort).start()
        try:
            dist.barrier(group=group)
        except RuntimeError as error:
            print(error)
    dist.barrier()
    if dist.get_rank() == 1:
        try:
            dist.barrier(group=group)
        except RuntimeError as error:
            print(error)
    dist.barrier()


if __name__ == "__main__":
    import warnings

    import paceline.backend

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="this process group uses gloo|You are using a Backend|.* is deprecated. Please use")
    torch.set_num_threads(1)
    _, scene, rank, ranks, store = sys.argv
    dist.init_process_group(
        paceline.backend.NAME, store=dist.FileStore(store, int(ranks)), rank=int(rank), world_size=int(ranks),
        timeout=timedelta(seconds=30),
    )  # fmt: skip
    globals()[scene]()
    dist.destroy_process_group()
