"""AllReduce: all workers add their gradients up in every update, then each makes the same step.

worker                                            its peers
──────                                            ─────────
1 compute its chunks of the batch                 the same
2 encode the gradient, if the plan has a codec
3 write it into the payload of this update
4 walk the collective's table ◀───────────────▶   the same table, their rows
5 read the sum
6 divide by the weight, clip, take the buffers
7 the user's optimizer makes the step             the same step, bit for bit

Where generated code computes, it does all of this for many updates in one call (`legs`).
"""

from __future__ import annotations

from time import perf_counter_ns as now

from paceline.core.rules import Arrival
from paceline.core.rules.plain import Plain
from paceline.engines.local.methods.legs import legs_of
from paceline.engines.local.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.plans.methods.all_reduce import AllReduce


def all_reduce(runner: PlanRunner, method: AllReduce) -> Walk:
    """Add gradients up in every update, then make the same step on every worker."""
    store, rule = runner.local_store(), Plain()
    state, reduction = runner.resume(store), runner.group.sums(method.collective, runner.encoder)
    legs, ahead = legs_of(runner, store, reduction), runner.updates_ahead()
    while ahead:
        made = legs.make(ahead, store.updates) if legs else ahead[:0]
        if made:
            assert legs is not None
            store.schedule.hear(*legs.means)
        else:
            update, made = ahead[0], ahead[:1]
            computed = yield GradientRequest(update, runner.group.chunks(update), update)  # 1
            if computed is None:
                break
            start = now()
            whole, waited, sent = reduction.all_reduce(update, computed)  # 2, 3, 4, 5
            runner.exchanged(update, start, waited, sent)
            start, base = now(), store.updates
            rule.update(store, Arrival(runner.learner.settle(whole)))  # 6, 7
            store.schedule.hear(whole.mean)
            runner.applied(update, base, store.updates, start)
        if runner.group.leads:
            runner.snapshot(made[-1] + 1, runner.values)
        runner.state_writer.in_step(made[0], made[-1] + 1, state)
        ahead = ahead[len(made) :]
    runner.write_result(runner.values())
