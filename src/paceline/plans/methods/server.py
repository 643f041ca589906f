"""Methods with a server: a desk leases batches to workers, and a gate decides which workers may continue.

The desk is the same for all of them (`core.server`); they differ in what is pushed to a shard and in how the shard
applies it. If a worker dies, its batch is leased again to another one. Each names the parts that engines build it of:

    gate      decides which worker may begin a batch
    rule      applies what arrives at a shard
    shards    parts of the parameters, each under a lock of its own
    machine   makes the state machine that answers the pushes to a shard
    slots     decides which versions of a shard are in memory at once
    program   is what a worker does: the commands that it gives to the desk and the shards
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from paceline.core.rules import Exchanging, Rule
from paceline.core.rules.ad_psgd import AdPsgd
from paceline.core.rules.plain import Plain
from paceline.core.server.gates import Gate
from paceline.core.server.gates.asynchronous import Asynchronous
from paceline.core.server.gathering import Gathering
from paceline.core.server.shard import Shard
from paceline.core.server.version_slots import ReplicaSlots, VersionSlots
from paceline.core.server.worker import push_every_batch, push_in_rounds
from paceline.plans.methods import Division, Traits


def gate_proved_apart(method: object, workers: int) -> None:
    """Do nothing: a gate is proved by every interleaving (`core.server.explore`), which takes too long for a start."""


@dataclass(frozen=True)
class ParameterServer:
    """Gradients arrive at shards, whose rule and optimizer apply each at once, however old it is."""

    gate: Gate = field(default_factory=Asynchronous)
    rule: Rule = field(default_factory=Plain)
    shards: int = 1

    slots, machine = VersionSlots, Shard
    program = staticmethod(push_every_batch)
    prove = gate_proved_apart

    @property
    def traits(self) -> Traits:
        return Traits(
            keeps_step=False,
            optimizer_at_server=True,
            takes_sparse=isinstance(self.rule, Plain),
            shares_parameters=True,
        )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)

    def with_shards(self, shards: int) -> ParameterServer:
        """The same method with as many shards as the model has parameters for."""
        return replace(self, shards=shards)


@dataclass(frozen=True)
class GatheringServer:
    """A shard sums the first `gathers` gradients of a version, then applies them as one (backup workers)."""

    gate: Gate
    gathers: int

    shards, slots = 1, VersionSlots
    program = staticmethod(push_in_rounds)
    rule = Plain()
    prove = gate_proved_apart
    traits = Traits(
        keeps_step=False,
        optimizer_at_server=True,
        shares_parameters=True,
        gathers=True,
        repeats=True,
        needs_train="computes late batches again, and only your loop has them",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(self.gathers, shares=self.gathers, results=0)

    def machine(self, workers: int, ghosts: int = 0) -> Gathering:
        return Gathering(workers, self.gathers)


@dataclass(frozen=True)
class CentreServer:
    """A worker steps a replica of its own, then exchanges it with a centre that all share."""

    exchange: Exchanging
    gate: Gate = field(default_factory=Asynchronous)

    shards, slots, machine = 1, VersionSlots, Shard
    program = staticmethod(push_every_batch)
    prove = gate_proved_apart

    @property
    def rule(self) -> Exchanging:
        return self.exchange

    @property
    def traits(self) -> Traits:
        parts = "shares out parts of the data, and only your loop has them" if self.exchange.parts else ""
        return Traits(keeps_step=False, needs_train=parts)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, block=self.exchange.every, data_parts=self.exchange.parts, results=0)


@dataclass(frozen=True)
class PairwiseGossip:
    """A worker averages its replica with one neighbour's before each of its steps (AD-PSGD)."""

    pairing: AdPsgd
    gate: Gate = field(default_factory=Asynchronous)

    shards, slots, machine = 1, ReplicaSlots, Shard
    program = staticmethod(push_every_batch)
    rule = Plain()
    prove = gate_proved_apart
    traits = Traits(keeps_step=False, shares_parameters=True)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)


@dataclass(frozen=True)
class Hogwild:
    """All workers write into the same parameters without locks: there are no versions, and no order to replay."""

    gate: Gate = field(default_factory=Asynchronous)

    shards, slots, machine = 1, VersionSlots, Shard
    program = staticmethod(push_every_batch)
    rule = Plain()
    prove = gate_proved_apart
    traits = Traits(
        keeps_step=False,
        takes_sparse=True,
        shares_parameters=True,
        versioned=False,
        not_replayable="without locks its updates have no order",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)


def gathered_by(method: object) -> int:
    """Return how many pushes make an update; 0 where every push makes one."""
    return method.gathers if isinstance(method, GatheringServer) else 0


#: Methods whose servers may be processes of their own, on a cluster.
Served = ParameterServer | GatheringServer | CentreServer
Server = ParameterServer | GatheringServer | CentreServer | PairwiseGossip | Hogwild
