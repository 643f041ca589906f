"""Reading ahead: loader processes read the batches that a worker will probably compute next.

Where the plan fixes what each worker computes, its chunks are announced once. Where a desk leases batches to workers
one after another, they are forecast (`algorithms.forecast`) at each lease. A wrong forecast costs time and never
changes a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from paceline.algorithms.agenda import Agenda, Chunk, Forecast
from paceline.runtime.engines.workers.methods.runner import PlanRunner
from paceline.training.data.source import Reader


class ReadAhead:
    """Announces to a worker's reader which chunks it will need."""

    def __init__(self, reader: Reader, runner: PlanRunner, given_out: int | None = None) -> None:
        """`given_out` is how many batches a desk has leased so far; None where the plan fixes what workers compute."""
        self.reader, self.agenda, self.lease = reader, runner.agenda, -1
        self.forecast: Forecast | None = None
        if not reader.ahead:
            return  # no loader processes: batches are read when they are asked for
        if given_out is None:
            reader.announce(_known(runner))
            return
        self.forecast = Forecast(given_out + runner.number, runner.plan.workers, self.agenda.leases)
        reader.announce(_chunks(self.agenda, self.forecast.coming()))

    def computing(self, task: int) -> None:
        """Make a new forecast if this task, which the worker is about to compute, is the first of a lease."""
        if self.forecast is None or (lease := self.agenda.lease(task)) == self.lease:
            return
        self.lease = lease
        self.forecast.leased(lease)
        self.reader.announce(_chunks(self.agenda, itertools.chain([lease], self.forecast.coming())))


def ddp_chunks(agenda: Agenda, update: int, worker: int) -> list[Chunk]:
    """Return a worker's chunks under DDP: at least one, since every rank communicates in each backward."""
    return agenda.mine(update, worker) or agenda.filled(update)[:1]


def _known(runner: PlanRunner) -> Iterator[Chunk]:
    """Yield the chunks of a worker whose plan fixes what it computes."""
    agenda, number = runner.agenda, runner.number
    if not runner.plan.traits.exchanges:
        return (c for u in runner.updates_ahead(number, runner.plan.workers) for c in agenda.filled(u))
    if not runner.plan.traits.traced:  # PyTorch's own code
        return (c for u in runner.updates_ahead() for c in ddp_chunks(agenda, u, number))
    return (c for u in runner.updates_ahead() for c in runner.group.coming(u) if c.samples)


def _chunks(agenda: Agenda, leases: Iterable[int]) -> Iterator[Chunk]:
    return (c for lease in leases for task in agenda.tasks(lease) for c in agenda.task(task))
