"""One history of a small cluster, with its faults, from its start until all workers have finished."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from paceline.algorithms.cluster.explore import Machines
from paceline.algorithms.cluster.messages import NONE, Process, Role
from paceline.algorithms.cluster.worker import Stage
from paceline.narrative import Scene, format_story
from paceline.runtime.engines.virtual.network.cluster import DESK, Cluster, Cut, Wire
from paceline.runtime.engines.virtual.network.promises import Actor, Scenario

QUIET = 25.0  # seconds after which nothing goes wrong any more
REST = 20.0  # seconds after that, within which every shard has all its copies again
END = 200.0  # by when every history has ended


class History:
    """A simulated run of a small cluster, with the faults of its scenario."""

    def __init__(self, scenario: Scenario, machines: Machines | None = None, log: bool = False) -> None:
        self.scenario = scenario
        chance = random.Random(scenario.seed ^ 0x5EED)
        self.wire = Wire(chance, QUIET, scenario.loss, scenario.double, scenario.late)
        self.cluster = Cluster(scenario, machines or Machines(), chance, self.wire, self._note if log else None)
        self.faults = FaultInjector(self.cluster, chance)
        self._scenes: list[Scene] = []

    def run(self) -> str | None:
        """Run the history to its end; return the promise that was broken, or None."""
        cluster, wire, promises = self.cluster, self.wire, self.cluster.promises
        cluster.start()
        for when, what in self.scenario.faults:
            wire.at(when, self.faults.inject, what)
        rest = QUIET + REST if self.scenario.lasting else 0.0
        while not (cluster.given_up or promises.broken or (cluster.finished and wire.now >= rest)):
            wire.step()
            if wire.now > END:
                promises.break_(f"after {END:.0f} s it has not ended: " + ", ".join(self._unfinished()))
        if not cluster.given_up and not promises.broken:
            promises.at_the_end(cluster.actors[DESK].machine)
            if self.scenario.lasting and not any(cut.end > wire.now for cut in wire.cuts):
                promises.at_rest(cluster.actors[DESK].machine)
        return promises.broken

    def _unfinished(self) -> list[str]:
        workers = [a for a in self.cluster.actors.values() if a.process.role is Role.WORKER and a.alive]
        unfinished = [actor for actor in workers if actor.machine.stage is not Stage.FINISHED]
        return [f"{actor.process} is {actor.machine.stage.name.lower()}" for actor in unfinished]

    def _note(self, who: str, what: str) -> None:
        self._scenes.append(Scene(f"{self.wire.now:7.3f} {who}", what))

    def log(self) -> str:
        """Return the story of the history, which must have been made with `log`."""
        headline = f"The history of seed {self.scenario.seed}:"
        return format_story(headline, self._scenes, self.cluster.promises.broken or "no promise is broken")


def first_fault(seeds: Iterable[int], machines: Machines | None = None, **settings: Any) -> tuple[int, str] | None:
    """Return the first seed whose history breaks a promise, with the promise; None if none does."""
    for seed in seeds:
        if fault := History(Scenario.draw(seed, **settings), machines).run():
            return seed, fault
    return None


# Faults of a history. In a gentle one, no server is hit before its shard has all its copies again.

FOR_EVER = 0.3  # chance that a cut between two processes lasts


class FaultInjector:
    """Injects faults into the processes and the network of a cluster."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster, self.chance, self.wire, self.actors = cluster, chance, cluster.wire, cluster.actors
        self.gentle, self.backups = cluster.scenario.gentle, cluster.scenario.backups
        #: How often each kind has happened.
        self.happened: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[], bool]] = {
            "kill worker": lambda: self._kill(self._workers(1)),
            "pause worker": lambda: self._pause(self._workers(1)),
            "kill server": lambda: self._kill(self._servers(1, kill=True)),
            "pause server": lambda: self._pause(self._servers(1)),
            "kill machine": lambda: self._kill(self._machine(kill=True)),
            "pause machine": lambda: self._pause(self._machine()),
            "pause several": self._pause_several,
            "kill desk": lambda: self._replace_desk(kill=True),
            "replace desk": lambda: self._replace_desk(kill=False),
            "pause desk": self._pause_desk,
            "cut": self._cut,
            "deafen": self._deafen,
            "cut from desk": self._cut_from_desk,
            "part servers": self._part_servers,
            "part worker": self._part_worker,
            "join": self._join,
            "hint": self._hint,
        }

    def inject(self, kind: str) -> None:
        """Inject a fault of this kind, if there is a process that it may hit."""
        if self._kinds[kind]():
            self.happened[kind] += 1

    def _log(self, what: str, victims: Iterable[Process] = ()) -> None:
        if self.cluster.log:
            self.cluster.log("", f"{what} {', '.join(map(str, sorted(victims)))}")

    # Which processes may be hit

    def _well(self, actor: Actor) -> bool:
        now, process = self.wire.now, actor.process
        cut = any(cut.end > now and (process in cut.sources or process in cut.targets) for cut in self.wire.cuts)
        return actor.alive and actor.paused_until <= now and not cut

    def _all(self, role: Role) -> list[Actor]:
        return [actor for actor in self.actors.values() if actor.process.role is role]

    def _workers(self, count: int) -> list[Actor]:
        """Choose workers; one at least stays well."""
        workers = [actor for actor in self._all(Role.WORKER) if self._well(actor)]
        return self.chance.sample(workers, min(count, max(0, len(workers) - 1)))

    def _servers(self, count: int, kill: bool = False) -> list[Actor]:
        """Choose servers that may be hit, each of another shard in a gentle history."""
        servers = [actor for actor in self._all(Role.SERVER) if self._may_be_hit(actor, kill)]
        self.chance.shuffle(servers)
        if self.gentle:
            servers = list({actor.machine.shard: actor for actor in servers}.values())
        return servers[:count]

    def _may_be_hit(self, actor: Actor, kill: bool) -> bool:
        if not self._well(actor):
            return False
        if not self.gentle or actor.machine.shard == NONE:
            return True
        return self._replicated(actor.machine.shard) and (self.backups > 0 or not kill)

    def _replicated(self, shard: int) -> bool:
        """Whether all servers of a shard's newest view are well and hold all that the primary has acknowledged."""
        servers = {a.process.number: a for a in self._all(Role.SERVER) if a.machine.shard == shard}
        newest = max(actor.machine.view for actor in servers.values())
        heads = [a.machine for a in servers.values() if a.machine.view == newest and a.machine.primary]
        views = self.actors[DESK].machine.views[shard]
        if not heads or len(heads[0].members) <= self.backups or views.view.number != newest or not views.established:
            return False
        return all(
            m in servers and self._well(servers[m]) and servers[m].machine.synced == newest for m in heads[0].members
        )

    def _machine(self, kill: bool = False) -> list[Actor]:
        """Choose a machine, with all its processes but the desk."""
        node = self.chance.randrange(self.cluster.scenario.nodes)
        actors = [
            actor for actor in self.actors.values() if actor.node == node and actor.alive and actor.process != DESK
        ]
        workers = [actor for actor in actors if actor.process.role is Role.WORKER]
        servers = [actor for actor in actors if actor.process.role is Role.SERVER]
        others = [a for a in self._all(Role.WORKER) if a.node != node and self._well(a)]
        shards = [actor.machine.shard for actor in servers if actor.machine.shard != NONE]
        apart = not self.gentle or len(set(shards)) == len(shards)
        if not others or not apart or not all(self._may_be_hit(actor, kill) for actor in servers):
            return []
        return [*workers, *servers]

    # Killing and pausing

    def _kill(self, victims: list[Actor]) -> bool:
        self._log("killed:", (actor.process for actor in victims))
        for victim in victims:
            self.cluster.kill(victim)
            self._notice(victim.process)
            if victim.process.role is Role.SERVER:
                again = self.wire.now + self.chance.uniform(0.2, 3.0)
                self.wire.at(again, self._new_server, self.chance.randrange(self.cluster.scenario.nodes))
        return bool(victims)

    def _new_server(self, node: int) -> None:
        self.cluster.new_server(node)

    def _pause(self, victims: list[Actor]) -> bool:
        self._log("paused:", (actor.process for actor in victims))
        until = self.wire.now + self.chance.uniform(0.5, 10.0)
        for victim in victims:
            victim.paused_until = until
        return bool(victims)

    def _pause_several(self) -> bool:
        return self._pause([*self._workers(self.chance.randrange(3)), *self._servers(self.chance.randrange(1, 4))])

    def _pause_desk(self) -> bool:
        desk = self.actors[DESK]
        if not desk.alive:
            return False
        return self._pause([desk])

    def _replace_desk(self, kill: bool) -> bool:
        self._log("the desk is killed and replaced" if kill else "the desk is replaced, and lives on")
        self.cluster.replace_desk(kill)
        return True

    def _join(self) -> bool:
        self.cluster.new_worker()
        return True

    def _hint(self) -> bool:
        """A connection breaks although both ends are alive."""
        victims = self._workers(1) if self.chance.random() < 0.5 else self._servers(1)
        for victim in victims:
            self._log("connections end:", [victim.process])
            self._notice(victim.process)
        return bool(victims)

    def _notice(self, victim: Process) -> None:
        """Let some processes notice that their connection to a process has ended."""
        for actor in list(self.actors.values()):
            if actor.process != victim and self.chance.random() < 0.8:
                self.wire.at(self.wire.now + 0.001, self._lost, actor, victim)

    def _lost(self, actor: Actor, victim: Process) -> None:
        if actor.alive and actor.paused_until <= self.wire.now:
            self.cluster.perform(actor, actor.machine.lost(self.wire.now, victim))

    # Cutting

    def _sever(self, some: Iterable[Process], others: Iterable[Process], lasting: bool = False) -> bool:
        """Cut the links between two sets of processes, in both directions or in one."""
        one, two = frozenset(some), frozenset(others)
        if not one or not two:
            return False
        end = self.wire.now + (1000.0 if lasting else self.chance.uniform(0.5, 8.0))
        way = self.chance.choice(("both", "both", "to", "from"))
        self._log(f"cut until {end:.1f} s ({way}):", one)
        if way != "from":
            self.wire.cuts.append(Cut(end, two, one))
        if way != "to":
            self.wire.cuts.append(Cut(end, one, two))
        return True

    def _cut(self) -> bool:
        """Some workers and a server are cut off from all others."""
        side = {a.process for a in self._workers(self.chance.randrange(3))}
        side |= {a.process for a in self._servers(1)}
        return self._sever(side, self.actors.keys() - side)

    def _deafen(self) -> bool:
        """A process hears none of some others, or is not heard by them."""
        victims = {a.process for a in (self._workers(1) if self.chance.random() < 0.4 else self._servers(1))}
        return self._sever(victims, {p for p in sorted(self.actors) if p not in victims and self.chance.random() < 0.6})

    def _cut_from_desk(self) -> bool:
        """Servers and the desk do not reach each other."""
        return self._sever([DESK], [a.process for a in self._servers(self.chance.randrange(1, 3))])

    def _part_servers(self) -> bool:
        """Two servers of a shard do not reach each other, while others reach both, for a while or for ever."""
        victims = self._servers(1)
        others = [a for a in self._all(Role.SERVER) if victims and a is not victims[0] and a.alive]
        near = [a.process for a in others if a.machine.shard == victims[0].machine.shard]
        return self._sever([a.process for a in victims], near, lasting=self.chance.random() < FOR_EVER)

    def _part_worker(self) -> bool:
        """A worker and a server do not reach each other, while others reach both, for a while or for ever."""
        servers = [a for a in self._servers(1) if a.machine.shard != NONE]
        workers = self._workers(1)
        return self._sever(
            [a.process for a in workers], [a.process for a in servers], lasting=self.chance.random() < FOR_EVER
        )
