"""What a worker will probably compute next, for loader processes to read ahead.

Where the plan fixes what each worker computes, that is announced once. Where a desk leases batches as workers ask for
them, it is a forecast (`core.forecast`), made again at each lease; a wrong one costs time and never changes a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from paceline.core.agenda import Agenda, Chunk
from paceline.core.forecast import Forecast
from paceline.data.source import Reader
from paceline.engines.local.methods.runner import PlanRunner
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.native import NativeDdp


class ReadAhead:
    def __init__(self, reader: Reader, runner: PlanRunner) -> None:
        self.reader, self.agenda, self.lease = reader, runner.agenda, -1
        self.forecast: Forecast | None = None
        if (desk := runner.arena.desk) is None:
            reader.announce(_known(runner))
            return
        given_out = desk.desk.given_out(desk.integers.current)  # in an earlier part of the run
        self.forecast = Forecast(given_out + runner.number, runner.plan.workers, self.agenda.leases)
        reader.announce(_chunks(self.agenda, self.forecast.coming()))

    def asked(self, task: int) -> None:
        """The worker computes a task; the first one of a lease makes a new forecast."""
        if self.forecast is None or (lease := self.agenda.lease(task)) == self.lease:
            return
        self.lease = lease
        self.forecast.leased(lease)
        self.reader.announce(_chunks(self.agenda, itertools.chain([lease], self.forecast.coming())))


def ddp_chunks(agenda: Agenda, update: int, worker: int) -> list[Chunk]:
    """A worker's chunks under DDP: at least one, since every rank communicates in each backward."""
    return agenda.mine(update, worker) or agenda.filled(update)[:1]


def _known(runner: PlanRunner) -> Iterator[Chunk]:
    """The chunks of a worker whose plan leaves no choice."""
    agenda, number = runner.agenda, runner.number
    if isinstance(runner.plan.method, Alone):
        return (c for u in runner.updates_ahead(number, runner.plan.workers) for c in agenda.filled(u))
    if isinstance(runner.plan.method, NativeDdp):
        return (c for u in runner.updates_ahead() for c in ddp_chunks(agenda, u, number))
    return (c for u in runner.updates_ahead() for c in agenda.mine(u, number))


def _chunks(agenda: Agenda, leases: Iterable[int]) -> Iterator[Chunk]:
    return (c for lease in leases for task in agenda.tasks(lease) for c in agenda.task(task))
