"""Ranks of `torch.distributed` as threads of one process, over modelled collectives.

    meetings        a collective is a meeting of ranks, a message a meeting of two: pure machines
    context         what each rank has of its own: modules, environment, random numbers, process groups
    process_group   the backend that takes the place of gloo, NCCL and MPI
    launch          starts ranks as torchrun and torch.multiprocessing.spawn do
    replicas        whether parameters that were equal stay equal
    drills          faults that are tried on one rank

A rank runs until its next collective. So a hang is known at once, without a time-out: no rank can continue.
"""

from __future__ import annotations

from functools import cache


@cache
def install() -> None:
    """Put the modelled backend and launchers in place; this imports PyTorch."""
    from paceline.concurrency.explore.ranks import launch, process_group, replicas

    process_group.install()
    launch.install()
    replicas.install()
