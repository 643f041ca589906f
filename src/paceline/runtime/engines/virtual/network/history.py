"""One history of a small cluster, from its start until all workers have finished."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from paceline.algorithms.cluster.explore import Machines
from paceline.algorithms.cluster.messages import Role
from paceline.algorithms.cluster.worker import Stage
from paceline.narrative import Scene, format_story
from paceline.runtime.engines.virtual.network.cluster import DESK, Cluster
from paceline.runtime.engines.virtual.network.faults import FaultInjector
from paceline.runtime.engines.virtual.network.scenario import Scenario
from paceline.runtime.engines.virtual.network.wire import Wire

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
