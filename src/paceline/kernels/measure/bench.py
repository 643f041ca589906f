"""`paceline bench kernels`: small networks against a published study, against PyTorch and against the machine's peak.

figures.py     what was measured, and the meter; tables.py tells it, picture.py draws it
parts.py       one process; study.py  networks.py  opponents.py  peak.py  what it measures
ranks.py       ranks of MPI, each of which runs rank.py
gpu.py         a GPU, where there is one
algorithms.py  ways to convolve
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

import paceline.kernels.machine as machine
from paceline.kernels.build import compiler
from paceline.kernels.measure import parts
from paceline.kernels.measure.algorithms import algorithms
from paceline.kernels.measure.figures import Bench, Meter, Say
from paceline.kernels.measure.gpu import gpu
from paceline.kernels.measure.peak import peak
from paceline.kernels.measure.ranks import ranks

PARTS: dict[str, Callable[[Meter], None]] = {
    "study": parts.study,
    "layers": parts.layers,
    "networks": parts.networks,
    "replicas": parts.replicas,
    "ranks": ranks,
    "gpu": gpu,
    "algorithms": algorithms,
}


def bench(
    part_names: tuple[str, ...] = tuple(PARTS),
    seconds: float = 1.0,
    threads: tuple[int, ...] = (1, 2, 4, 8),
    say: Say = print,
) -> Bench:
    """Measure; `seconds` is spent on each row, several times."""
    cores = machine.cores()
    peaks = [peak(n) for n in sorted({1, cores})]
    benchmark = Bench(
        peaks,
        machine={
            "compiler": str(compiler()),
            "cores": cores,
            "vector": machine.vector()[0],
            "load": os.getloadavg()[0],
            "torch": torch.__version__,
        },
    )
    meter = Meter(benchmark, seconds, threads, say)
    for part in part_names:
        PARTS[part](meter)
    return benchmark
