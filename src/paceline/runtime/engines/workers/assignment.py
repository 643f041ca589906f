"""The assignment that a worker process gets from its parent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.algorithms.agenda import Agenda
from paceline.errors import JobError
from paceline.plans.plan import Plan
from paceline.runtime.engines.devices import Placement
from paceline.runtime.engines.workers.process import die_with_parent
from paceline.runtime.engines.workers.state_buffers import ResumePoint
from paceline.runtime.links.memory import SharedTensors
from paceline.training.data.opening import open_source
from paceline.training.data.order import Order
from paceline.training.data.source import Reader, Source, TensorSource
from paceline.training.gradients.pickling import pack
from paceline.training.jobs.job import Job
from paceline.training.operators.planning import OperatorBlueprint
from paceline.training.splits.gradients import SplitBlueprint
from paceline.training.stages.blueprint import Blueprint

if TYPE_CHECKING:
    from paceline.runtime.engines.setup import Setup


@dataclass
class Assignment:
    """Everything that one worker needs to start. It is pickled by value, so functions of a notebook travel, too."""

    number: int
    #: Without its data.
    job: Job
    plan: Plan
    agenda: Agenda
    moving: tuple[str, ...]
    placement: Placement
    #: A Dataset or a function that makes one; None if the data are shared tensors.
    data: object
    samples: int
    initial_sha256: str
    #: A folder that the parent deletes at the end.
    scratch: Path | None
    deadline: float
    resume_point: ResumePoint
    #: The blueprint of a pipeline; `job.model` is then a skeleton with the parts that this worker holds.
    blueprint: Blueprint | None = None
    #: The blueprint of split layers; `job.model` then has this worker's parts in place of its tensors.
    split: SplitBlueprint | None = None
    #: Which worker holds which operator of the model.
    operators: OperatorBlueprint | None = None
    #: Whether some parameter got no gradient from the first batch.
    some_unused: bool = False
    #: What the parent's model begins from, where a process shares memory with it; it travels beside the assignment.
    initial: SharedTensors | None = None
    #: What the worker has to say once it is ready.
    note: str = ""

    @staticmethod
    def of(
        setup: Setup, number: int, job: Job, scratch: Path | None, deadline: float, resume_point: ResumePoint
    ) -> Assignment:
        """Return the assignment of a worker, whose job may have a part of the model."""
        data = None if isinstance(setup.source, TensorSource) else setup.job.data
        return Assignment(
            number, job.with_(data=None, test=None), setup.plan, setup.agenda, setup.probe.moving, setup.placement,
            data, len(setup.source), setup.initial_sha256, scratch, deadline, resume_point,
            setup.blueprint, setup.split, setup.operators, setup.probe.some_unused,
        )  # fmt: skip

    def open_data(self, tensors: SharedTensors | None) -> Source:
        """Open the data: shared tensors, or what the assignment has. A stream's samples have been counted before."""
        if tensors is not None:
            return TensorSource(tensors.open())
        return open_source(self.data, self.job.seed, length=self.samples)

    def reader(self, source: Source, repeats: bool = False) -> Reader:
        """Return what reads this worker's chunks; `repeats`: it may read a chunk again."""
        job = self.job
        order = Order(self.samples, job.seed, job.shuffle, self.agenda.cuts)
        return Reader(source, order, job.num_workers, die_with_parent, repeats)

    def pack(self) -> bytes:
        """Pickle the assignment; JobError if something in the job belongs to this process only."""
        try:
            pickled: bytes = pack(self)
        except Exception as error:
            raise JobError(
                f"the job cannot be sent to another process: {error}. Something in its model, loss, optimizer or data "
                "belongs to this process only (an open file, a lock, a generator); make it inside a function"
            ) from error
        return pickled
