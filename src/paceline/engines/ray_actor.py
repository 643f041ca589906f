"""The actor that is the agent of a node.

Ray imports this module by its name on every node; nothing of the user's script is needed there, since the job comes as
bytes. It lies outside `cluster`, which imports PyTorch: the actor first starts the server of its processes, so that
both import PyTorch at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline.engines.local.forkserver import prepare

if TYPE_CHECKING:
    from paceline.engines.cluster.ray_agent import AgentEnd
    from paceline.engines.cluster.roster import Roster


class Machine(NamedTuple):
    """A machine of the cluster, as Ray sees it."""

    #: Ray's identifier, which no other machine ever gets.
    name: str
    #: Where its raylet listens.
    host: str
    port: int


class RayAgent:
    """One node's agent."""

    def __init__(self) -> None:
        prepare()

    def machine(self) -> Machine:
        """Return the machine that this process is on."""
        import ray

        name = ray.get_runtime_context().get_node_id()
        node = next(node for node in ray.nodes() if node["NodeID"] == name)  # type: ignore[no-untyped-call]
        return Machine(name, node["NodeManagerAddress"], node["NodeManagerPort"])

    def run(self, mission: bytes, roster: Roster) -> AgentEnd:
        """Train this node's part, and return how that has ended."""
        from paceline.engines.cluster import ray_agent

        return ray_agent.run(mission, roster)
