"""The small networks on a GPU: as published, fused in each way of launching, and by PyTorch eager and captured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from paceline.kernels.compiled import Call, Compiled
from paceline.kernels.cuda.device import Device, Launch, lacking, nvidia
from paceline.kernels.cuda.network import OnDevice
from paceline.kernels.fused import loss_kind
from paceline.kernels.ir import Score
from paceline.kernels.measure.figures import SGD, Meter
from paceline.kernels.measure.networks import CNN, NETWORKS, ONE_BY_ONE, Network
from paceline.kernels.measure.opponents import RATE
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.cuda import Own, text_of_layers

WIDE = 32  # blocks that a layer as published is dealt out to
BARRIERS = 1_000_000


class StudyOnDevice(OnDevice):
    """The network as published: batch 1, a kernel per layer."""

    def __init__(self, network: Network, keeps: str, device: Device) -> None:
        super().__init__(network.make().to(device.where), "cross_entropy", SGD, 1, 0.0, device, "kernels")
        self.keeps = keeps

    def _target(self) -> Target:
        return replace(super()._target(), apart=True)

    def _text(self, plan: Plan, rule: Rule) -> str:
        return text_of_layers(plan, rule, self.keeps)

    def _own(self, plan: Plan) -> Own:
        return Own()  # the kernels of two layers meet in the device's memory

    def _work(self, made: Compiled, call: Call) -> None:
        updates, steps = self._launched(made, call), list(made.plan.steps())
        for number in range(call.updates):
            updates.program.launch("paceline_begin", Launch(WIDE, self.block), updates.call, number)
            for layer, step in enumerate(steps):
                alone = isinstance(step.statement, Score)  # whose threads wait for each other
                how = Launch(1 if alone else WIDE, self.block)
                updates.program.launch(f"paceline_layer_{layer}", how, updates.call, number)
            updates.program.launch("paceline_change", updates.change, updates.call, number)


def fused_on(network: Network, device: Device, way: str) -> OnDevice:
    model, loss = network.make().to(device.where), loss_kind(nn.CrossEntropyLoss())
    return OnDevice(model, loss, SGD, network.batch, 0.0, device, way)


def ways_of(network: Network, device: Device) -> list[str]:
    return fused_on(network, device, "").ways(network.data(1)[0])


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
    """As PyTorch's notes on CUDA graphs tell: warmed up on a stream of its own first."""
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
    """As published, fused in each way of launching, and PyTorch eager and captured; the barrier by itself."""
    if lack := lacking():
        meter.found.missing["gpu"] = lack
        meter.say(f"gpu: {lack}")
        return
    device = nvidia(torch.cuda.current_device())
    meter.found.machine["gpu"] = str(device)
    meter.sequential()
    for keeps in ("outputs", "inputs"):
        seconds = meter.timed(StudyOnDevice(ONE_BY_ONE, keeps, device), ONE_BY_ONE)
        meter.row(ONE_BY_ONE, f"CUDA as published, {keeps} stay", 0, seconds)
    for network in NETWORKS:
        for way in ways_of(network, device):
            meter.row(network, f"CUDA fused, {way}", 0, meter.timed(fused_on(network, device, way), network))
        for captured in (False, True):
            who = f"PyTorch on the GPU, {'captured in a graph' if captured else 'eager'}"
            meter.row(network, who, 0, pytorch_on(network, device, captured, meter.seconds))
    through, seconds = soak(device, BARRIERS)
    meter.found.machine["barrier_seconds"] = seconds
    meter.say(f"{through:,} barriers of all blocks, {seconds * 1e6:.2f} us each")


def soak(device: Device, barriers: int) -> tuple[int, float]:
    """(barriers that all blocks came through, seconds of one)"""
    return fused_on(CNN, device, "waiting").barriers(*CNN.data(CNN.batch), barriers)
