"""Data loaders whose workers wait, and ranks that are spawned by the program itself."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

LOCK = threading.Lock()


class Numbers:
    """A data set whose samples need a lock."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        with LOCK:
            return index


class FromPipe(Numbers):
    """A data set that reads a pipe of which it holds the other end."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def __getitem__(self, index: int) -> int:
        return len(os.read(self.read, 1)) if index == 20 else index


def load(data: Any) -> None:
    from torch.utils.data import DataLoader

    for _ in DataLoader(data, batch_size=4, num_workers=2):
        pass


def worker_forked_with_a_lock() -> None:
    def hold() -> None:
        with LOCK:
            time.sleep(60)  # longer than PyTorch takes to import on a busy machine

    threading.Thread(target=hold).start()
    time.sleep(0.1)
    load(Numbers())


def worker_reads_a_pipe() -> None:
    load(FromPipe())


def trains(rank: int, world_size: int) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getppid() % 30000))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    for step in range(5):
        if rank == 1 and step == 2:
            continue
        dist.all_reduce(torch.ones(3))
    dist.barrier()


def spawned_rank_skips() -> None:
    import torch.multiprocessing as mp

    mp.spawn(trains, args=(3,), nprocs=3)


PROGRAMS = {
    "worker_forked_with_a_lock": worker_forked_with_a_lock,
    "worker_reads_a_pipe": worker_reads_a_pipe,
    "spawned_rank_skips": spawned_rank_skips,
}
