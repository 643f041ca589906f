"""Trainings that go on: one rank evaluates, loads or saves while the others wait. Run by torchrun."""

from __future__ import annotations

import time
from typing import Any

from programs.ddp import odd, ones, ranks


def one_rank_evaluates(rank: int, other: int, dist: Any) -> None:
    if rank == other:
        end = time.monotonic() + 600
        while time.monotonic() < end:
            ones(1_000_000).sum()


def one_rank_sleeps(rank: int, other: int, dist: Any) -> None:
    if rank == other:
        time.sleep(600)


def one_rank_downloads(rank: int, other: int, dist: Any) -> None:
    import socket

    if rank == other:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.accept()


def reduces_much(rank: int, other: int, dist: Any) -> None:
    big = ones(20_000_000)
    while True:
        dist.all_reduce(big)


def trains_slowly(rank: int, other: int, dist: Any) -> None:
    while True:
        time.sleep(2 + 5 * (rank == odd()))
        dist.all_reduce(ones())


def one_rank_runs_a_command(rank: int, other: int, dist: Any) -> None:
    import subprocess

    if rank == other:
        subprocess.run(["sleep", "600"])


PROGRAMS = {
    each.__name__: ranks(each)
    for each in (
        one_rank_evaluates, one_rank_sleeps, one_rank_downloads, reduces_much, trains_slowly, one_rank_runs_a_command,
    )
}  # fmt: skip
