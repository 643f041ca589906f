"""What ranks of MPI measure: the study's network as published and fused, by 1, 2 and 4 ranks, and with threads in each
(`rank.py` is what a rank runs). `mpiexec` is started here.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from paceline.kernels.cuda.device import lacking
from paceline.kernels.measure.figures import Meter
from paceline.kernels.measure.networks import CNN, ONE_BY_ONE

RANKS = ((1, 1), (2, 1), (4, 1))  # and threads of each
HYBRIDS = ((1, 2), (2, 2))
WAYS = {  # way of rank.py -> network, what it is called, by how many ranks of how many threads
    "outputs": (ONE_BY_ONE, "MPI as published, outputs stay", RANKS + HYBRIDS),
    "inputs": (ONE_BY_ONE, "MPI as published, inputs stay", RANKS),
    "fused": (CNN, "MPI fused", RANKS + HYBRIDS),
}
ON_GPUS = (CNN, "MPI x CUDA, fused")  # a GPU for each rank
PATIENCE = 280.0  # seconds for one row


def ranks(meter: Meter) -> None:
    """Measures every way by every number of ranks."""
    if lack := _lacking():
        meter.found.missing["ranks"] = lack
        meter.say(f"ranks: {lack}")
        return
    meter.sequential()
    gpus = torch.cuda.device_count() if not lacking() else 0
    on_gpus = {"gpus": (*ON_GPUS, tuple((count, 0) for count in (1, 2, 4) if count <= gpus))}
    for way, (network, who, worlds) in (WAYS | on_gpus).items():
        for count, threads in worlds:
            seconds, why = _by_ranks(way, count, threads, meter.seconds)
            if seconds is None:
                meter.found.missing[f"{who}, {count} ranks of {threads}"] = why
                meter.say(f"{who}, {count} ranks of {threads}: {why}")
            else:
                meter.row(network, who, threads, seconds, count)


def mpiexec() -> str | None:
    """The mpiexec beside this Python, where wheels of MPI put it, or the one on the path."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _lacking() -> str:
    """The reason why no ranks can be started; empty if they can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'paceline[mpi]'"
    if mpiexec() is None:
        return "there is no mpiexec, neither beside this Python nor on the path: pip install mpich"
    return ""


def _by_ranks(way: str, ranks: int, threads: int, seconds: float) -> tuple[float | None, str]:
    """(seconds of an epoch, or else why there are none)"""
    words = [sys.executable, "-m", "paceline.kernels.measure.rank", way, str(threads), str(seconds)]
    command = [str(mpiexec()), "-n", str(ranks), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            stdout, complaints = started.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            started.terminate()  # mpiexec ends its ranks
            return None, f"not done after {PATIENCE:.0f} s"
    if started.returncode:
        lines = complaints.strip().splitlines() or [f"mpiexec ended with {started.returncode}"]
        return None, lines[-1]
    return float(stdout), ""
