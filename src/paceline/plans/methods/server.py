"""Methods with a server: a desk leases batches to workers, and a gate decides which workers may continue.

The desk is the same for all of them (`core.server`); they differ in what is pushed to a shard and in how the shard
applies it. If a worker dies, its batch is leased again to another one.
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
from paceline.plans.methods import Division, Traits


@dataclass(frozen=True)
class ParameterServer:
    """Gradients arrive at shards, whose rule and optimizer apply each at once, however old it is."""

    gate: Gate = field(default_factory=Asynchronous)
    rule: Rule = field(default_factory=Plain)
    shards: int = 1

    slots = VersionSlots

    @property
    def traits(self) -> Traits:
        return Traits(
            keeps_step=False,
            sends_gradients=True,
            optimizer_at_server=True,
            takes_sparse=isinstance(self.rule, Plain),
            shares_parameters=True,
        )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)

    def prove(self, workers: int) -> None:
        """Gates are proved by walking every interleaving (`core.server.explore`), which takes too long for a start."""

    def machine(self, workers: int, ghosts: int = 0) -> Shard:
        return Shard(workers, ghosts)

    def with_shards(self, shards: int) -> ParameterServer:
        """The same method with as many shards as the model has parameters for."""
        return replace(self, shards=shards)


@dataclass(frozen=True)
class GatheringServer:
    """A shard adds up the first `gathers` gradients of a version, then applies them as one (backup workers)."""

    gate: Gate
    gathers: int

    shards, slots = 1, VersionSlots
    rule = Plain()
    traits = Traits(
        keeps_step=False,
        sends_gradients=True,
        optimizer_at_server=True,
        shares_parameters=True,
        needs_train="computes late batches again, and only your loop has them",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(self.gathers, shares=self.gathers, results=0)

    def prove(self, workers: int) -> None:
        """See `ParameterServer.prove`."""

    def machine(self, workers: int, ghosts: int = 0) -> Gathering:
        return Gathering(workers, self.gathers)


@dataclass(frozen=True)
class CentreServer:
    """A worker steps a replica of its own, then exchanges it with a centre that all share."""

    exchange: Exchanging
    gate: Gate = field(default_factory=Asynchronous)

    shards, slots = 1, VersionSlots

    @property
    def rule(self) -> Exchanging:
        return self.exchange

    @property
    def traits(self) -> Traits:
        parts = "shares out parts of the data, and only your loop has them" if self.exchange.parts else ""
        return Traits(keeps_step=False, needs_train=parts)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, block=self.exchange.every, data_parts=self.exchange.parts, results=0)

    def prove(self, workers: int) -> None:
        """See `ParameterServer.prove`."""

    def machine(self, workers: int, ghosts: int = 0) -> Shard:
        return Shard(workers, ghosts)


@dataclass(frozen=True)
class PairwiseGossip:
    """A worker averages its replica with one neighbour's before each of its steps (AD-PSGD)."""

    pairing: AdPsgd
    gate: Gate = field(default_factory=Asynchronous)

    shards, slots = 1, ReplicaSlots
    rule = Plain()
    traits = Traits(keeps_step=False, shares_parameters=True)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)

    def prove(self, workers: int) -> None:
        """See `ParameterServer.prove`."""

    def machine(self, workers: int, ghosts: int = 0) -> Shard:
        return Shard(workers, ghosts)


@dataclass(frozen=True)
class Hogwild:
    """All workers write into the same parameters without locks: there are no versions, and no order to replay."""

    gate: Gate = field(default_factory=Asynchronous)

    shards, slots = 1, VersionSlots
    rule = Plain()
    traits = Traits(
        keeps_step=False,
        sends_gradients=True,
        takes_sparse=True,
        shares_parameters=True,
        not_replayable="without locks its updates have no order",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)

    def prove(self, workers: int) -> None:
        """See `ParameterServer.prove`."""

    def machine(self, workers: int, ghosts: int = 0) -> Shard:
        return Shard(workers, ghosts)


Server = ParameterServer | GatheringServer | CentreServer | PairwiseGossip | Hogwild
