"""`paceline bench kernels`: small networks against a published study, against PyTorch and against the machine's peak.

figures.py     what was measured, the meter, and tables of it; picture.py draws it
rank.py        a rank of MPI, as it is run for the part `ranks`
study.py  networks.py     what is measured, and PyTorch and JAX beside it; the machine's peak is kernels/machine.py's
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import paceline.kernels.machine as machine
from paceline.kernels.build import compiler
from paceline.kernels.compiled import Compiled, CompiledCall
from paceline.kernels.cuda.device import Device, Launch, lacking, nvidia
from paceline.kernels.cuda.gpu import THREADS, Gpu, SampleKernels, Updates, gpu_target, text_of_layers
from paceline.kernels.fused import Fused
from paceline.kernels.ir import Loss
from paceline.kernels.library import ALGORITHMS, Shape, choose
from paceline.kernels.library.convolution import measured
from paceline.kernels.losses import loss_kind
from paceline.kernels.machine import peak
from paceline.kernels.measure.figures import Bench, Meter, Say, Shaped
from paceline.kernels.measure.networks import CNN, NETWORKS, ONE_BY_ONE, RATE, SGD, Network, best_pytorch, jax_epoch
from paceline.kernels.measure.study import step_times, study_network, study_on
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.block import Own
from paceline.kernels.processors import Runner
from paceline.kernels.replicas import fuse_replicas
from paceline.kernels.weights import OneModel


def gpu(meter: Meter) -> None:
    """Measures the published form, the fused one in each way, PyTorch eager and captured, and the barrier."""
    if lack := lacking():
        meter.found.missing["gpu"] = lack
        meter.say(f"gpu: {lack}")
        return
    device = nvidia(torch.cuda.current_device())
    meter.found.machine["gpu"] = str(device)
    meter.sequential()
    for keeps in ("outputs", "inputs"):
        seconds = meter.timed(study_on(Gpu(device, LayerKernels(keeps)), ONE_BY_ONE), ONE_BY_ONE)
        meter.row(ONE_BY_ONE, f"CUDA as published, {keeps} stay", 0, seconds)
    for network in NETWORKS:
        fused = fused_on(network, device, "")
        for way in Gpu(device).ways(fused.compiled(network.data(1)[0])):
            meter.row(network, f"CUDA fused, {way}", 0, meter.timed(fused_on(network, device, way), network))
        for captured in (False, True):
            who = f"PyTorch on the GPU, {'captured in a graph' if captured else 'eager'}"
            meter.row(network, who, 0, pytorch_on(network, device, captured, meter.seconds))
    through, seconds = many_barriers(device, BARRIERS)
    meter.found.machine["barrier_seconds"] = seconds
    meter.say(f"{through:,} barriers of all blocks, {seconds * 1e6:.2f} us each")


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


# What single layers measure: convolutions of many shapes by each way of the library, and what its tuner chose.

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
        gflops = {name: shape.flop / elapsed / 1e9 for name, elapsed in seconds.items()}
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


# What one process measures: the study's network, its layers, other networks, many models at once.


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


# The small networks on a GPU: as published, fused in each way of launching, and by PyTorch eager and captured.

WIDE = 32  # blocks that a layer as published is dealt out to
BARRIERS = 1_000_000
OF_A_LAUNCH = 100_000  # barriers


class LayerKernels:
    """The network as published: a kernel per layer, whose rounds are dealt out to all threads of the device."""

    def __init__(self, keeps: str, threads: int = THREADS) -> None:
        self.keeps, self.threads = keeps, threads

    def target(self, real: str) -> Target:
        return replace(gpu_target(real), apart=True)

    def own(self, plan: Plan, room: int) -> Own:
        """Nothing: the kernels of two layers exchange numbers by the device's memory."""
        return Own()

    def text(self, plan: Plan, rule: Rule, shared_memory: Own) -> str:
        return text_of_layers(plan, rule, self.keeps)

    def launch(self, updates: Updates, compiled: Compiled, call: CompiledCall) -> None:
        launch, steps = updates.program.launch, list(compiled.plan.steps())
        for number in range(call.updates):
            launch("paceline_begin", Launch(WIDE, self.threads), updates.call, number)
            for layer, step in enumerate(steps):
                alone = isinstance(step.statement, Loss)  # whose threads wait for each other
                launch(f"paceline_layer_{layer}", Launch(1 if alone else WIDE, self.threads), updates.call, number)
            launch("paceline_change", updates.change, updates.call, number)

    def explain(self) -> list[str]:
        return []


def fused_on(network: Network, device: Device, way: str) -> Fused:
    """The network with a block per sample, its updates launched in the given way."""
    weights = OneModel(network.make().to(device.where), SGD)
    runner = Runner(Gpu(device, SampleKernels(way)))
    return Fused(weights, loss_kind(nn.CrossEntropyLoss()), network.batch, runner)


def barriers(fused: Fused, x: Tensor, y: Tensor, count: int) -> tuple[int, float]:
    """The barrier of waiting blocks and nothing else: (how many of them all blocks passed, seconds of one)."""
    compiled, gpu = fused.compiled(x), fused.processor
    assert isinstance(gpu, Gpu)
    call, alive = fused.call_for(compiled, x, y)
    updates = gpu.launched(compiled, call)
    for name in ("losses", "team"):
        compiled.memory[name].zero_()
    gpu.device.wait()
    begin = time.perf_counter()
    for first in range(0, count, OF_A_LAUNCH):
        last = min(first + OF_A_LAUNCH, count)
        updates.program.launch("paceline_barriers", updates.together(), updates.call, first, last)
    gpu.device.wait()
    seconds = (time.perf_counter() - begin) / count
    del alive  # the call has only their addresses
    return int(compiled.memory["losses"][0]), seconds


def pytorch_on(network: Network, device: Device, captured: bool, seconds: float) -> float:
    """Seconds of an epoch: an update at a time, or each update a replay of one CUDA graph; data on the GPU, float32 as
    ours is.
    """
    where = device.where
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    model, loss = network.make().to(where), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)
    x, y = (numbers.to(where) for numbers in network.data(min(network.samples, 20_000)))
    a, b = x[: network.batch].clone(), y[: network.batch].clone()

    def update() -> None:
        optimizer.zero_grad(set_to_none=False)
        loss(model(a), b).backward()
        optimizer.step()

    once = _captured(update) if captured else update

    def steps(limit: float) -> float:
        """Seconds per sample."""
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < limit:
            order = torch.randperm(len(x), device=where)
            for start in range(0, len(x) - network.batch + 1, network.batch):
                chosen = order[start : start + network.batch]
                torch.index_select(x, 0, chosen, out=a)
                torch.index_select(y, 0, chosen, out=b)
                once()
                done += network.batch
            device.wait()
        return (time.perf_counter() - begin) / done

    steps(min(seconds, 0.3))
    return min(steps(seconds) for _ in range(3)) * network.samples


def _captured(update: Callable[[], None]) -> Callable[[], None]:
    """The update as a CUDA graph, warmed up on a stream of its own first, as PyTorch's notes on CUDA graphs say."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    return graph.replay


def many_barriers(device: Device, count: int) -> tuple[int, float]:
    """(barriers that all blocks passed, seconds of one)"""
    return barriers(fused_on(CNN, device, "waiting"), *CNN.data(CNN.batch), count)
