"""The updates of workers that step their own parameters: as many as possible in one native call, others one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter_ns as now

from paceline.core.rules import Arrival
from paceline.core.rules.plain import Plain
from paceline.engines.workers.methods.native_updates import NativeUpdates
from paceline.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.gradients.payload import GradientSum
from paceline.parameters.store import LocalStore
from paceline.parameters.worker_state import WorkerState

#: One update: it requests a gradient, and returns whether it got one.
Update = Generator[GradientRequest, GradientSum | None, bool]


def make_updates(
    runner: PlanRunner, store: LocalStore, state: Callable[[], WorkerState], ahead: range, native: NativeUpdates | None,
    make: Callable[[int], Update],
) -> Walk:  # fmt: skip
    """Make the updates `ahead`, each by `make` where `native` does not make several at once."""
    while ahead:
        made = native.make(ahead, store.updates) if native else ahead[:0]
        if native and made:
            store.schedule.hear(*native.means)
        elif (yield from make(ahead[0])):
            made = ahead[:1]
        else:
            break
        if runner.group.leads:
            runner.snapshot(made[-1] + 1, runner.values)
        runner.state_writer.in_step(made[0], made[-1] + ahead.step, state)
        ahead = ahead[len(made) :]
    runner.write_result(runner.values())


def step(runner: PlanRunner, store: LocalStore, update: int, computed: GradientSum) -> None:
    """Step the worker's own parameters by the gradient of a whole batch."""
    start, base = now(), store.updates
    Plain().update(store, Arrival(runner.learner.settle(computed)))
    store.schedule.hear(computed.mean)
    runner.applied(update, base, store.updates, start)
