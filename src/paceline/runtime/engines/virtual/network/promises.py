"""What happens in a history, drawn from a seed, and what is checked after every step of it and at the end.

- A server applies each version once, in order, and no batch twice.
- What a backup confirms is what its primary has, batch by batch.
- A server that becomes a primary has every push whose acknowledgement the desk still trusts: what is missing was
  declared lost, so that it is computed again.
- What a primary shows to a worker is on every backup of its view, so that no failure of the primary loses it.
- A gradient is applied by a primary that has had the parameters which it was computed from.
- It has every acknowledged push, whatever the desk knows, as long as each shard lost one server at most between two
  completed re-replications (`Scenario.gentle`).
- The trace of a history that has lost nothing says from which versions every gradient was computed, and a replay
  computes it from these, and owes before it what the worker's codec did.
- A batch that all shards had acknowledged, and that one has lost, is computed again; by its end the run has said so.
- The history ends with every batch in every shard.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.algorithms.cluster.messages import NONE, Process, Pulled, Pushed, Replicated, Role
from paceline.algorithms.cluster.outputs import Again, Apply, Changed
from paceline.algorithms.cluster.shard import LOG_LIMIT
from paceline.algorithms.cluster.views import EPOCH_BITS, Trust
from paceline.algorithms.server.gates import Asynchronous, Gate, StaleSynchronous
from paceline.runtime.engines.virtual.network.replayed import Applied, fault_of_replay


def parameters_of(content: Sequence[int], version: int) -> int:
    """Return a number for the parameters that the first batches of a shard have made."""
    return hash(tuple(content[:version]))


class Promises:
    """Checks the promises throughout a history, and remembers the first that is broken."""

    def __init__(self, scenario: Scenario, actors: Mapping[Process, Actor]) -> None:
        self.scenario, self.actors = scenario, actors
        #: The first promise that was broken.
        self.broken: str | None = None
        #: For each shard, the batches that were acknowledged, with the views that did.
        self._acknowledged: list[dict[int, set[int]]] = [{} for _ in range(scenario.shards)]
        #: For each shard, the batches that its newest primary of that time has acknowledged.
        self._durable: list[set[int]] = [set() for _ in range(scenario.shards)]
        #: For each shard, its newest primary, with the view that it entered.
        self._primaries: list[tuple[int, Actor | None]] = [(0, None)] * scenario.shards
        #: Which acknowledgements the desk of a view trusts.
        self._trust: dict[int, Trust] = {}
        #: Views of a desk that had been replaced already.
        self._stray: set[int] = set()
        #: Whether a shard has gone on without some of its pushes.
        self.lossy = False
        #: Batches that the run has said are computed again.
        self._again: set[int] = set()
        #: Batches that were lost and computed again, each with what was seen: by its end the run has to say so.
        self._lost: dict[int, str] = {}

    def break_(self, what: str) -> None:
        self.broken = self.broken or what

    def applied(self, server: Actor, apply: Apply, computed_from: int | None) -> None:
        """A server has made a version; `computed_from` are the parameters that a gradient was computed from."""
        content = server.content
        if len(content) != apply.version:
            self.break_(f"{server.process} makes version {apply.version} of {len(content)} batches")
        elif apply.batch in content[:-1]:
            self.break_(f"{server.process} applies batch {apply.batch} twice")
        elif (needed := self.scenario.gathers) and apply.base // needed != (apply.version - 1) // needed:
            self.break_(f"{server.process} gathers batch {apply.batch}, computed from version {apply.base}, as {apply}")
        elif computed_from is not None and computed_from != parameters_of(content, apply.base):
            self.break_(
                f"{server.process} applies batch {apply.batch}, which was computed from another version {apply.base}"
            )

    def confirms(self, server: Actor, to: Process, message: Replicated) -> None:
        """A backup tells its primary what it has."""
        primary = self.actors[to]
        if primary.machine.view != message.view or not primary.machine.primary:
            return
        theirs, ours = primary.content[: message.version], server.content[: message.version]
        if theirs != ours or len(ours) < message.version:
            self.break_(
                f"{server.process} confirms version {message.version} to {to}, and has batches {ours} where {to} has "
                f"{theirs}"
            )

    def acknowledges(self, server: Actor, message: Pushed) -> None:
        """A primary acknowledges a push."""
        if message.view in self._stray:
            return
        self._acknowledged[message.shard].setdefault(message.batch, set()).add(message.view)
        view, primary = self._primaries[message.shard]
        if primary is None or message.view >= view:
            self._durable[message.shard].add(message.batch)
        else:
            self._check_trusted(view, primary, message.shard, message.batch)

    def shows(self, server: Actor, message: Pushed | Pulled) -> None:
        """A primary sends parameters of a version to a worker."""
        for number in server.machine.members[1:]:
            backup = self.actors[Process(Role.SERVER, number)]
            replicated, shown = backup.content[: message.version], server.content[: message.version]
            if backup.machine.view == message.view and replicated != shown:
                self.break_(f"{server.process} shows version {message.version}, which {backup.process} lacks")

    def changes(self, changed: Changed, trust: Trust, replaced: bool) -> None:
        """A desk has made a view."""
        self._trust[changed.view], self.lossy = trust, self.lossy or changed.lossy
        if replaced:
            self._stray.add(changed.view)

    def enters(self, server: Actor) -> None:
        """A server has become a primary, or is one in a further view."""
        machine = server.machine
        shard, view, acknowledged = machine.shard, machine.view, self._acknowledged[machine.shard]
        before = {batch for batch, views in acknowledged.items() if min(views) < view}
        missing = before - set(server.content)
        for batch in sorted(missing):
            self._check_trusted(view, server, shard, batch)
        if view in self._stray:
            return
        if view > self._primaries[shard][0]:
            self._primaries[shard] = view, server
        # A desk that does not hear of a shard's only copy takes it for dead, and says what is computed again.
        lost = missing - self._again
        if lost and self.scenario.gentle:
            self.break_(f"{server.process} becomes the primary of shard {shard} without acknowledged {sorted(lost)}")

    def _check_trusted(self, view: int, primary: Actor, shard: int, batch: int) -> None:
        """Check that the desk of a view does not trust an acknowledgement of what its primary lacks."""
        epoch = view >> EPOCH_BITS
        for each in self._acknowledged[shard].get(batch, ()):
            if (
                batch not in primary.content
                and each < view
                and each >> EPOCH_BITS <= epoch
                and self._trust[view].holds(each)
            ):
                self.break_(
                    f"{primary.process} is the primary of shard {shard} in view {view} without batch {batch}, which "
                    f"view {each} acknowledged, and the desk trusts that"
                )

    def leases_again(self, again: Again) -> None:
        """The run says that batches are computed again."""
        self._again |= set(again.batches)
        self._again |= set(range(again.since, self.scenario.batches) if again.since != NONE else ())

    def computes(self, worker: Actor, batch: int) -> None:
        """A worker computes a batch. That it was lost may be said later, when the leases are rebuilt."""
        if not all(batch in each for each in self._durable):
            return
        # A primary that was dismissed has forgotten everything: a stray desk has made another one.
        lacking = [
            shard
            for shard, (_, primary) in enumerate(self._primaries)
            if primary and primary.shard == shard and batch not in primary.content
        ]
        if lacking:
            self._lost[batch] = f"{worker.process} computes batch {batch} again, which shards {lacking} lost"

    def forgets(self, server: Actor) -> None:
        """A server drops what it holds."""
        others = [a for a in self.actors.values() if a is not server and a.alive and a.process.role is Role.SERVER]
        if self.scenario.gentle and not any(other.shard == server.shard for other in others):
            self.break_(f"{server.process} forgets shard {server.shard}, and no other server holds it")

    def at_the_end(self, desk: Any) -> None:
        """Check what the shards hold when all workers have finished, and what the run has said."""
        for batch, what in self._lost.items():
            if batch not in self._again:
                self.break_(f"{what}, and no record says so")
        primaries = list[Actor]()
        for views in desk.views:
            if not views.view.members:
                continue  # a desk that was just started
            primary, *backups = [self.actors[Process(Role.SERVER, number)] for number in views.view.members]
            primaries.append(primary)
            missing = set(range(self.scenario.batches)) - set(primary.content)
            if missing:
                self.break_(f"all workers have finished, and shard {views.shard} lacks batches {sorted(missing)}")
            for backup in backups:
                if (
                    backup.machine.synced == views.view.number
                    and backup.content != primary.content[: len(backup.content)]
                ):
                    self.break_(f"{backup.process} holds other versions of shard {views.shard} than its primary")
        scenario = self.scenario
        if len(primaries) == scenario.shards and not (self.lossy or scenario.gathers or self.broken):
            histories = [primary.history for primary in primaries]
            if fault := fault_of_replay(histories, scenario.workers):
                self.break_(fault)

    def at_rest(self, desk: Any) -> None:
        """Check that every shard has all its copies, when nothing has gone wrong for a while."""
        servers = [a for a in self.actors.values() if a.process.role is Role.SERVER and a.alive]
        copies = 1 + self.scenario.backups
        enough = len(servers) >= copies * self.scenario.shards
        if not {views.shard for views in desk.views} <= {server.shard for server in servers}:
            return  # a shard was lost after the end
        for views in desk.views:
            members = views.view.members
            holders = {a.process.number for a in servers if a.shard == views.shard}
            if not views.established or (enough and len(members) < copies):
                self.break_(f"shard {views.shard} is held by {members} in the end, with {len(servers)} servers alive")
            if enough and holders != set(members):
                self.break_(f"shard {views.shard} is held by {holders} in the end, where its view has {members}")
        free = [a for a in servers if a.shard == NONE and a.machine.shard != NONE]
        for server in free:
            self.break_(f"{server.process} says that it holds shard {server.machine.shard}, which it does not")


# What happens in a history, apart from the chance of every message. Drawn from a seed, or written by hand.

FAULTS = (
    "kill worker",
    "pause worker",
    "kill server",
    "pause server",
    "kill machine",
    "pause machine",
    "pause several",
    "kill desk",
    "replace desk",
    "pause desk",
    "cut",
    "deafen",
    "cut from desk",
    "part servers",
    "part worker",
    "join",
    "hint",
)
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


# A process of a history: its machine, and what its engine would hold.


class Actor:
    """One process."""

    __slots__ = (
        "alive",
        "bases",
        "content",
        "history",
        "machine",
        "node",
        "owed",
        "owed_before",
        "owed_next",
        "paused_until",
        "process",
        "shard",
        "shown",
        "view",
        "waits_since",
    )

    def __init__(self, process: Process, machine: Any, node: int) -> None:
        #: `node` is the machine of the cluster that it runs on.
        self.process, self.machine, self.node = process, machine, node
        self.alive, self.paused_until = True, 0.0
        #: A server's shard, the view that it entered last, and its batches in the order of their versions.
        self.shard: int = getattr(machine, "shard", NONE)
        self.view = 0
        #: When a worker began to wait for servers.
        self.waits_since = 0.0
        self.content: list[int] = []
        #: The pushes that have brought them.
        self.history: list[Applied] = []
        #: What a worker was shown last of each shard, and the versions that its gradient was computed from.
        self.shown: dict[int, int] = {}
        self.bases: tuple[int, ...] = ()
        #: What its codec owes, owed before that gradient, and will owe when a shard has taken it.
        self.owed = self.owed_before = self.owed_next = 0

    def taken(self, batch: int) -> tuple[int, int]:
        """Return whose gradient of a batch a server has, and the version that it was computed from."""
        return next((each.push.worker, each.push.base) for each in self.history if each.push.batch == batch)
