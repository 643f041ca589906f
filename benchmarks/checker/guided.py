"""Can a learned guess at what goes wrong guide the search through interleavings?

    python benchmarks/checker/guided.py

Worlds of two or three workers under gates and desks that are wrong on purpose. `explore` walks them breadth first; here
the same worlds are walked best first, by a Bayesian network over what one sees of a state: for each of six features the
chance of its value given the parent feature and whether a bad state lies below (a tree-augmented naive Bayes, fitted by
counting on the other faults). Beside it: depth first, and a logistic model of the same features. What counts is how
many moves are made before the first bad state. Every fault is searched with what was learned from the others only.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from paceline.algorithms.server.desk import NONE, Desk
from paceline.algorithms.server.explore import _ServerExplorer, _ServerWorld, _Size
from paceline.algorithms.server.gates import Asynchronous, Backup, Gate, StaleSynchronous
from paceline.algorithms.server.messages import Action, Event, Lease
from paceline.algorithms.server.worker import push_every_batch, push_in_rounds

sys.path[:0] = [str(Path(__file__).parents[1])]
from harness import write  # noqa: E402

STATES = 60_000  # of a world that is learned from


class LeasesTwice(Desk):
    def _ask(self, state: Any, worker: int) -> Action:
        action = super()._ask(state, worker)
        if isinstance(action, Lease) and action.batch == self.batches - 2:
            state[0] = action.batch
        return action


class ForgetsOrphans(Desk):
    def handle(self, state: Any, event: Event) -> Action:
        action = super().handle(state, event)
        for cell in range(self._orphan, self._orphan + self.workers):
            state[cell] = NONE
        state[2] = 0
        return action


class MournsNobody(StaleSynchronous):
    """Waits for the clock of the dead."""

    def died(self, state: Any, at: int, worker: int) -> None:
        pass


class OnlyTheSlower(Asynchronous):
    """Wants a worker to be behind the fastest, where equal is enough."""

    def ints(self, workers: int) -> int:
        return workers

    def open(self, state: Any, at: int, worker: int) -> bool:
        clocks = list(state[at : at + 2])
        return clocks[worker] == 0 or clocks[worker] < max(clocks)

    def finished(self, state: Any, at: int, worker: int) -> None:
        state[at + worker] += 1


def world_of(
    workers: int, batches: int, shards: int, gathers: int, deaths: int, gate: Gate, desk: type[Desk]
) -> _ServerExplorer:
    size = _Size(workers, batches, shards, gathers, deaths, joins=0)
    return _ServerExplorer(size, gate, desk, push_in_rounds if gathers else push_every_batch)


FAULTS: dict[str, Callable[[], _ServerExplorer]] = {
    "a desk that leases twice": lambda: world_of(3, 4, 1, 0, 0, Asynchronous(), LeasesTwice),
    "a desk that forgets orphans": lambda: world_of(3, 3, 1, 0, 1, Asynchronous(), ForgetsOrphans),
    "a gate that waits for the dead": lambda: world_of(3, 6, 1, 0, 1, MournsNobody(1), Desk),
    "a gate that lets only the slower go on": lambda: world_of(2, 8, 1, 0, 0, OnlyTheSlower(), Desk),
    "a desk that forgets orphans, two shards": lambda: world_of(2, 3, 2, 0, 1, Asynchronous(), ForgetsOrphans),
    "a round that needs more than live": lambda: world_of(2, 4, 1, 2, 1, Backup(2), ForgetsOrphans),
}


def seen(explorer: _ServerExplorer, world: _ServerWorld) -> tuple[int, ...]:
    """What one sees of a state, in small numbers."""
    servers, desk = world.servers, explorer.desk
    living = [worker.effect for number, worker in world.workers.items() if number not in world.dead]
    stages = {type(effect) for effect in living}
    leases = [batch for batch in desk.leased(servers.desk) if batch >= 0]
    done = [sum(w in (t.worker for _, t in applied) for applied in servers.applied) for w in range(explorer.count)]
    return (
        min(2, sum(map(servers.waits, living))),
        len(world.dead),
        min(3, len(stages)),
        len(leases),
        min(3, max(done) - min(done)),
        min(4, 4 * desk.finished(servers.desk) // max(1, desk.batches)),
    )


def is_bad(explorer: _ServerExplorer, world: _ServerWorld) -> bool:
    if explorer.fault(world):
        return True
    return explorer.ended(list(explorer.moves(world))) and explorer.fault_at_end(world) is not None


def lessons(explorer: _ServerExplorer) -> list[tuple[tuple[int, ...], bool]]:
    """Every state of a faulty world with whether it lies on a shortest way to a bad one."""
    first = explorer.first()
    parents: dict[Any, Any] = {explorer.key(first): None}
    features = {explorer.key(first): seen(explorer, first)}
    todo, bad = [first], set()
    while todo and len(parents) < STATES:
        world = todo.pop(0)
        key = explorer.key(world)
        if is_bad(explorer, world):
            bad.add(key)
            continue
        for move in explorer.moves(world):
            then = world.copy()
            explorer.make(then, move)
            if (new := explorer.key(then)) not in parents:
                parents[new], features[new] = key, seen(explorer, then)
                todo.append(then)
    above = set()
    for key in bad:
        while key is not None and key not in above:
            above.add(key)
            key = parents[key]
    return [(value, key in above) for key, value in features.items()]


class Network:
    """A tree-augmented naive Bayes: each feature depends on the class and on the feature it shares most with."""

    def __init__(self, rows: list[tuple[tuple[int, ...], bool]]) -> None:
        weights = Counter(bad for _, bad in rows)
        self.scale = {bad: 1 / max(1, count) for bad, count in weights.items()}
        width = len(rows[0][0])
        self.parent = [-1] + [max(range(i), key=lambda j, i=i: _shared(rows, i, j)) for i in range(1, width)]
        self.counts: dict[tuple[int, int, int, bool], float] = defaultdict(float)
        self.totals: dict[tuple[int, int, bool], float] = defaultdict(float)
        for value, bad in rows:
            for i, v in enumerate(value):
                p = value[self.parent[i]] if i else 0
                self.counts[i, p, v, bad] += 1
                self.totals[i, p, bad] += 1

    def __call__(self, value: tuple[int, ...]) -> float:
        """The logarithm of the odds that a bad state lies below."""
        odds = 0.0
        for i, v in enumerate(value):
            p = value[self.parent[i]] if i else 0
            chance = [(self.counts[i, p, v, bad] + 0.5) / (self.totals[i, p, bad] + 2.5) for bad in (True, False)]
            odds += float(np.log(chance[0] / chance[1]))
        return odds


def _shared(rows: list[tuple[tuple[int, ...], bool]], i: int, j: int) -> float:
    """The mutual information of two features, given whether the state is bad."""
    n = len(rows)
    both = Counter((v[i], v[j], bad) for v, bad in rows)
    one, two, cls = (
        Counter((v[i], b) for v, b in rows),
        Counter((v[j], b) for v, b in rows),
        Counter(b for _, b in rows),
    )
    return sum(c / n * float(np.log(c * cls[b] / (one[x, b] * two[y, b]))) for (x, y, b), c in both.items())


def search(explorer: _ServerExplorer, score: Callable[[tuple[int, ...], int], float]) -> int:
    """Moves made until the first bad state, the state with the lowest score first."""
    first = explorer.first()
    known, heap, moves = {explorer.key(first)}, [(0.0, 0, 0, first)], 0
    while heap:
        _, _, depth, world = heapq.heappop(heap)
        if is_bad(explorer, world):
            return moves
        for move in explorer.moves(world):
            moves += 1
            then = world.copy()
            explorer.make(then, move)
            if (new := explorer.key(then)) not in known:
                known.add(new)
                heapq.heappush(heap, (score(seen(explorer, then), depth + 1), moves, depth + 1, then))
    return moves


def main() -> None:
    learned = {name: lessons(make()) for name, make in FAULTS.items()}
    table: dict[str, dict[str, int]] = {}
    for name, make in FAULTS.items():
        rows = [row for other, some in learned.items() if other != name for row in some]
        network = Network(rows)
        logistic = LogisticRegression(class_weight="balanced", max_iter=1_000)
        logistic.fit([v for v, _ in rows], [b for _, b in rows])
        weight, bias = logistic.coef_[0], float(logistic.intercept_[0])
        ways: dict[str, Callable[[tuple[int, ...], int], float]] = {
            "breadth first": lambda _, depth: depth,
            "depth first": lambda _, depth: -depth,
            "logistic": lambda v, _, w=weight, b=bias: -float(np.dot(w, v) + b),  # type: ignore[misc]
            "Bayesian network": lambda v, _, n=network: -n(v),  # type: ignore[misc]
        }
        table[name] = {way: search(make(), score) for way, score in ways.items()}
        print(name, table[name])
    write({"moves before the first bad state": table}, "guided.json")


if __name__ == "__main__":
    main()
