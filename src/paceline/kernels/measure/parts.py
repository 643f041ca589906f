"""What one process measures: the study's network, its layers, other networks, many models at once."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import paceline.kernels.machine as machine
from paceline.kernels.measure.figures import Meter
from paceline.kernels.measure.networks import CNN, NETWORKS, ONE_BY_ONE, SGD
from paceline.kernels.measure.opponents import best_pytorch, jax_epoch
from paceline.kernels.measure.study import step_times, study_network
from paceline.kernels.replicas import fuse_replicas


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
