"""Hangs that users reported in public, each rebuilt as a small program of ranks: run by torchrun, with gloo.

Each function names its issue. `other` is the rank that is in the place of the one in the report.
"""

from __future__ import annotations

from typing import Any

from programs.ddp import model_of, ones, ranks


def steps(model: Any, count: int) -> None:
    import torch

    for _ in range(count):
        model(torch.randn(4, 8)).square().mean().backward()


def pytorch_33148(rank: int, other: int, dist: Any) -> None:
    """Ranks have different numbers of batches."""
    steps(model_of(dist), 5 if rank == other else 4)


def pytorch_38174(rank: int, other: int, dist: Any) -> None:
    """One rank has no batch at all for the last pass."""
    model = model_of(dist)
    for epoch in range(2):
        steps(model, 0 if rank == other and epoch else 2)
        dist.barrier()


def pymarlin_80(rank: int, other: int, dist: Any) -> None:
    """Uneven batches, and the loss is reduced after each."""
    model = model_of(dist)
    for _ in range(3 if rank == other else 2):
        steps(model, 1)
        dist.all_reduce(ones(1))


def lightning_19045(rank: int, other: int, dist: Any) -> None:
    """The callback that saves checkpoints decides by a metric of its own rank, and saving ends with a barrier."""
    if rank == other:
        dist.barrier()
        return
    dist.all_reduce(ones(1))


def lightning_11267(rank: int, other: int, dist: Any) -> None:
    """One rank broadcasts the path of its checkpoint, the others train on."""
    if rank == other:
        dist.broadcast_object_list(["checkpoint"], src=other)
        return
    steps(model_of(dist), 1)


def ray_56997(rank: int, other: int, dist: Any) -> None:
    """`save_checkpoint`, which has a barrier inside, is called under `if rank == 0`."""
    if rank == 0:
        dist.barrier()
    dist.all_reduce(ones(1))


def neuron_sp_154(rank: int, other: int, dist: Any) -> None:
    """One rank decides to skip its step, in which gradients are scattered."""
    model = model_of(dist)
    steps(model, 2)
    if rank != other:
        dist.all_reduce(ones(100))


def neuron_sp_80(rank: int, other: int, dist: Any) -> None:
    """Barriers for debugging in the path of each micro-batch, of which ranks have different numbers."""
    for _ in range(3 if rank == 0 else 2):
        dist.barrier()
    dist.all_gather([ones(1) for _ in range(dist.get_world_size())], ones(1))


def composer_1319(rank: int, other: int, dist: Any) -> None:
    """One rank runs out of memory, catches that and begins its batch again; the others wait in the reduction."""
    model = model_of(dist)
    import torch

    for step in range(3):
        try:
            loss = model(torch.randn(4, 8)).sum()
            if rank == other and step == 1:
                raise MemoryError
            loss.backward()
        except MemoryError:
            dist.all_gather_object([None] * dist.get_world_size(), "retry")


def pytorch_109401(rank: int, other: int, dist: Any) -> None:
    """Both ranks send first and receive then."""
    if rank < 2:
        dist.send(ones(1), dst=1 - rank)
        dist.recv(ones(1), src=1 - rank)


def nccl_479(rank: int, other: int, dist: Any) -> None:
    """All ranks of a ring send a large tensor first."""
    size = dist.get_world_size()
    dist.send(ones(1_000_000), dst=(rank + 1) % size)
    dist.recv(ones(1_000_000), src=(rank - 1) % size)


def pytorch_132003(rank: int, other: int, dist: Any) -> None:
    """A chain of sends of which one link is missing."""
    if rank > 0:
        dist.recv(ones(1), src=rank - 1)
    if rank + 1 < dist.get_world_size() and rank != 0:
        dist.send(ones(1), dst=rank + 1)


def pytorch_124268(rank: int, other: int, dist: Any) -> None:
    """`new_group` is called by some of the ranks only."""
    if rank != other:
        dist.new_group([0, 1])
        dist.barrier()
    else:
        dist.all_reduce(ones(1))


def pytorch_54059(rank: int, other: int, dist: Any) -> None:
    """One rank evaluates with the wrapped model, whose forward pass synchronizes buffers, before all meet."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)))
    steps(model, 2)
    if rank == 0:
        model.eval()
        model(torch.randn(4, 8))
    dist.barrier()


def horovod_498(rank: int, other: int, dist: Any) -> None:
    """Only a subset of ranks submits a tensor."""
    if rank in (0, other):
        dist.all_reduce(ones(3))


def pippy_969(rank: int, other: int, dist: Any) -> None:
    """A stage waits for all of its inputs at once, one of which is only sent after its answer."""
    if rank == 0:
        dist.recv(ones(1), src=1)
        dist.send(ones(1), dst=1)
    elif rank == 1:
        for request in dist.batch_isend_irecv([dist.P2POp(dist.irecv, ones(1), 0)]):
            request.wait()
        dist.send(ones(1), dst=0)


def deepdeblur_44(rank: int, other: int, dist: Any) -> None:
    """The sampler of the evaluation gives one rank fewer batches, and each batch gathers its metric."""
    for _ in range(1 if rank == other else 2):
        dist.all_gather([ones(1) for _ in range(dist.get_world_size())], ones(1))


def snowfall_152(rank: int, other: int, dist: Any) -> None:
    """The rank with most utterances waits in `backward` for those that are done and go to evaluate together."""
    steps(model_of(dist), 3 if rank == 0 else 2)
    dist.broadcast(ones(1), src=0)


PROGRAMS = {
    each.__name__: ranks(each)
    for each in (
        pytorch_33148, pytorch_38174, pymarlin_80, lightning_19045, lightning_11267, ray_56997, neuron_sp_154,
        neuron_sp_80, composer_1319, pytorch_109401, nccl_479, pytorch_132003, pytorch_124268, pytorch_54059,
        horovod_498, pippy_969, deepdeblur_44, snowfall_152,
    )
}  # fmt: skip
