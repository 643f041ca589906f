"""The virtual engine: the same algorithms on a simulated clock (discrete-event simulation).

clock.py        runs events in the order of their times
world.py        the speeds of workers, the network, the deaths
simulate.py     runs a plan in a world, in time only or with real arithmetic
synchronous.py  methods without a server
server.py       methods with a server
server_links.py whose link a message to a server, or from one, waits for
pipeline.py     methods whose workers hold stages
exchange.py     the time that a collective takes
rows.py         where rows go: into a trace, or into totals
"""

from paceline.algorithms.server.explore import explore
from paceline.runtime.engines.virtual.simulate import simulate, simulate_totals, train
from paceline.runtime.engines.virtual.world import World

__all__ = ["World", "explore", "simulate", "simulate_totals", "train"]
