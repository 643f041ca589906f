"""Ranks as processes of a forkserver that has PyTorch loaded; they know only a file store."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from paceline.runtime.backend import NAME
from paceline.runtime.engines.workers.process import PRELOAD

SECONDS = 180.0
context = multiprocessing.get_context("forkserver")
# For other tests, too.
context.set_forkserver_preload(
    ["torch._dynamo", *PRELOAD, "paceline.runtime.backend.group", "tests.runtime.backend.scenes"]
)

# Of PyTorch, about itself.
NOISE = (
    "this process group uses gloo|You are using a Backend|.* is deprecated. Please use|Sparse invariant checks|"
    "`_get_pg_default_device`|DTensor random operators|.*is deprecated|.*Multiple backends|TypedStorage"
)


@dataclass
class Rank:
    process: BaseProcess
    said: Path

    def end(self) -> str:
        self.process.join(SECONDS)
        assert self.process.exitcode is not None, f"did not end: {self.said.read_text()}"
        return self.said.read_text()


def start(scene: Callable[[], None], ranks: int, folder: Path, backend: str = NAME) -> list[Rank]:
    pool = []
    for rank in range(ranks):
        said = folder / f"rank {rank}"
        arguments = (scene, rank, ranks, folder / "store", said, backend)
        process = context.Process(target=_be, args=arguments, daemon=True)
        process.start()
        pool.append(Rank(process, said))
    return pool


def play(scene: Callable[[], None], ranks: int, folder: Path, fails: bool = False) -> list[str]:
    """What each rank said: its output, and its errors if it is to fail."""
    pool = start(scene, ranks, folder)
    try:
        said = [rank.end() for rank in pool]
        for rank, text in zip(pool, said, strict=True):
            assert (rank.process.exitcode != 0) == fails, text
    finally:
        stop(pool)
    return said


def stop(pool: list[Rank]) -> None:
    for rank in pool:
        rank.process.kill()
        rank.process.join()
        rank.process.close()


def _be(scene: Callable[[], None], rank: int, ranks: int, store: Path, said: Path, backend: str) -> None:
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    warnings.resetwarnings()
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=NOISE)
    torch.set_num_threads(1)
    dist.init_process_group(
        backend, store=dist.FileStore(str(store), ranks), rank=rank, world_size=ranks, timeout=timedelta(seconds=30)
    )
    scene()
    dist.destroy_process_group()
