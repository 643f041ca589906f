"""Notes on a job and a plan that can be trained, but not as was probably meant."""

from __future__ import annotations

import os

from torch.nn import Module

from paceline.algorithms.agenda import Agenda
from paceline.plans.plan import Plan
from paceline.training.jobs.job import Job

CROWD = 8  # workers for each core


def notes_of(job: Job, plan: Plan, agenda: Agenda, engine: str) -> list[str]:
    """Return the notes on a job, its plan and the division of its batches."""
    return [*_unused(job, plan), *_untrained(job), *_small(job, agenda), *(_crowd(plan) if engine == "local" else [])]


def _unused(job: Job, plan: Plan) -> list[str]:
    """Note which settings of the job a coordinator does not use."""
    if plan.traits.uses_optimizer:
        return []
    unused = {"optimizer": True, "lr_scheduler": job.lr_scheduler is not None}
    names = ", ".join(f"{name}=" for name, given in unused.items() if given)
    return [f"plan {plan.name} makes its own steps, and evaluates a batch several times; it does not use {names}"]


def _untrained(job: Job) -> list[str]:
    """Note that a loss has parameters, which would stay as they are."""
    names = [name for name, p in job.loss.named_parameters() if p.requires_grad] if isinstance(job.loss, Module) else []
    if not names:
        return []
    return [
        f"loss= has parameters ({', '.join(names[:3])}) that are not trained: optimizer= gets those of the model; let "
        "the model hold the loss, and give step=lambda model, batch: model.loss(model(batch[0]), batch[1])"
    ]


def _small(job: Job, agenda: Agenda) -> list[str]:
    """Note that there are too few samples for a batch, or that a batch is too small for the workers."""
    samples = agenda.samples
    batch = min(job.batch_size, samples)
    notes = []
    if job.batch_size > samples:
        few = f"{samples} sample{'s' * (samples > 1)}"
        notes.append(f"batch_size={job.batch_size} is more than the {few}: an update sees all of them")
    if not all(chunk.samples for chunk in agenda.chunks(0)[: agenda.parts]):
        among = f"into {agenda.parts} chunks" if agenda.canonical else f"among {agenda.parts} workers"
        notes.append(
            f"a batch of {batch} sample{'s' * (batch > 1)} cannot be divided {among}: some "
            f"{'are empty' if agenda.canonical else 'have nothing to do'}"
        )
    return notes


def _crowd(plan: Plan) -> list[str]:
    """Note that there are so many workers that it takes long to start them."""
    cores = len(os.sched_getaffinity(0))
    if plan.workers <= CROWD * cores:
        return []
    return [
        f"{plan.workers} workers on {cores} core{'s' * (cores > 1)}: each is a process with its own PyTorch, and they "
        "take turns"
    ]
