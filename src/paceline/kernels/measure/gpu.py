"""The small networks on a GPU: as published, fused in each way of launching, and by PyTorch eager and captured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from paceline.kernels.compiled import Compiled, CompiledCall
from paceline.kernels.cuda.device import Device, Launch, lacking, nvidia
from paceline.kernels.cuda.gpu import Gpu, SampleKernels, gpu_target
from paceline.kernels.cuda.ways import Updates
from paceline.kernels.fused import Fused
from paceline.kernels.ir import Loss
from paceline.kernels.losses import loss_kind
from paceline.kernels.measure.figures import Meter
from paceline.kernels.measure.networks import CNN, NETWORKS, ONE_BY_ONE, RATE, SGD, Network
from paceline.kernels.measure.study import study_on
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.block import Own
from paceline.kernels.printers.cuda import THREADS, text_of_layers
from paceline.kernels.runner import Runner
from paceline.kernels.weights import OneModel

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


def many_barriers(device: Device, count: int) -> tuple[int, float]:
    """(barriers that all blocks passed, seconds of one)"""
    return barriers(fused_on(CNN, device, "waiting"), *CNN.data(CNN.batch), count)
