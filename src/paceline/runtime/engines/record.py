"""The record of a run when it begins, which run.json holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime

from paceline.runtime.engines.holdings import bytes_held
from paceline.runtime.engines.outline import outline
from paceline.runtime.engines.own_files import own_files
from paceline.runtime.engines.replay.changes import ARITHMETIC_VERSION
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.record import (
    AttemptRecord,
    DataOrigin,
    JobRecord,
    LayerRecord,
    MovingBuffers,
    RunRecord,
    Status,
    this_machine,
)
from paceline.training.data.opening import origins
from paceline.training.jobs.several import SeveralOptimizers
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import Optimizer


def first_record(setup: Setup, kept: bool) -> RunRecord:
    """Describe the run as it is before the first update; the model's layers only if the record is kept."""
    job, plan = setup.job, setup.plan
    return RunRecord(
        status=Status.RUNNING,
        started=datetime.now().astimezone().isoformat(timespec="milliseconds"),
        plan=str(plan),
        table=plan.own_table,
        engine=setup.engine,
        compute=job.compute,
        workers=plan.workers,
        threads=plan.threads,
        shards=plan.shards,
        adds_up=setup.placement.library,
        limit=setup.limit,
        lives=(life_record(setup, 0),),
        job=_job(setup),
        moving_buffers=MovingBuffers(
            "mean over chunks" if plan.traits.synchronous else "shard 0, the last push wins", tuple(setup.probe.moving)
        ),
        data_fingerprint=setup.source.fingerprint(),
        data=tuple(DataOrigin(str(f.resolve()), split, samples) for f, split, samples in origins(setup.source)),
        initial_sha256=setup.initial_sha256,
        arithmetic_version=ARITHMETIC_VERSION,
        files=own_files() if kept else {},
        notes=(*setup.probe.notes, *([str(setup.choice)] if setup.choice else [])),
        machine=this_machine(),
        model=_model(setup) if kept else (),
    )


def _model(setup: Setup) -> tuple[LayerRecord, ...]:
    """Describe the layers, and what each worker holds of them where none holds all."""
    layers, holdings = outline(setup.job, setup.module, setup.source), bytes_held(setup)
    if not holdings:
        return tuple(layers)
    return tuple(
        replace(
            layer,
            held=tuple(map(sum, zip(*(mine for name, mine in holdings.items() if _of(layer, name)), strict=True))),
        )
        for layer in layers
    )


def _of(layer: LayerRecord, name: str) -> bool:
    """Whether a parameter or buffer is one of a layer's."""
    inner = name.removeprefix(f"{layer.name}.") if layer.name else name
    return inner in layer.shapes or (inner != name and "." not in inner)


def life_record(setup: Setup, updates: int) -> AttemptRecord:
    """Describe the part of a run that begins after so many updates."""
    return AttemptRecord(str(setup.plan), updates, setup.engine)


def _job(setup: Setup) -> JobRecord:
    """Describe the job."""
    job = setup.job
    return JobRecord(
        name=job.name,
        origin=job.origin,
        arguments=tuple(sys.argv[1:]),
        batch_size=job.batch_size,
        epochs=job.epochs,
        accumulate_grad_batches=job.accumulate_grad_batches,
        seed=job.seed,
        precision=job.precision,
        device=str(setup.placement),
        optimizer=_optimizer(setup),
        gradient_clip_norm=job.gradient_clip_norm,
        shuffle=job.shuffle,
        evaluate_every=job.evaluate_every,
        on_nan=job.on_nan,
        num_workers=job.num_workers,
        samples=len(setup.source),
        test_samples=len(setup.test) if setup.test is not None else 0,
        parameters=sum(p.numel() for p in trainable(setup.module).values()),
    )


def _optimizer(setup: Setup) -> str:
    """Write the user's optimizers as in Python."""
    module = setup.fresh_module()
    optimizer = setup.job.make_optimizer(module, list(trainable(module).values()))
    return " + ".join(map(_written, optimizer.each if isinstance(optimizer, SeveralOptimizers) else (optimizer,)))


def _written(optimizer: Optimizer) -> str:
    """Write an optimizer with its settings; of several groups, those of the first."""
    settings = {key: value for key, value in optimizer.param_groups[0].items() if key != "params" and value is not None}
    groups = f"{len(optimizer.param_groups)} groups, first: " if len(optimizer.param_groups) > 1 else ""
    return (
        f"{type(optimizer).__name__}({groups}{', '.join(f'{key}={value}' for key, value in settings.items() if value)})"
    )
