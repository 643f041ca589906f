"""A network for the machines of a cluster: it loses, doubles, delays and cuts; processes die, pause, restart and join.

    fault = History(Scenario.draw(seed)).run()      # None: every promise held

promises    what happens in a history, drawn from its seed; what is checked after every step, and at the end
cluster     the processes and what their machines ask for; the clock, and the messages that are under way
history     one history, and what goes wrong in it

Everything is drawn from the seed, so a history that breaks a promise can be told again, step by step.
"""

from paceline.algorithms.cluster.explore import Machines
from paceline.runtime.engines.virtual.network.history import History, first_fault
from paceline.runtime.engines.virtual.network.promises import Scenario

__all__ = ["History", "Machines", "Scenario", "first_fault"]
