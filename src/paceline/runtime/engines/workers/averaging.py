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
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns as now
from typing import Any

from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import BeginExchange, EndExchange, Exchange, Offer, Step
from paceline.runtime.engines.workers.collectives import Means, NeighbourMixing
from paceline.runtime.engines.workers.methods.native_updates import native_updates
from paceline.runtime.engines.workers.methods.runner import PlanRunner
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.replicas import AveragingReplica
from paceline.training.parameters.worker_state import WorkerState, state_of_tensors

ARRIVED, BUFFERS, SENT = "arrived", "arrived_buffers", "arrived_bytes"  # in checkpoints


class _Flight:
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


class AveragingAnswers:
    """Steps of a replica, and its exchanges with those of other workers."""

    def __init__(self, runner: PlanRunner, method: Synchronous) -> None:
        self.runner, rule, collective = runner, method.averaging, method.collective
        assert rule is not None
        assert collective is not None
        store = runner.local_store(rule)
        self.replica = AveragingReplica(runner.learner, store, rule, runner.fragments)
        self.result, self._state_of_replica = self.replica.result, runner.resume(store)
        self.means: Means = (
            runner.group.mixing(collective)
            if isinstance(collective, Neighbours)
            else runner.group.sums(collective, runner.encoder)
        )
        self.native = None if rule.mixes_first else native_updates(runner, store)
        self.answers: dict[type, Callable[..., Any]] = {
            Step: partial(runner.step, self.replica),
            Offer: self.offer,
            Exchange: self.exchange,
            BeginExchange: self.begin,
            EndExchange: self.end,
        }
        self._flight: _Flight | None = None
        #: The mean of the exchange under way and the bytes that were sent for it, once it has ended.
        self._arrived: tuple[GradientSum, int] | None = None
        checkpoint = runner.state_writer.found
        if checkpoint is not None and SENT in checkpoint.facts:
            mean = GradientSum(list(checkpoint.many(ARRIVED)), checkpoint.many(BUFFERS), 0.0, 1.0, 1)
            self._arrived = mean, checkpoint.facts[SENT]

    def generated(self, losses: Sequence[float]) -> None:
        """Do nothing: a replica's own losses say little of the model that all replicas make together."""

    def offer(self, exchange: int) -> None:
        # What a worker contributes is known before its gradient, unless computing that changes batch-norm's
        # statistics. On a cluster the group may change in between.
        if isinstance(self.means, NeighbourMixing) and not self.runner.replica.moving:
            self.means.offer(exchange, self._contribution(exchange))

    def exchange(self, exchange: int, update: int) -> None:
        start = now()
        mean, waited, sent = self.means.mean(exchange, self._contribution(exchange))
        self.replica.apply_mean(exchange, mean)
        self.runner.exchanged(update, start, waited, sent)

    def begin(self, exchange: int, update: int) -> None:
        self._flight = _Flight(self.means, exchange, self._contribution(exchange))

    def end(self, exchange: int, update: int) -> None:
        start = now()
        mean, sent = self._wait()
        waited = now() - start
        self.replica.apply_mean(exchange, mean, late=True)
        self.runner.exchanged(update, start, waited, sent)
        self._flight = self._arrived = None

    def state(self) -> WorkerState:
        """Return what a checkpoint keeps: the replica and, when it has ended, the exchange under way."""
        state = self._state_of_replica()
        if self._flight is None and self._arrived is None:
            return state
        mean, sent = self._wait()
        gradients = [gradient for gradient in mean.gradients if gradient is not None]
        tensors = state_of_tensors(ARRIVED, gradients) | state_of_tensors(BUFFERS, mean.buffers)
        return state | tensors | WorkerState(facts={SENT: sent})

    def _contribution(self, exchange: int) -> GradientSum:
        return self.replica.contribution(exchange, self.runner.number)

    def _wait(self) -> tuple[GradientSum, int]:
        if self._arrived is None:
            assert self._flight is not None
            self._arrived = self._flight.end()
        return self._arrived
