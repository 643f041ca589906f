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
from functools import partial
from typing import Any

import torch
from torch import nn

from paceline.kernels.apart import Apart
from paceline.kernels.build import library
from paceline.kernels.compiled import Compiled
from paceline.kernels.fused import Fused
from paceline.kernels.measure.networks import CNN, ONE_BY_ONE, Network
from paceline.kernels.measure.opponents import RATE
from paceline.kernels.measure.study import Study, epoch_seconds
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.cpp import text
from paceline.kernels.printers.dealt import GATHER, Dealt
from paceline.kernels.ranks import fuse_ranks


class Among(ctypes.Structure):
    """As in printers/gather.hpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("allgatherv", "in_place", "byte", "world")),
        *((name, ctypes.c_int64) for name in ("rank", "ranks")),
    ]


class StudyRank(Study):
    """The network as published, by all ranks of `world` together: parts of each layer, gathered after it."""

    def __init__(self, network: Network, keeps: str, threads: int, world: Any) -> None:
        super().__init__(network, keeps, threads)
        self.world = world

    def _text(self, plan: Plan, rule: Rule) -> str:
        source = GATHER.read_text() + text(plan, rule, Dealt(plan, self.keeps, self.layer_threads))
        if self.world.rank == 0:
            library(source)
        self.world.Barrier()  # the others find it made
        return source

    def _compile(self, shape: tuple[int, ...], tokens: bool) -> Compiled:
        from mpi4py import MPI

        made = super()._compile(shape, tokens)
        function = ctypes.cast(ctypes.CDLL(MPI.__file__).MPI_Allgatherv, ctypes.c_void_p).value
        in_place = int(MPI.IN_PLACE) % 2 ** (8 * ctypes.sizeof(ctypes.c_void_p))
        handles = MPI._handleof(MPI.BYTE), MPI._handleof(self.world)
        among = Among(function, in_place, *handles, self.world.rank, self.world.size)
        ctypes.CDLL(str(made.file)).paceline_among(ctypes.byref(among))
        return made


def main(way: str, threads: int, seconds: float) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    torch.manual_seed(0)
    fused: Fused
    try:
        if way in ("fused", "gpus"):
            network = CNN
            sgd = partial(torch.optim.SGD, lr=RATE)
            model = CNN.make().to(f"cuda:{world.rank % torch.cuda.device_count()}" if way == "gpus" else "cpu")
            fused = fuse_ranks(model, nn.CrossEntropyLoss(), sgd, CNN.batch, threads=threads or None)
        else:
            network = ONE_BY_ONE
            fused = StudyRank(network, way, threads, world)
        taken = epoch_seconds(fused, network, seconds, world.bcast)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)  # the others wait for this rank, and would for ever
        raise
    if isinstance(fused, Apart):
        fused.close()
    if world.rank == 0:
        print(taken)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
