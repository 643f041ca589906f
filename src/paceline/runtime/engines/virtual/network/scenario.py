"""What happens in a history, apart from the chance of every message. Drawn from a seed, or written by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.algorithms.cluster.shard import LOG_LIMIT
from paceline.algorithms.server.gates import Asynchronous, Gate, StaleSynchronous

FAULTS = (
    "kill worker", "pause worker", "kill server", "pause server", "kill machine", "pause machine", "pause several",
    "kill desk", "replace desk", "pause desk", "cut", "deafen", "cut from desk", "part servers", "part worker", "join",
    "hint",
)  # fmt: skip
BATCH_SECONDS = 0.4  # about what a worker needs for a batch
GATES = (Asynchronous(), Asynchronous(), StaleSynchronous(0), StaleSynchronous(1), StaleSynchronous(3))


@dataclass(frozen=True)
class Scenario:
    """The size of a cluster, what its network does to messages, and what goes wrong when."""

    seed: int
    nodes: int = 3
    workers: int = 3
    shards: int = 2
    backups: int = 1
    spares: int = 1
    batches: int = 16
    gate: Gate = field(default_factory=Asynchronous)
    #: Chances that a message is lost, or comes twice.
    loss: float = 0.0
    double: float = 0.0
    #: The chance that it comes up to 5 seconds late.
    late: float = 0.0
    #: When, and what: each is one of `FAULTS`.
    faults: tuple[tuple[float, str], ...] = ()
    #: A server is hurt only while its shard is fully replicated.
    gentle: bool = True
    #: The history goes on until every shard has all its copies again.
    lasting: bool = False
    #: Entries that a primary keeps for a spare.
    log_limit: int = LOG_LIMIT
    #: Batches that are leased at once.
    block: int = 1
    #: Pushes of a round, after which parameters change; 0 if each changes them.
    gathers: int = 0

    @staticmethod
    def draw(
        seed: int,
        nodes: int | None = None,
        workers: int | None = None,
        shards: int | None = None,
        backups: int | None = None,
        gate: Gate | None = None,
        lasting: bool | None = None,
        most: int = 8,
        gathers: int | None = None,
    ) -> Scenario:
        """Draw a scenario with up to `most` faults; most scenarios are gentle."""
        chance = random.Random(seed)
        nodes, teams, batches = (
            chance.choice((2, 3, 3, 4)),
            chance.choice((1, 2, 2, 3, 3, 4)),
            chance.choice((6, 12, 16)),
        )
        drawn = Scenario(
            seed,
            nodes,
            teams,
            chance.choice((1, 1, 2, 2, 3)),
            chance.choice((0, 1, 1, 1, 1, 2, 2)),
            chance.choice((0, 1, 1, 2)),
            batches,
            chance.choice(GATES),
            loss=chance.choice((0.0, 0.02, 0.1)),
            double=chance.choice((0.0, 0.05)),
            late=chance.choice((0.0, 0.02, 0.1)),
            faults=_draw_faults(chance, most, 1.0 + BATCH_SECONDS * batches / (workers or teams)),
            gentle=chance.random() < 0.6,
            lasting=chance.random() < 0.1,
            log_limit=chance.choice((2, LOG_LIMIT)),
            block=chance.choice((1, 1, 2, 5)),
        )
        fixed: dict[str, Any] = {
            "nodes": nodes,
            "workers": workers,
            "shards": shards,
            "backups": backups,
            "gate": gate,
            "lasting": lasting,
            "gathers": gathers,
            "block": 1 if gathers else None,
        }
        return replace(drawn, **{name: value for name, value in fixed.items() if value is not None})


def _draw_faults(chance: random.Random, most: int, span: float) -> tuple[tuple[float, str], ...]:
    """Draw faults of a few kinds or of all, each soon after another or anywhere in the first seconds.

    Where few kinds come often, they meet each other in ways that they never would among all kinds.
    """
    kinds = chance.sample(FAULTS, chance.choice((2, 3, 4))) if chance.random() < 0.6 else FAULTS
    faults, when = [], 0.0
    for _ in range(chance.randrange(most + 1)):
        soon = chance.random() < 0.6
        when = when + chance.expovariate(1.5) if soon else chance.uniform(0.0, span)
        faults.append((when, chance.choice(kinds)))
    return tuple(sorted(faults))
