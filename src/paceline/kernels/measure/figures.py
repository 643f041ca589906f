"""What was measured, as data, as Markdown and as a picture; and the meter that every part of the bench uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

import paceline.kernels.machine as machine
from paceline.kernels.fused import Fused, fuse
from paceline.kernels.library import ALGORITHMS
from paceline.kernels.machine import Peak
from paceline.kernels.measure.networks import CNN, ONE_BY_ONE, SGD, Network
from paceline.kernels.measure.picture import Point, roofline
from paceline.kernels.measure.study import PUBLISHED, StepTime, epoch_seconds, study_network

Say = Callable[[str], None]
SEQUENTIAL = "sequential C++, a layer at a time"


@dataclass
class EpochRow:
    """A way to train an epoch of a network."""

    network: str
    who: str
    threads: int  # of each rank; none on a GPU
    seconds: float
    gflops: float
    share: float  # of the multiply-add peak of as many cores as it used; none on a GPU
    ranks: int = 0  # of MPI; none where it needs no MPI

    @property
    def workers(self) -> int:
        return max(self.threads, 1) * max(self.ranks, 1)


@dataclass
class Shaped:
    """A convolution by each way that fits it."""

    shape: str
    chosen: str  # by the tuner
    seconds: dict[str, float]
    errors: dict[str, float]  # of the largest output
    gflops: dict[str, float]  # as many as the direct way would need


@dataclass
class Bench:
    """Everything that was measured."""

    peaks: list[Peak]
    rows: list[EpochRow] = field(default_factory=list)
    steps: dict[str, list[StepTime]] = field(default_factory=dict)
    replicas: dict[str, float] = field(default_factory=dict)
    shapes: list[Shaped] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # part -> what was not there to measure it
    machine: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "published": PUBLISHED}

    def best(self, network: str, who: str) -> EpochRow | None:
        rows = [row for row in self.rows if row.network == network and row.who.startswith(who)]
        return min(rows, key=lambda row: row.seconds, default=None)


class Meter:
    """`seconds` are spent on each row, several times."""

    def __init__(self, benchmark: Bench, seconds: float, threads: tuple[int, ...], say: Say) -> None:
        self.found, self.seconds, self.threads, self.say = benchmark, seconds, threads, say
        self.cores = machine.cores()

    def row(self, network: Network, who: str, threads: int, seconds: float, ranks: int = 0) -> None:
        """Adds a row, and reports it."""
        gflops = self.flops(network) * network.samples / seconds / 1e9
        row = EpochRow(network.name, who, threads, seconds, gflops, 0.0, ranks)
        if threads:
            row.share = gflops / (self.found.peaks[0].gflops * min(row.workers, self.cores))
        self.found.rows.append(row)
        by = f", {ranks} rank{'s' * (ranks > 1)} of " if ranks else ", "
        by = f"{by}{threads} thread{'s' * (threads > 1)}" if threads else ""
        self.say(f"{network.name}: {who}{by}: {seconds:.3f} s an epoch")

    def flops(self, network: Network) -> int:
        """Operations of one sample."""
        x, _ = network.data(1)
        return fuse(network.make(), nn.CrossEntropyLoss(), None, 1).compiled(x).plan.flops

    def fused(self, network: Network, threads: int) -> Fused:
        """The network as `fuse` trains it."""
        return fuse(network.make(), nn.CrossEntropyLoss(), SGD, network.batch, threads=threads)

    def timed(self, fused: Fused, network: Network) -> float:
        """Seconds of an epoch."""
        return epoch_seconds(fused, network, self.seconds)

    def sequential(self) -> None:
        """Measures, once, the sequential program that the study's speed-ups are relative to."""
        if self.found.best(ONE_BY_ONE.name, SEQUENTIAL) is None:
            self.row(ONE_BY_ONE, SEQUENTIAL, 1, self.timed(study_network(CNN, "outputs", 1), ONE_BY_ONE))


# What was measured, as Markdown and as a picture.


def tables(benchmark: Bench) -> str:
    """All figures as Markdown."""
    one = benchmark.peaks[0]
    width = benchmark.machine["vector"]
    lines = [
        "Peak of multiply-adds: "
        + ", ".join(f"{p.gflops:.0f} GFLOP/s on {p.threads} core{'s' * (p.threads > 1)}" for p in benchmark.peaks)
        + f" (vectors of {width} bytes); reading memory: {one.gigabytes:.0f} GB/s on one core.",
        "",
    ]
    for network in dict.fromkeys(row.network for row in benchmark.rows):
        lines += [f"### {network}", "", *_rows(benchmark, network), ""]
    if benchmark.steps:
        lines += ["### Layer by layer", "", *_layers(benchmark), ""]
    if benchmark.replicas:
        r = benchmark.replicas
        lines += [
            f"{r['models']:.0f} models side by side at batch 1: {r['together']:.2f} s an epoch of all, against "
            f"{r['models'] * r['alone']:.2f} s one after another: {r['gain']:.1f} times.",
            "",
        ]
    if benchmark.shapes:
        lines += ["### Ways to convolve", "", *_shapes(benchmark), ""]
    lines += [f"Not measured: {part}: {lack}" for part, lack in benchmark.missing.items()]
    return "\n".join(lines)


def _rows(benchmark: Bench, network: str) -> list[str]:
    """The ways to train a network, ours beside the best of others."""
    rows = [row for row in benchmark.rows if row.network == network]
    base = benchmark.best("mnist-cnn, batch 1", SEQUENTIAL) if network.startswith("mnist-cnn") else None
    lines = [
        "| who | ranks | threads | s/epoch | speed-up | efficiency | GFLOP/s | of the peak |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    if base and network.endswith("batch 1"):
        published = PUBLISHED["sequential"]
        for who, seconds in PUBLISHED.items():
            lines.append(f"| *published:* {who} | | | {seconds:.1f} | {published / seconds:.1f} | | | |")
    for row in rows:
        speed = f"{base.seconds / row.seconds:.1f}" if base else ""
        lines.append(
            f"| {row.who} | {row.ranks or ''} | {row.threads or ''} | {row.seconds:.3f} | {speed} | "
            f"{_efficiency(rows, row)} | {row.gflops:.1f} | {f'{row.share:.0%}' if row.share else ''} |"
        )
    ours, theirs = benchmark.best(network, "fused"), benchmark.best(network, "PyTorch")
    if ours and theirs:
        lines += ["", f"Against the best of PyTorch: **{theirs.seconds / ours.seconds:.1f} times**."]
    return lines


def _efficiency(rows: list[EpochRow], row: EpochRow) -> str:
    """The speed-up over one worker of the same way, by workers."""
    single = next((other for other in rows if other.who == row.who and other.workers == 1), None)
    return f"{single.seconds / row.seconds / row.workers:.2f}" if single and row.workers > 1 else ""


def _shapes(benchmark: Bench) -> list[str]:
    """Ways to convolve."""
    lines = [
        "Microseconds; bold is what the tuner chose. Errors are of the largest output, against float64.",
        "",
        f"| images * filters | {' | '.join(ALGORITHMS)} | GFLOP/s | largest error |",
        "|---|" + "---:|" * (len(ALGORITHMS) + 2),
    ]
    for row in benchmark.shapes:
        cells = []
        for name in ALGORITHMS:
            cell = f"{row.seconds[name] * 1e6:.0f}" if name in row.seconds else ""
            cells.append(f"**{cell}**" if name == row.chosen else cell)
        error = f"{row.errors[row.chosen]:.1e}"
        lines.append(f"| {row.shape} | {' | '.join(cells)} | {row.gflops[row.chosen]:.0f} | {error} |")
    worst = {name: max((row.errors.get(name, 0.0) for row in benchmark.shapes), default=0.0) for name in ALGORITHMS}
    lines += ["", "Largest error of all shapes: " + ", ".join(f"{name} {e:.1e}" for name, e in worst.items()) + "."]
    return lines


KINDS = {"1": "convolution", "3": "pooling", "6": "dense"}  # layers of the small CNN, with what follows each


def by_layer(steps: list[StepTime]) -> dict[tuple[str, str], tuple[float, int]]:
    """(kind of layer, way) -> (seconds, FLOP) of one sample; what follows a layer counts to it."""
    totals: dict[tuple[str, str], tuple[float, int]] = {}
    for step in steps:
        number = max((n for n in KINDS if n <= step.layer), default=None)
        if number is None:
            continue
        key = KINDS[number], step.way
        seconds, flops = totals.get(key, (0.0, 0))
        totals[key] = seconds + step.seconds, flops + step.flops
    return totals


def _layers(benchmark: Bench) -> list[str]:
    """Seconds of layers by kind."""
    base = by_layer(benchmark.steps["sequential"])
    names = [name for name in benchmark.steps if name != "sequential"]
    head = " | ".join(f"{name}, us (speed-up)" for name in names)
    lines = [
        "Microseconds of one sample, each step alone with its data in the cache.",
        "",
        f"| layer | way | sequential, us | {head} | fused GFLOP/s |",
        "|---|---|---:|" + "---:|" * (len(names) + 1),
    ]
    for key, (seconds, _) in base.items():
        cells = []
        for name in names:
            other, flops = by_layer(benchmark.steps[name]).get(key, (float("nan"), 0))
            cells.append(f"{other * 1e6:.2f} ({seconds / other:.1f})")
        lines.append(f"| {key[0]} | {key[1]} | {seconds * 1e6:.2f} | {' | '.join(cells)} | {flops / other / 1e9:.0f} |")
    return lines


def picture(benchmark: Bench) -> str:
    """The roofline of the fused steps."""
    points = [
        Point(f"{KINDS.get(s.layer, s.layer)} {s.way}", s.flops / max(s.bytes, 1), s.flops / s.seconds / 1e9)
        for s in benchmark.steps.get("fused", [])
        if s.flops > 4000 and s.seconds > 1e-9
    ]
    one = benchmark.peaks[0]
    return roofline(points, one.gflops, one.gigabytes, "The small CNN's steps under the roofs of one core")
