"""Ranks of torch.distributed that do not call the same collectives: run by torchrun, three ranks."""

from __future__ import annotations

from collections.abc import Callable


def ranks(run: Callable[[int], None]) -> Callable[[], None]:
    """Return a program in which every rank runs a function of its rank."""

    def program() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        run(dist.get_rank())
        dist.barrier()

    return program


def skipped(rank: int) -> None:
    import torch
    import torch.distributed as dist

    if rank != 1:
        dist.all_reduce(torch.ones(4))


def receives_first(rank: int) -> None:
    """Each rank receives from the one before it, and would send afterwards."""
    import torch
    import torch.distributed as dist

    if rank == 2:
        dist.recv(torch.ones(4), src=1)
    else:
        dist.recv(torch.ones(4), src=(rank - 1) % 3)
    dist.send(torch.ones(4), dst=(rank + 1) % 3)


PROGRAMS = {"skipped": ranks(skipped), "receives_first": ranks(receives_first)}
