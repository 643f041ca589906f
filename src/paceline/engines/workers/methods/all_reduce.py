"""AllReduce: the workers' gradients are summed in every update, then each worker makes the same step.

worker                                            its peers
──────                                            ─────────
1 compute its chunks of the batch                 the same
2 encode the gradient, if the plan has a codec
3 write it into the payload of this update
4 walk the collective's table ◀───────────────▶   the same table, their rows
5 read the sum
6 divide by the weight, clip, take the buffers
7 the user's optimizer makes the step             the same step, bit for bit

Where generated code computes, it does all of this for many updates in one call (`native_updates`).
"""

from __future__ import annotations

from time import perf_counter_ns as now

from paceline.engines.workers.methods.native_updates import native_updates
from paceline.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.engines.workers.methods.updates import Update, make_updates, step
from paceline.plans.methods.all_reduce import AllReduce


def all_reduce(runner: PlanRunner, method: AllReduce) -> Walk:
    """Sum gradients in every update, then make the same step on every worker."""
    store = runner.local_store()
    state, reduction = runner.resume(store), runner.group.sums(method.collective, runner.encoder)

    def make(update: int) -> Update:
        computed = yield GradientRequest(update, runner.group.chunks(update), update)  # 1
        if computed is None:
            return False
        start = now()
        whole, waited, sent = reduction.all_reduce(update, computed)  # 2, 3, 4, 5
        runner.exchanged(update, start, waited, sent)
        step(runner, store, update, whole)  # 6, 7
        return True

    return make_updates(runner, store, state, runner.updates_ahead(), native_updates(runner, store, reduction), make)
