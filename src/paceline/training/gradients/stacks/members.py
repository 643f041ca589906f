"""The members of a stack: jobs of one shape on the same samples, each with its own module and order of samples."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.algorithms.agenda import Agenda
from paceline.training.data.order import Order
from paceline.training.data.source import TensorSource
from paceline.training.jobs.job import Job


class Members:
    """Members that have all made the same number of updates; a stack says how they are trained."""

    def __init__(self, jobs: Sequence[Job], source: TensorSource, agenda: Agenda) -> None:
        self.x, self.y = source.tensors
        self.agenda = agenda
        #: Updates that every member has made.
        self.updates = 0
        self.jobs = list(jobs)
        self.modules = [job.make_model().train() for job in jobs]
        self.orders = [Order(len(source), job.seed, job.shuffle) for job in jobs]

    def choose(self, places: Sequence[int]) -> None:
        """Keep only the members at these places."""
        self.jobs = [self.jobs[place] for place in places]
        self.modules = [self.modules[place] for place in places]
        self.orders = [self.orders[place] for place in places]
