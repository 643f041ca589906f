"""The exchanges of a worker's replica with the others', some of which go on while the worker computes.

worker                                       thread
──────                                       ──────
after update u: what the replica contributes
begins an exchange ───────────────────────▶  the collective, made again if the group changes
updates u + 1 ... u + overlap
waits for the end  ◀───────────────────────  the mean
applies it after update u + overlap

When it is applied follows from the plan alone, so a run has the same bits however long exchanges take. A worker has at
most one under way. A checkpoint waits for it and keeps its mean, so a resumed run exchanges nothing twice.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns as now

from paceline.core.streaming import Streaming
from paceline.engines.workers.collectives import Means
from paceline.engines.workers.methods.runner import PlanRunner
from paceline.gradients.payload import GradientSum
from paceline.parameters.replicas import AveragingReplica
from paceline.parameters.worker_state import WorkerState, state_of_tensors

ARRIVED, BUFFERS, SENT = "arrived", "arrived_buffers", "arrived_bytes"  # in checkpoints


class Flight:
    """An exchange under way, in a thread of its own."""

    def __init__(self, means: Means, number: int, computed: GradientSum) -> None:
        self._means, self._number, self._computed = means, number, computed
        self._found: tuple[GradientSum, int] | None = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-exchange", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            mean, _, sent = self._means.mean(self._number, self._computed)
            self._found = mean, sent
        except BaseException as error:  # the worker raises it where it waits
            self._failed = error

    def end(self) -> tuple[GradientSum, int]:
        """Wait for the end; return (the mean, bytes sent)."""
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        assert self._found is not None
        return self._found


class Exchanges:
    """Makes the exchanges of one replica when they are due."""

    def __init__(self, runner: PlanRunner, streaming: Streaming, replica: AveragingReplica, means: Means) -> None:
        self.runner, self.streaming, self.replica, self.means = runner, streaming, replica, means
        start, self._updates = runner.resume_point.updates, runner.agenda.updates
        #: The number of the next exchange, and whether all replicas agree.
        self.number, self.together = streaming.before(start, self._updates), True
        self._flight: Flight | None = None
        #: The mean of the exchange under way and the bytes that were sent for it, once it has ended.
        self._arrived: tuple[GradientSum, int] | None = None
        if (found := runner.state_writer.found) is not None and streaming.under_way(start):
            mean = GradientSum(list(found.many(ARRIVED)), found.many(BUFFERS), 0.0, 1.0, 1)
            self._arrived = mean, found.facts[SENT]

    def after(self, update: int) -> None:
        """Apply and begin what is due after an update."""
        if self.streaming.lands(update, self._updates):
            self._land(update)
        due = self.streaming.after(update, self._updates)
        if due and self.streaming.overlaps(update, self._updates):
            self._flight = Flight(self.means, self.number, self.replica.contribution(self.number, self.runner.number))
            self.number += 1
        else:
            self.meet(update, due)
        self.together = due == self.streaming.fragments and self._flight is None

    def finish(self, update: int) -> None:
        """Bring all replicas together after an update that was the last, as no one could know before."""
        if not self.together:
            if self._flight is not None:
                self._land(update)
            self.meet(update, self.streaming.fragments)

    def meet(self, update: int, due: int) -> None:
        """Make so many exchanges after an update, and wait for each."""
        for number in range(self.number, self.number + due):
            start = now()
            mean, waited, sent = self.means.mean(number, self.replica.contribution(number, self.runner.number))
            self.replica.apply_mean(number, mean)
            self.runner.exchanged(update, start, waited, sent)
        self.number += due

    def state(self) -> WorkerState:
        """Return what a checkpoint keeps of an exchange under way, when that has ended."""
        if self._flight is None and self._arrived is None:
            return WorkerState()
        mean, sent = self._end()
        gradients = [gradient for gradient in mean.gradients if gradient is not None]
        kept = state_of_tensors(ARRIVED, gradients) | state_of_tensors(BUFFERS, mean.buffers)
        return kept | WorkerState(facts={SENT: sent})

    def _land(self, update: int) -> None:
        """Apply the exchange under way after an update."""
        start = now()
        mean, sent = self._end()
        waited = now() - start
        self.replica.apply_mean(self.number - 1, mean, late=True)
        self.runner.exchanged(update, start, waited, sent)
        self._flight = self._arrived = None

    def _end(self) -> tuple[GradientSum, int]:
        if self._arrived is None:
            assert self._flight is not None
            self._arrived = self._flight.end()
        return self._arrived
