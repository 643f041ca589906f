"""The actor that is the agent of a node.

Ray imports this module by its name on every node; nothing of the user's script is needed there, since the job comes as
bytes. It lies outside `cluster`, which imports PyTorch: the actor first starts the server of its processes, so that
both import PyTorch at the same time.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING, NamedTuple

from paceline.runtime.engines.workers.process import prepare

if TYPE_CHECKING:
    from paceline.runtime.engines.cluster.ray_agent import AgentEnd
    from paceline.runtime.engines.cluster.roster import Roster

#: Seconds in which the driver takes what an agent returns, and then ends its process.
LINGER = 5.0


class Machine(NamedTuple):
    """A machine of the cluster, as Ray sees it."""

    #: Ray's identifier, which no other machine ever gets.
    name: str
    #: Where its raylet listens.
    host: str
    port: int


def this_machine() -> Machine:
    """Return the machine that this process is on, which is connected to Ray."""
    import ray

    name = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == name)
    return Machine(name, node["NodeManagerAddress"], node["NodeManagerPort"])


class RayAgent:
    """One node's agent."""

    def __init__(self) -> None:
        end_with_parent()
        prepare()

    def machine(self) -> Machine:
        """Return the machine that the agent is on."""
        return this_machine()

    def run(self, spec: bytes, roster: Roster) -> AgentEnd:
        """Train this node's part, and return how that has ended.

        Ray keeps the process of an actor for a minute if its driver or the head of the cluster has ended.
        """
        from paceline.runtime.engines.cluster import ray_agent

        end = ray_agent.run(spec, roster)
        timer = threading.Timer(LINGER, os._exit, [0])
        timer.daemon = True
        timer.start()
        return end


def end_with_parent() -> None:
    """End this process as soon as its raylet has ended, so that the sockets of its peers tell them.

    Ray would end it after a second. Linux can kill it, but would also do so if only the thread of the raylet had ended
    that has started it.
    """
    try:
        raylet = os.pidfd_open(os.getppid())
    except OSError:
        return  # a sandbox may forbid it

    def wait() -> None:
        select.select([raylet], [], [])
        os._exit(1)

    threading.Thread(target=wait, name="paceline-raylet", daemon=True).start()
