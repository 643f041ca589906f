"""What was measured, as data; and the meter that every part of the bench measures with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

import paceline.kernels.machine as machine
from paceline.kernels.fused import Fused, fuse
from paceline.kernels.measure.networks import CNN, ONE_BY_ONE, SGD, Network
from paceline.kernels.measure.peak import Peak
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
