"""The virtual engine: the same algorithms on a clock that jumps.

clock.py     what happens next, and when
world.py     the workers' speeds, the network, the faults
simulate.py  a plan in a world, in time only or with real arithmetic
"""

from paceline.core.server.explore import explore
from paceline.engines.virtual.simulate import simulate, train
from paceline.engines.virtual.world import World

__all__ = ["World", "explore", "simulate", "train"]
