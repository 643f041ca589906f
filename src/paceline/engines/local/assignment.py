"""What a worker process gets from its parent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.core.agenda import Agenda
from paceline.engines.devices import Placement
from paceline.engines.local.state_buffers import ResumePoint
from paceline.jobs.job import Job
from paceline.plans.plan import Plan
from paceline.stages.segment import Blueprint


@dataclass
class Assignment:
    """Everything that one worker needs to start. It is pickled by value, so functions of a notebook travel, too."""

    number: int
    job: Job  # without its data
    plan: Plan
    agenda: Agenda
    moving: tuple[str, ...]
    placement: Placement
    data: object  # a Dataset or a function that makes one; None when the data are shared tensors
    samples: int
    initial_sha256: str
    scratch: Path | None  # a folder that the parent deletes at the end
    deadline: float
    life: ResumePoint  # where this life of the run begins
    blueprint: Blueprint | None = None  # of a pipeline; `job.model` is then a skeleton with what this worker holds
