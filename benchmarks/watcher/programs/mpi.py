"""Ranks of MPI that wait for what no rank does: run by mpiexec. They poll, so that they keep a processor busy."""

from __future__ import annotations

from typing import Any


def world() -> Any:
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    return MPI.COMM_WORLD


def never_sent() -> None:
    comm = world()
    if comm.rank == 0:
        comm.recv(source=1, tag=7)
    comm.Barrier()


def barrier_without_one() -> None:
    comm = world()
    if comm.rank != 1:
        comm.Barrier()
    comm.bcast(1, root=0)


def all_send_first() -> None:
    comm = world()
    comm.ssend(b"x", dest=(comm.rank + 1) % comm.size)
    comm.recv(source=(comm.rank - 1) % comm.size)


def other_tag() -> None:
    comm = world()
    if comm.rank == 0:
        comm.ssend("x", dest=1, tag=1)
    elif comm.rank == 1:
        comm.recv(source=0, tag=2)
    comm.Barrier()


PROGRAMS = {
    "never_sent": never_sent,
    "barrier_without_one": barrier_without_one,
    "all_send_first": all_send_first,
    "other_tag": other_tag,
}
