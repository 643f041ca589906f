"""The virtual engine: the same algorithms on a simulated clock (discrete-event simulation).

simulate.py     runs a plan in a world, in time only or with real arithmetic
world.py        the clock, the speeds of workers, the network, the time that a collective takes, the deaths
lockstep.py     methods without a server
server.py       methods with a server
pipeline.py     methods whose workers hold stages; splits.py, parts of layers; dataflow.py, operators
rows.py         where rows go: into a trace, or into totals
network/        a network for the machines of a cluster, which loses, delays and cuts
"""

from paceline.algorithms.server.explore import explore
from paceline.runtime.engines.virtual.simulate import simulate, simulate_totals, train
from paceline.runtime.engines.virtual.world import World

__all__ = ["World", "explore", "simulate", "simulate_totals", "train"]
