"""What ranks do in the tests; played in a process for each rank."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from benchmarks.backend import programs
from benchmarks.backend.programs import DTYPES, OPERATIONS, empties, numbers, same
from torch import Tensor, nn

from paceline.errors import UsageError


def both() -> tuple[Any, Any]:
    return dist.group.WORLD, dist.new_group(backend="gloo")


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
    if dist.get_world_size() == 1:
        with pytest.raises(UsageError, match=r"a tensor of 2 torch\.float32 where 3 torch\.float32 are exchanged"):
            dist.scatter(torch.zeros(3), [torch.zeros(2)])
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in expected:
        dist.all_reduce(tensor, group=gloo)
    same(tensors, expected)


def long_vectors() -> None:
    """Vectors longer than a slot, here a short one; and long enough to be summed in segments."""
    from paceline.runtime.backend import collectives, group_memory

    group_memory.SLOT = collectives.SLOT = 1 << 16
    compare_long(70_003)


def very_long_vectors() -> None:
    """Vectors longer than a slot as it is."""
    compare_long(2_500_003)


def compare_long(length: int) -> None:
    ours, gloo = dist.new_group(), dist.new_group(backend="gloo")
    for name in ("sums", "broadcasts", "reduces", "gathers_all", "scatters", "scatters_sums", "all_to_all"):
        x = numbers((length,), torch.float32)
        same(OPERATIONS[name](ours, x.clone(), 1), OPERATIONS[name](gloo, x.clone(), 1))
    x = numbers((length,), torch.float32)
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
        with pytest.raises(
            RuntimeError, match=r"rank 0 sent 3 float32 with tag 0 at .*scenes.py:\d+, and rank 1 receives 4 float64 at"
        ):
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


def random_programs(seeds: range = range(8)) -> None:
    ours, gloo = both()
    for seed in seeds:
        programs.compare(programs.make(seed, dist.get_world_size()), ours, gloo)


def more_random_programs() -> None:
    random_programs(range(8, 200))


def sparse() -> None:
    x = torch.sparse_coo_tensor(torch.tensor([[dist.get_rank(), 2]]), torch.ones(2), (4,))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            y = x.clone()
            dist.all_reduce(y)
            assert y.to_dense().tolist() == [1.0, 1.0, 2.0, 0.0]
    expected = ["the paceline backend leaves allreduce of sparse tensors to gloo"] if dist.get_rank() == 0 else []
    assert [str(warning.message) for warning in said if "paceline" in str(warning.message)] == expected


def elsewhere() -> None:
    """Rank 1 believes that it is on another machine."""
    from paceline.runtime.links import rendezvous

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
    group = dist.new_group()
    if dist.get_rank() == 0:
        threading.Timer(0.1, group.abort).start()
        try:
            dist.barrier(group=group)
        except RuntimeError as error:
            print(error)
    dist.barrier()
    if dist.get_rank() == 1:
        dist.barrier(group=group)  # rank 0 has come to it
        try:
            dist.barrier(group=group)
        except RuntimeError as error:
            print(error)
    dist.barrier()


def any_order() -> None:
    """What is legal with gloo: no rank waits in the order of the others, and some do not wait at all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    pair = [dist.new_group(), dist.new_group()]
    # Two groups, begun and waited for in opposite orders.
    for _ in range(3):
        tensors = [torch.ones(100_000), torch.ones(100_000)]
        order = [0, 1] if rank % 2 else [1, 0]
        works = {number: dist.all_reduce(tensors[number], group=pair[number], async_op=True) for number in order}
        for number in order:
            works[number].wait()
        assert all(torch.equal(tensor, torch.full((100_000,), float(ranks))) for tensor in tensors)
    # The same with futures, whose wait is not ours.
    futures = {n: dist.all_reduce(tensors[n], group=pair[n], async_op=True).get_future() for n in order}
    for number in order:
        assert futures[number].wait()[0][0] == ranks**2
    # A collective begun before the message that lets the others come to it.
    x, go = torch.ones(5_000_000), torch.zeros(1)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        for other in range(1, ranks):
            dist.send(go, other)
        work.wait()
    else:
        dist.recv(go, 0)
        dist.all_reduce(x)
    assert x.eq(ranks).all()
    # No one waits for the send; the receiver comes late, and from anybody.
    big = torch.full((1_000_000,), float(rank))
    dist.isend(big, right, tag=7)
    got = torch.empty(1_000_000)
    assert dist.recv(got, tag=7) == left
    assert got.eq(left).all()
    # A future that runs on.
    y = torch.ones(3)
    then = dist.all_reduce(y, async_op=True).get_future().then(lambda done: done.value()[0] * 10)
    assert then.wait()[0] == 10 * ranks

    # Several threads, a group each.
    def sums(number: int) -> None:
        for _ in range(20):
            z = torch.ones(10)
            dist.all_reduce(z, group=pair[number])
            assert z[0] == ranks

    threads = [threading.Thread(target=sums, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hooks() -> None:
    """DDP's communication hooks live on futures."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    ours, gloo = both()
    for state, hook in (
        (None, default_hooks.allreduce_hook),
        (None, default_hooks.fp16_compress_hook),
        (powerSGD_hook.PowerSGDState, powerSGD_hook.powerSGD_hook),
    ):
        found = []
        for group in (ours, gloo):
            model = nn.parallel.DistributedDataParallel(network(), process_group=group)
            made = group if state is None else state(process_group=group, start_powerSGD_iter=2, min_compression_rate=1)
            model.register_comm_hook(made, hook)
            found.append(train(model))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    # Uneven inputs: ranks that are done shadow the others' collectives.
    found = []
    for group in (ours, gloo):
        model = nn.parallel.DistributedDataParallel(network(), process_group=group)
        with model.join():
            found.append(train(model, 3 + dist.get_rank()))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def local_training() -> None:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = network()
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    for step in range(4):
        train(model, 1 + step)
        averager.average_parameters(model.parameters())
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    everybodys = empties(vector)
    dist.all_gather(everybodys, vector)
    assert averager.step == 4
    assert not torch.equal(everybodys[0], everybodys[1])  # the last step was not averaged
    dist.all_reduce(vector, dist.ReduceOp.AVG)
    torch.testing.assert_close(vector, torch.stack(everybodys).mean(0))
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    model(torch.ones(4, 20)).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict()


def pipeline() -> None:
    """torch.distributed.pipelining, as its documentation has it."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    for schedule in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(0)
        layers = [nn.Linear(16, 16) for _ in range(ranks)]
        stage = PipelineStage(layers[rank], rank, ranks, torch.device("cpu"))
        do = schedule(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        if rank == 0:
            do.step(x)
        else:
            losses: list[Tensor] = []
            output = do.step(target=torch.zeros(8, 16), losses=losses)
            torch.testing.assert_close(output, nn.Sequential(*layers)(x))
        assert layers[rank].weight.grad is not None


def objects() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    things: list[Any] = [None] * ranks
    dist.all_gather_object(things, {"rank": rank})
    assert things == [{"rank": other} for other in range(ranks)]
    said = ["yes", 1] if rank == 0 else [None, None]
    dist.broadcast_object_list(said, 0)
    assert said == ["yes", 1]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, ["a", "b"] if rank == 0 else None, 0)
    assert mine == ["ab"[rank]]
    gathered: list[Any] | None = [None, None] if rank == 0 else None
    dist.gather_object(rank, gathered, 0)
    assert gathered in (None, [0, 1])
    if rank == 0:
        dist.send_object_list(["x"], 1)
    else:
        got: list[Any] = [None]
        dist.recv_object_list(got, 0)
        assert got == ["x"]
    # With autograd, and as PyTorch's functional collectives.
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.nn.functional import all_reduce

    w = torch.ones(3, requires_grad=True)
    all_reduce(w * (rank + 1)).sum().backward()
    assert torch.equal(w.grad, torch.full((3,), 2.0 * (rank + 1)))
    total = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    assert torch.equal(total, torch.full((2,), 2.0))
    whole = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    assert whole.tolist() == [0.0, 0.0, 1.0, 1.0]


def again() -> None:
    """A group is destroyed, and created again over the same store."""
    store = dist.distributed_c10d._get_default_store()
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
        rank, ranks = dist.get_rank(), dist.get_world_size()
        group = dist.group.WORLD
        dist.destroy_process_group()
        with pytest.raises(RuntimeError, match="the process group was destroyed"):
            group.allreduce([torch.ones(3)])
        dist.init_process_group("paceline", store=store, rank=rank, world_size=ranks)


def child() -> None:
    """A forked child neither takes part in a group nor leaves it for its parent."""
    if (pid := os.fork()) == 0:
        status = 1
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            status = 0 if "belongs to the parent process" in str(error) else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    dist.all_reduce(torch.ones(3))


def leaks_nothing() -> None:
    """Neither descriptors nor memory are left, however many groups and operations there were."""
    from paceline.runtime.backend import progress

    progress.IDLE_SECONDS = 0.01

    def state() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("memfd:paceline")

    def settled() -> tuple[int, int]:
        """The state when the background thread has ended, which holds a group for a moment longer."""
        deadline = time.monotonic() + 20
        running = lambda: any(thread.name == "paceline-background" for thread in threading.enumerate())  # noqa: E731
        while running() and time.monotonic() < deadline:
            time.sleep(0.05)
        gc.collect()
        return state()

    def use() -> None:
        group = dist.new_group()
        for length in range(1, 200):
            work = dist.all_reduce(torch.ones(length), group=group, async_op=True)
            work.wait()
        dist.destroy_process_group(group)

    use()
    before = settled()
    for _ in range(3):
        use()
    assert settled() == before


def never_starts() -> None:
    try:
        dist.distributed_c10d._get_default_store()
        from paceline.runtime.backend import create

        create(dist.HashStore(), 0, 2, timedelta(seconds=0.3))
    except RuntimeError as error:
        print(error)


def fails_late() -> None:
    """Rank 1 leaves DDP in the middle, while rank 0 holds a future that is not set yet."""
    model = nn.parallel.DistributedDataParallel(network())
    train(model, 2)
    if dist.get_rank() == 1:
        threading.Event().wait(0.1)
        os._exit(0)
    train(model, 1)
