"""What one rank of several measures, started by `ranks.py`:

    mpiexec -n 2 python -m paceline.kernels.measure.rank outputs 1 1.0
                                                         way, threads of each rank, seconds

`outputs` and `inputs` train a published study's network as the study did, `fused` as `fuse_ranks` does, `gpus` the same
on a GPU for each rank. The first rank prints the seconds of an epoch.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from typing import Any

import torch
from torch import nn

from paceline.kernels.fused import Fused
from paceline.kernels.measure.networks import CNN, ONE_BY_ONE, SGD, Network
from paceline.kernels.measure.study import epoch_seconds, study_on, study_target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.cpp import text
from paceline.kernels.printers.study import GATHER, among_ranks
from paceline.kernels.processors import Cpu, Form, Library, load
from paceline.kernels.ranks import fuse_ranks


class Among(ctypes.Structure):
    """The ranks, as `printers/gather.hpp` reads them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("allgatherv", "in_place", "byte", "world")),
        *((name, ctypes.c_int64) for name in ("rank", "ranks")),
    ]


def study_by_ranks(network: Network, keeps: str, threads: int, world: Any) -> Fused:
    """The network as published, by all ranks of `world` together: parts of each layer, gathered after it."""

    def source(plan: Plan, rule: Rule) -> str:
        return GATHER.read_text(encoding="utf-8") + text(plan, rule, among_ranks(plan, keeps, threads))

    def loaded(source: str) -> Library:
        if world.rank == 0:
            load(source)
        world.Barrier()  # the others find it in the cache
        library = load(source)
        library.functions.paceline_among(ctypes.byref(_among(world)))
        return library

    return study_on(Cpu(1, Form(study_target, source, loaded)), network)


def _among(world: Any) -> Among:
    """What the generated code needs to call MPI, which it is not linked to."""
    from mpi4py import MPI

    function = ctypes.cast(ctypes.CDLL(MPI.__file__).MPI_Allgatherv, ctypes.c_void_p).value
    in_place = int(MPI.IN_PLACE) % 2 ** (8 * ctypes.sizeof(ctypes.c_void_p))
    handles = MPI._handleof(MPI.BYTE), MPI._handleof(world)
    return Among(function, in_place, *handles, world.rank, world.size)


def main(way: str, threads: int, seconds: float) -> None:
    """Trains in the way named, and prints seconds of an epoch."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    torch.manual_seed(0)
    try:
        if way in ("fused", "gpus"):
            network = CNN
            model = CNN.make().to(f"cuda:{world.rank % torch.cuda.device_count()}" if way == "gpus" else "cpu")
            fused = fuse_ranks(model, nn.CrossEntropyLoss(), SGD, CNN.batch, threads=threads or None)
        else:
            network = ONE_BY_ONE
            fused = study_by_ranks(network, way, threads, world)
        elapsed = epoch_seconds(fused, network, seconds, world.bcast)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)  # or the others would wait for this rank for ever
        raise
    fused.close()
    if world.rank == 0:
        print(elapsed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
