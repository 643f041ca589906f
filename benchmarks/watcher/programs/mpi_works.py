"""Ranks of MPI of which one is late."""

from __future__ import annotations

import time

from programs.mpi import world


def one_computes() -> None:
    comm = world()
    while comm.rank == 1:
        sum(range(1_000_000))
    comm.Barrier()


def one_sleeps() -> None:
    comm = world()
    if comm.rank == 0:
        time.sleep(600)
    comm.bcast(1, root=0)


def all_reduce_often() -> None:
    comm = world()
    while True:
        comm.allreduce(sum(range(1000)))


PROGRAMS = {"one_computes": one_computes, "one_sleeps": one_sleeps, "all_reduce_often": all_reduce_often}
