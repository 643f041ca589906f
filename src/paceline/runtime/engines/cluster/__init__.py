"""The cluster engine: a plan on the processes of several machines, any of which may die.

    roster.py          which node this process is, as a launcher says, and where rank 0 listens
    rendezvous.py      how nodes meet at the head, and see that they would train the same (terms.py)
    engine.py          a run, as each node sees it: node.py, head_node.py for the head, other_node.py for the others
    agent.py           a node's agent: its worker (children.py), and what passes between the worker and the head
    seat.py            who leads, as a node knows it; leadership.py, the head's part in it; second_home.py, what its
                       deputy has; successor.py, what the next head begins with, and a node that comes back
    group_head.py      the head of a plan without servers: the group, the result; with servers, servers/server_head.py
    remote_workers.py  what the head knows of the workers, and of all processes
    control.py         the messages between agents and the head
    group_client.py    a worker's side of its group; surviving.py, collectives that are made again when it changes
    worker.py          a worker and its process: the replica and the walks of the local engine
    servers/           plans with servers: the desk, shard servers, their workers
    run_spec.py        what a node gets from the head where no launcher has given it the job
    ray_nodes.py       the roster `ray`, which starts and ends the actors in which ray_agent.py runs; ray_session.py
                       and ray_watch.py, the connection to Ray

docs/internals/cluster.md has the design.
"""

from paceline.runtime.engines.cluster.roster import (
    NodeOptions,
    Roster,
    check,
    credentials,
    nodes,
    refuse_torchrun,
    roster,
)

__all__ = ["NodeOptions", "Roster", "check", "credentials", "nodes", "refuse_torchrun", "roster"]
