"""Ranks of torch.distributed of which one leaves the common path; rank 0 of two, three or four is never the one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any


def ranks(run: Callable[[int, int, Any], None]) -> Callable[[], None]:
    """Return a program in which every rank runs a function of its rank, the odd one and torch.distributed."""

    def program() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        run(dist.get_rank(), odd(), dist)
        dist.barrier()
        dist.destroy_process_group()

    return program


def odd() -> int:
    """The rank that does something else."""
    return 1 + int(os.environ.get("VARIANT", "0")) % (int(os.environ["WORLD_SIZE"]) - 1)


def ones(size: int = 4) -> Any:
    import torch

    return torch.ones(size)


def model_of(dist: Any) -> Any:
    import torch

    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))


def skips_a_batch(rank: int, other: int, dist: Any) -> None:
    model = model_of(dist)
    import torch

    for step in range(6):
        loss = model(torch.randn(4, 8)).square().mean()
        if rank == other and step == 3:
            continue
        loss.backward()


def one_batch_more(rank: int, other: int, dist: Any) -> None:
    model = model_of(dist)
    import torch

    for _ in range(4 if rank == other else 3):
        model(torch.randn(4, 8)).square().mean().backward()


def logs_on_one_rank(rank: int, other: int, dist: Any) -> None:
    """Only one rank gathers what it wants to print."""
    if rank == other:
        dist.all_reduce(ones())


def saves_elsewhere(rank: int, other: int, dist: Any) -> None:
    if rank != other:
        dist.barrier()
        return
    dist.broadcast(ones(), src=0)
    dist.all_reduce(ones())


def swallows_an_error(rank: int, other: int, dist: Any) -> None:
    try:
        if rank == other:
            raise ValueError("not finite")
        dist.all_reduce(ones())
    except ValueError:
        pass


def receives_what_nobody_sends(rank: int, other: int, dist: Any) -> None:
    if rank == other:
        dist.recv(ones(), src=0)


def waits_for_its_own_queue(rank: int, other: int, dist: Any) -> None:
    import queue

    if rank == other:
        queue.Queue[int]().get()
    dist.all_reduce(ones())


def takes_a_lock_twice(rank: int, other: int, dist: Any) -> None:
    import threading

    lock = threading.Lock()
    with lock:
        if rank == other:
            lock.acquire()
    dist.all_reduce(ones())


def all_receive(rank: int, other: int, dist: Any) -> None:
    size = dist.get_world_size()
    dist.recv(ones(), src=(rank - 1) % size)
    dist.send(ones(), dst=(rank + 1) % size)


def other_root(rank: int, other: int, dist: Any) -> None:
    dist.broadcast(ones(), src=other if rank == other else 0)
    dist.broadcast(ones(), src=0)


def is_stopped(rank: int, other: int, dist: Any) -> None:
    import signal

    if rank == other:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(ones())


PROGRAMS = {
    each.__name__: ranks(each)
    for each in (
        skips_a_batch, one_batch_more, logs_on_one_rank, saves_elsewhere, swallows_an_error, receives_what_nobody_sends,
        waits_for_its_own_queue, takes_a_lock_twice, all_receive, other_root, is_stopped,
    )
}  # fmt: skip
