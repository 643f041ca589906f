"""What a worker process is told, and its account of what it failed with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns as now

from paceline.core.agenda import Agenda
from paceline.engines.devices import Placement
from paceline.engines.local.state_buffers import ResumePoint
from paceline.errors import NotFinite, PacelineError, WaitedTooLong
from paceline.errors.failure import Place, users_traceback
from paceline.jobs.job import Job
from paceline.plans.plan import Plan
from paceline.stages.segment import Blueprint


@dataclass
class Assignment:
    """What a worker is told. Pickled with cloudpickle, so functions of a notebook travel too."""

    number: int
    job: Job  # without its data
    plan: Plan
    agenda: Agenda
    moving: tuple[str, ...]
    placement: Placement
    data: object  # a Dataset or a function that makes one; None when the data are shared tensors
    samples: int
    initial_sha256: str
    scratch: Path | None  # a folder that the parent takes away at the end
    deadline: float
    life: ResumePoint
    blueprint: Blueprint | None = None  # of a pipeline; `job.model` is then a skeleton with what this worker holds


@dataclass
class FailureReport:
    """Of what a worker failed with."""

    what: str
    place: Place
    traceback: str
    advice: str
    waited_for: str
    alone: bool  # it says all there is to say
    when: int

    @staticmethod
    def of(error: BaseException, place: Place) -> FailureReport:
        what, advice = f"{type(error).__name__}: {error}".rstrip(": "), ""
        if not isinstance(error, PacelineError):
            what = what.splitlines()[0]  # the traceback has it all
        if isinstance(error, NotFinite):
            what, advice = f"the loss is {error.loss}", error.REMEDY
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            advice = "memory has run out: a smaller batch_size, or fewer workers"
        return FailureReport(
            what=what,
            place=place,
            traceback="" if isinstance(error, PacelineError) else users_traceback(error),
            advice=advice,
            waited_for=error.for_whom if isinstance(error, WaitedTooLong) else "",
            alone=isinstance(error, WaitedTooLong),
            when=now(),
        )
