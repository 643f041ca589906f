"""Sixteen workers, one of them four times slower, on a simulated clock: what asynchrony gains and costs."""

import paceline
from paceline.core.agenda import Agenda
from paceline.engines.virtual import explore, simulate

world = paceline.World(speeds=(0.25,), latency=50e-6, straggle=(0.02, 5.0), seed=1)

for plan, parts in ((paceline.Ring(workers=16), 16), (paceline.Downpour(workers=16), 1)):
    trace = simulate(plan, Agenda(samples=60_000, batch_size=1600 // (16 // parts), epochs=1, parts=parts), world)
    seconds, stale = trace.rows["end"].max() / 1e9, trace.staleness()
    print(f"{plan.name:9} {60_000 / seconds:10,.0f} samples/s, staleness up to {stale.max()}")

print(explore(workers=2, batches=3, shards=2, deaths=1))
