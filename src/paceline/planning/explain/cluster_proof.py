"""The proof of a plan on several machines, which `paceline prove PLAN --machines N` prints.

Every interleaving of a small cluster is walked, for each kind of fault; then histories of as many machines as were
asked for are drawn from seeds, with many faults in each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.algorithms.cluster.explore import Machines, SmallCluster, explore
from paceline.errors import PlanError
from paceline.planning.explain.proving import Proved
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual.network import History, Scenario, first_fault

HISTORIES = 300
MOST_MACHINES = 64  # of a history, so that it takes seconds
#: What goes wrong in each of the small clusters, and with how many shards and backups.
FAULTS: dict[str, dict[str, Any]] = {
    "one message is lost and one comes twice": {"shards": 1, "losses": 1, "doubles": 1},
    "one process is killed": {"shards": 1, "kills": 1},
    "one process is taken for dead, and lives": {"shards": 1, "suspicions": 1},
    "one message is lost and one comes twice, without backups": {"backups": 0, "losses": 1, "doubles": 1},
}
PROMISES = [
    "each batch is applied exactly once to every shard",
    "no deadlock: from every state the workers finish when nothing more goes wrong",
    "with a backup, acknowledged pushes survive the failure of one server of a shard",
]


def prove_cluster(
    plan: Plan, machines: int, classes: Machines | None = None, say: Callable[[str], None] = lambda line: None
) -> Proved:
    """Prove that a plan keeps its promises on this number of machines, as far as worlds are small enough to walk.

    `say` is called with lines of text about the progress.
    """
    server, traits = plan.method.server, plan.traits
    if server is None or not (traits.optimizer_at_server and traits.whole_model) or traits.gathers:
        raise PlanError(
            f"--machines proves the protocol of plans with shard servers, and {plan} has none; "
            "use downpour, ssp or dc_asgd, or leave --machines out"
        )
    if not 2 <= machines <= MOST_MACHINES:
        raise PlanError(f"a proof on {machines} machines: give a number from 2 to {MOST_MACHINES}")
    says: list[str] = []
    worlds = moves = 0
    figures: dict[str, float] = {}
    for what, settings in FAULTS.items():
        say(f"walking every interleaving in which {what} ...")
        cluster = SmallCluster(gate=server.gate, **settings)
        exploration = explore(cluster, classes)
        worlds, moves = worlds + exploration.worlds, moves + exploration.moves
        figures = {"machines": machines, "states": worlds, "moves": moves}
        size = f"{_many(cluster.shards, 'shard')} with {_many(cluster.backups, 'backup')}"
        says.append(
            f"every interleaving of {cluster.workers} workers, {size} and {cluster.batches} batches, in which {what}: "
            f"{exploration.worlds:,} states, {exploration.moves:,} moves"
        )
        if exploration.story is not None:
            return Proved(str(plan), False, [*says, *exploration.story.splitlines()], figures)
    say(f"drawing {HISTORIES} histories of {machines} machines ...")
    drawn: dict[str, Any] = {"nodes": machines, "workers": machines, "gate": server.gate}
    fault = first_fault(range(HISTORIES), classes, **drawn)
    if fault is not None:
        history = History(Scenario.draw(fault[0], **drawn), classes, log=True)
        history.run()
        return Proved(str(plan), False, [*says, *history.log().splitlines()], figures)
    says.append(
        f"{HISTORIES} histories of {machines} machines from seeds, with up to 8 faults each on a network that loses, "
        "doubles, delays and cuts: no promise is broken"
    )
    limits = "in small clusters connections keep their order, and timers fire when no message is under way"
    return Proved(
        str(plan),
        True,
        [*says, *PROMISES, f"{limits} (docs/internals/contract.md)"],
        {**figures, "histories": HISTORIES},
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
