"""`paceline bench kernels`: small networks against a published study, against PyTorch and against the machine's peak.

figures.py     what was measured, and the meter; tables.py tells it, picture.py draws it
rank.py        a rank of MPI, as it is run for the part `ranks`
study.py  networks.py  opponents.py  peak.py  gpu.py     what is measured
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import paceline.kernels.machine as machine
from paceline.kernels.build import compiler
from paceline.kernels.cuda.device import lacking
from paceline.kernels.library import ALGORITHMS, Shape, choose
from paceline.kernels.library.tuner import measured
from paceline.kernels.measure.figures import Bench, Meter, Say, Shaped
from paceline.kernels.measure.gpu import gpu
from paceline.kernels.measure.networks import CNN, NETWORKS, ONE_BY_ONE, SGD
from paceline.kernels.measure.opponents import best_pytorch, jax_epoch
from paceline.kernels.measure.peak import peak
from paceline.kernels.measure.study import step_times, study_network
from paceline.kernels.replicas import fuse_replicas

# What ranks of MPI measure: the study's network as published and fused, by 1, 2 and 4 ranks, and with threads in each
# (`rank.py` is what a rank runs). `mpiexec` is started here.

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


# --- What single layers measure: convolutions of many shapes by each way of the library, and what its tuner chose -----

SHAPES = (  # images, channels, height, width, filters, their height and width, stride, pad
    Shape(64, 1, 28, 28, 6, 5, 5, 1, 0),  # the study's
    Shape(1, 1, 28, 28, 6, 5, 5, 1, 0),
    Shape(64, 6, 14, 14, 16, 5, 5, 1, 0),  # LeNet-5
    Shape(16, 3, 32, 32, 32, 3, 3, 1, 1),
    Shape(16, 32, 32, 32, 32, 3, 3, 1, 1),
    Shape(16, 64, 16, 16, 64, 3, 3, 1, 1),
    Shape(1, 64, 56, 56, 64, 3, 3, 1, 1),
    Shape(4, 64, 28, 28, 128, 3, 3, 2, 1),
    Shape(4, 64, 28, 28, 64, 1, 1, 1, 0),
    Shape(4, 16, 56, 56, 16, 7, 7, 1, 3),
    Shape(4, 8, 56, 56, 16, 11, 11, 1, 5),
)


def algorithms(meter: Meter) -> None:
    for shape in SHAPES:
        chosen = choose(shape, threads=meter.cores).algorithm
        seconds = measured(shape, threads=meter.cores).seconds
        gflops = {name: shape.flop / taken / 1e9 for name, taken in seconds.items()}
        meter.found.shapes.append(Shaped(str(shape), chosen, seconds, _errors(shape, meter.cores), gflops))
        meter.say(f"{shape}: {chosen}, {seconds[chosen] * 1e6:.0f} us")


def _errors(shape: Shape, threads: int) -> dict[str, float]:
    """The largest error of each way against float64, as a share of the largest output."""
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(shape.n, shape.c, shape.h, shape.w, generator=chance)
    filters = torch.randn(shape.k, shape.c, shape.r, shape.s, generator=chance)
    exact = functional.conv2d(x.double(), filters.double(), stride=shape.stride, padding=shape.pad)
    largest = exact.abs().max()
    return {
        name: float((algorithm.run(shape, x, filters, threads) - exact).abs().max() / largest)
        for name, algorithm in ALGORITHMS.items()
        if algorithm.fits(shape)
    }


# --- What one process measures: the study's network, its layers, other networks, many models at once ------------------


def study(meter: Meter) -> None:
    """The small CNN at batch 1, as published; then fused, at the study's batch and at 64."""
    meter.sequential()
    for keeps in ("outputs", "inputs"):
        for count in meter.threads:
            published = study_network(CNN, keeps, count)
            meter.row(ONE_BY_ONE, f"as published, {keeps} stay", count, meter.timed(published, ONE_BY_ONE))
    meter.row(ONE_BY_ONE, "fused", 1, meter.timed(meter.fused(ONE_BY_ONE, 1), ONE_BY_ONE))
    for count in meter.threads:
        meter.row(CNN, "fused", count, meter.timed(meter.fused(CNN, count), CNN))


def layers(meter: Meter) -> None:
    """Step by step, with the data in the cache."""
    steps, seconds = meter.found.steps, meter.seconds / 4
    steps["sequential"] = step_times(study_network(CNN, "outputs", 1), CNN, seconds)
    for count in meter.threads[1:]:
        steps[f"as published, {count} threads"] = step_times(study_network(CNN, "outputs", count), CNN, seconds)
    steps["fused"] = step_times(meter.fused(CNN, 1), CNN, seconds)


def networks(meter: Meter) -> None:
    """Small networks, beside PyTorch in each of its modes, and JAX."""
    for network in NETWORKS:
        for count in sorted({1, meter.cores if network.batch > 16 else 1}):
            meter.row(network, "fused", count, meter.timed(meter.fused(network, count), network))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler's
            for mode, seconds in best_pytorch(network, meter.cores, meter.seconds).items():
                used = int(mode.split(", ")[1].split()[0])
                meter.row(network, f"PyTorch {mode.split(',')[0]}", used, seconds)
    if (jax_seconds := jax_epoch(meter.seconds)) is not None:
        meter.row(CNN, "JAX, the epoch one scan", meter.cores, jax_seconds)


def replicas(meter: Meter) -> None:
    """A model per lane trained side by side at batch 1, against the same trainings one after another."""
    lanes = machine.target().lanes
    alone = meter.timed(meter.fused(ONE_BY_ONE, 1), ONE_BY_ONE)
    together = fuse_replicas([CNN.make() for _ in range(lanes)], nn.CrossEntropyLoss(), [SGD], 1, threads=1)
    x, y = CNN.data(4000)
    orders = torch.stack([torch.randperm(len(x)) for _ in range(lanes)])
    times = []
    for _ in range(5):
        together.train_epochs(x, y, orders)
        assert together.fused.timed is not None
        times.append(together.fused.timed[1] / len(x) * CNN.samples)
    meter.found.replicas = {"models": lanes, "alone": alone, "together": min(times), "gain": lanes * alone / min(times)}
    meter.say(f"{lanes} models at batch 1: {min(times):.2f} s together, {lanes * alone:.2f} s one after another")


PARTS: dict[str, Callable[[Meter], None]] = {
    "study": study,
    "layers": layers,
    "networks": networks,
    "replicas": replicas,
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
