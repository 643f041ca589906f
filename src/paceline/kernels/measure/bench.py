"""`paceline bench kernels`: the study's tables again, ours beside theirs, and what the libraries need."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

import paceline.kernels.machine as machine
from paceline.kernels.build import compiler
from paceline.kernels.fused import Fused, fuse
from paceline.kernels.measure.networks import CNN, NETWORKS, Network
from paceline.kernels.measure.opponents import RATE, best_pytorch, jax_epoch
from paceline.kernels.measure.peak import Peak, peak
from paceline.kernels.measure.picture import Point, roofline
from paceline.kernels.measure.study import PUBLISHED, StepTime, Study, epoch_seconds, step_times
from paceline.kernels.replicas import fuse_replicas

Say = Callable[[str], None]
SGD = partial(torch.optim.SGD, lr=RATE)
ONE_BY_ONE = next(network for network in NETWORKS if network.make is CNN.make and network.batch == 1)


@dataclass
class Row:
    """A way to train an epoch of a network."""

    network: str
    who: str
    threads: int
    seconds: float
    gflops: float
    share: float  # of the multiply-add peak of as many cores as it used


@dataclass
class Bench:
    peaks: list[Peak]
    rows: list[Row] = field(default_factory=list)
    steps: dict[str, list[StepTime]] = field(default_factory=dict)
    replicas: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "published": PUBLISHED}

    def best(self, network: str, who: str) -> Row | None:
        found = [row for row in self.rows if row.network == network and row.who.startswith(who)]
        return min(found, key=lambda row: row.seconds, default=None)


PARTS = ("study", "layers", "networks", "replicas")


def bench(parts: tuple[str, ...] = PARTS, seconds: float = 1.0, threads: tuple[int, ...] = (1, 2, 4, 8),
          say: Say = print) -> Bench:  # fmt: skip
    """Measure; `seconds` is spent on each row, several times."""
    cores = machine.cores()
    peaks = [peak(n) for n in sorted({1, cores})]
    found = Bench(peaks, machine={"compiler": str(compiler()), "cores": cores, "vector": machine.vector()[0],
                                  "load": os.getloadavg()[0], "torch": torch.__version__})  # fmt: skip
    meter = _Meter(found, seconds, say)
    for part in parts:
        {"study": meter.study, "layers": meter.layers, "networks": meter.networks, "replicas": meter.replicas}[part](
            threads
        )
    return found


class _Meter:
    def __init__(self, found: Bench, seconds: float, say: Say) -> None:
        self.found, self.seconds, self.say = found, seconds, say
        self.cores = machine.cores()

    def row(self, network: Network, who: str, threads: int, seconds: float) -> None:
        gflops = self.flops(network) * network.samples / seconds / 1e9
        one = self.found.peaks[0].gflops
        used = min(threads, self.cores)
        row = Row(network.name, who, threads, seconds, gflops, gflops / (one * used))
        self.found.rows.append(row)
        self.say(f"{network.name}: {who}, {threads} thread{'s' * (threads > 1)}: {seconds:.3f} s an epoch")

    def flops(self, network: Network) -> int:
        x, _ = network.data(1)
        return fuse(network.make(), nn.CrossEntropyLoss(), None, 1).compiled(x).plan.flops

    def fused(self, network: Network, threads: int) -> Fused:
        return fuse(network.make(), nn.CrossEntropyLoss(), SGD, network.batch, threads=threads)

    def study(self, threads: tuple[int, ...]) -> None:
        """The small CNN at batch 1, as published; then fused, at the study's batch and at 64."""
        self.row(ONE_BY_ONE, "sequential C++, a layer at a time", 1, self.timed(Study(CNN, "outputs", 1), ONE_BY_ONE))
        for keeps in ("outputs", "inputs"):
            for count in threads:
                study = Study(CNN, keeps, count)
                self.row(ONE_BY_ONE, f"as published, {keeps} stay", count, self.timed(study, ONE_BY_ONE))
        self.row(ONE_BY_ONE, "fused", 1, self.timed(self.fused(ONE_BY_ONE, 1), ONE_BY_ONE))
        for count in threads:
            self.row(CNN, "fused", count, self.timed(self.fused(CNN, count), CNN))

    def layers(self, threads: tuple[int, ...]) -> None:
        self.found.steps["sequential"] = step_times(Study(CNN, "outputs", 1), CNN, self.seconds / 4)
        for count in threads[1:]:
            self.found.steps[f"as published, {count} threads"] = step_times(
                Study(CNN, "outputs", count), CNN, self.seconds / 4
            )
        self.found.steps["fused"] = step_times(self.fused(CNN, 1), CNN, self.seconds / 4)

    def networks(self, threads: tuple[int, ...]) -> None:
        for network in NETWORKS:
            for count in sorted({1, self.cores if network.batch > 16 else 1}):
                self.row(network, "fused", count, self.timed(self.fused(network, count), network))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the compiler's
                for mode, seconds in best_pytorch(network, self.cores, self.seconds).items():
                    used = int(mode.split(", ")[1].split()[0])
                    self.row(network, f"PyTorch {mode.split(',')[0]}", used, seconds)
        if (taken := jax_epoch(self.seconds)) is not None:
            self.row(CNN, "JAX, the epoch one scan", self.cores, taken)

    def replicas(self, threads: tuple[int, ...]) -> None:
        """As many models as there are lanes, at batch 1, against as many trainings in turn."""
        lanes = machine.target().lanes
        alone = self.timed(self.fused(ONE_BY_ONE, 1), ONE_BY_ONE)
        together = fuse_replicas([CNN.make() for _ in range(lanes)], nn.CrossEntropyLoss(), [SGD], 1, threads=1)
        x, y = CNN.data(4000)
        orders = torch.stack([torch.randperm(len(x)) for _ in range(lanes)])
        times = []
        for _ in range(5):
            together.train_epochs(x, y, orders)
            assert together.timed is not None
            times.append(together.timed[1] / len(x) * CNN.samples)
        self.found.replicas = {"models": lanes, "alone": alone, "together": min(times),
                               "gain": lanes * alone / min(times)}  # fmt: skip
        self.say(f"{lanes} models at batch 1: {min(times):.2f} s together, {lanes * alone:.2f} s in turn")

    def timed(self, fused: Fused, network: Network) -> float:
        return epoch_seconds(fused, network, self.seconds)


# --- telling ----------------------------------------------------------------------------------------------------------


def tables(found: Bench) -> str:
    """As Markdown."""
    one = found.peaks[0]
    width = found.machine["vector"]
    lines = [
        "Peak of multiply-adds: "
        + ", ".join(f"{p.gflops:.0f} GFLOP/s on {p.threads} core{'s' * (p.threads > 1)}" for p in found.peaks)
        + f" (vectors of {width} bytes); reading memory: {one.gigabytes:.0f} GB/s on one core.",
        "",
    ]
    for network in dict.fromkeys(row.network for row in found.rows):
        lines += [f"### {network}", "", *_rows(found, network), ""]
    if found.steps:
        lines += ["### Layer by layer", "", *_layers(found), ""]
    if found.replicas:
        r = found.replicas
        lines += [
            f"{r['models']:.0f} models side by side at batch 1: {r['together']:.2f} s an epoch of all, against "
            f"{r['models'] * r['alone']:.2f} s in turn: {r['gain']:.1f} times.",
            "",
        ]
    return "\n".join(lines)


def _rows(found: Bench, network: str) -> list[str]:
    rows = [row for row in found.rows if row.network == network]
    base = next((row for row in found.rows if row.who.startswith("sequential")), None)
    study = network.startswith("mnist-cnn") and base is not None
    singles = {row.who: row.seconds for row in rows if row.threads == 1}
    lines = [
        "| who | threads | s/epoch | speed-up | efficiency | GFLOP/s | of the peak |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    if study and network.endswith("batch 1"):
        published = PUBLISHED["sequential"]
        for who, seconds in PUBLISHED.items():
            lines.append(f"| *published:* {who} | | {seconds:.1f} | {published / seconds:.1f} | | | |")
    for row in rows:
        single = singles.get(row.who)
        speed = f"{base.seconds / row.seconds:.1f}" if study and base else ""
        efficiency = f"{single / row.seconds / row.threads:.2f}" if single and row.threads > 1 else ""
        lines.append(
            f"| {row.who} | {row.threads} | {row.seconds:.3f} | {speed} | {efficiency} | {row.gflops:.1f} | "
            f"{row.share:.0%} |"
        )
    ours, theirs = found.best(network, "fused"), found.best(network, "PyTorch")
    if ours and theirs:
        lines += ["", f"Against the best of PyTorch: **{theirs.seconds / ours.seconds:.1f} times**."]
    return lines


KINDS = {"1": "convolution", "3": "pooling", "6": "dense"}  # layers of the small CNN, with what follows each


def by_layer(steps: list[StepTime]) -> dict[tuple[str, str], tuple[float, int]]:
    """(kind of layer, way) -> (seconds, FLOP) of one sample; what follows a layer counts to it."""
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for step in steps:
        number = max((n for n in KINDS if n <= step.layer), default=None)
        if number is None:
            continue
        key = KINDS[number], step.way
        seconds, flops = found.get(key, (0.0, 0))
        found[key] = seconds + step.seconds, flops + step.flops
    return found


def _layers(found: Bench) -> list[str]:
    base = by_layer(found.steps["sequential"])
    names = [name for name in found.steps if name != "sequential"]
    head = " | ".join(f"{name}, us (speed-up)" for name in names)
    lines = [
        "Microseconds of one sample, each step by itself with its data in the cache.",
        "",
        f"| layer | way | sequential, us | {head} | fused GFLOP/s |",
        "|---|---|---:|" + "---:|" * (len(names) + 1),
    ]
    for key, (seconds, _) in base.items():
        cells = []
        for name in names:
            other, flops = by_layer(found.steps[name]).get(key, (float("nan"), 0))
            cells.append(f"{other * 1e6:.2f} ({seconds / other:.1f})")
        lines.append(f"| {key[0]} | {key[1]} | {seconds * 1e6:.2f} | {' | '.join(cells)} | {flops / other / 1e9:.0f} |")
    return lines


def picture(found: Bench) -> str:
    points = [
        Point(f"{KINDS.get(s.layer, s.layer)} {s.way}", s.flops / max(s.bytes, 1), s.flops / s.seconds / 1e9)
        for s in found.steps.get("fused", [])
        if s.flops > 4000 and s.seconds > 1e-9
    ]
    one = found.peaks[0]
    return roofline(points, one.gflops, one.gigabytes, "The small CNN's steps under the roofs of one core")
