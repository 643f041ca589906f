# %% [markdown]
# # A slow machine among fast ones
#
# Sixteen workers share a training, and one of them is four times slower than the others. A synchronous plan waits for
# it in every update. An asynchronous plan does not, and pays with staleness. Both can be tried without sixteen
# machines: the virtual engine runs the same algorithms on a simulated clock.

# %%
import paceline
from paceline.algorithms.agenda import Agenda
from paceline.runtime.engines.virtual import simulate

world = paceline.World(speeds=(0.25,), latency=50e-6, straggle=(0.02, 5.0), seed=1)

# %% [markdown]
# `speeds` makes worker 0 slow, and `straggle` lets two in a hundred computations of any worker take five times as long.
# An `Agenda` says how many samples there are and how they are divided into batches: under `ring` all workers share a
# batch of 1,600, and under `downpour` each computes batches of 100 of its own.


# %%
def simulated(plan: paceline.Plan, parts: int) -> str:
    agenda = Agenda(samples=60_000, batch_size=100 * parts, epochs=1, parts=parts)
    trace = simulate(plan, agenda, world)
    seconds = trace.rows["end"].max() / 1e9
    return f"{plan.name:9} {60_000 / seconds:10,.0f} samples/s, staleness up to {trace.staleness().max()}"


print(simulated(paceline.Ring(workers=16), parts=16))
print(simulated(paceline.Downpour(workers=16), parts=1))

# %% [markdown]
# Two plans lie between the extremes. `ssp` bounds how many batches the fastest worker may be ahead of the slowest one,
# and `backup` has more workers than it needs and uses the gradients that arrive first.

# %%
print(simulated(paceline.Ssp(workers=16, bound=3), parts=1))
print(simulated(paceline.Backup(workers=16, backups=2), parts=14))

# %% [markdown]
# The figures depend on the simulated world alone, so they are the same on every machine. For a job of your own, with
# the speed of your own machine, use `paceline simulate JOB --plan ssp --workers 16`; for real machines whose speeds
# differ, describe them in a `cluster.toml` and ask [the planner](../docs/internals/planner.md).
