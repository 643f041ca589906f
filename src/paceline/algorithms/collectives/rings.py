"""All-reduce around a ring of all workers, and around rings of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline.algorithms.collectives import Part, Round, Step
from paceline.errors import PlanError


@dataclass(frozen=True)
class Ring:
    """Ring all-reduce: reduce-scatter once around, then all-gather once around.

    Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009; brought to
    deep learning by Baidu (2017) and Horovod. Each of P workers sends 2 (P-1)/P of the vector, whatever P: optimal in
    bandwidth, poor in latency (2 (P-1) steps). Three workers, segments a b c, capital = sum complete:

        step        worker 0          worker 1          worker 2
        reduce 0    sends a, adds c   sends b, adds a   sends c, adds b
        reduce 1    sends c, adds B   sends a, adds C   sends b, adds A
        gather 0    sends B, has A    sends C, has B    sends A, has C
        gather 1    sends A, has C    sends B, has A    sends C, has B

    Every segment is summed in one order by one worker and copied by the rest, so all replicas hold the same bits. Not
    to be confused with a ring of parameter copies (gossip), which never agrees exactly.
    """

    def segments(self, workers: int) -> int:
        return workers

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        yield from reduce_scatter(worker, workers)
        yield from all_gather(worker, workers)

    def rounds(self, workers: int) -> Iterator[Round]:
        yield Round(2 * (workers - 1), [(worker - 1) % workers for worker in range(workers)], [1] * workers)

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        return 2 * (workers - 1) * (latency + size / workers / bandwidth) if workers > 1 else 0.0


def reduce_scatter(worker: int, workers: int) -> Iterator[Step]:
    """Once around: worker w ends with segment w + 1 complete."""
    yield from _around(worker, workers, worker, reduce=True)


def all_gather(worker: int, workers: int) -> Iterator[Step]:
    """Once around: worker w starts with segment w + 1 complete and ends with all."""
    yield from _around(worker, workers, worker + 1, reduce=False)


def _around(worker: int, workers: int, first: int, reduce: bool) -> Iterator[Step]:
    right, left = (worker + 1) % workers, (worker - 1) % workers
    for step in range(workers - 1):
        send, receive = (first - step) % workers, (first - step - 1) % workers
        yield Step(Part(right, send, send + 1), Part(left, receive, receive + 1), reduce)


@dataclass(frozen=True)
class Hierarchical:
    """Hierarchical all-reduce: groups of workers add up among themselves, then group with group, then share within
    again.

    Known as two-dimensional or 2D-torus all-reduce (Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50
    training in a flash", 2018) and as Horovod's hierarchical all-reduce (Sergeev and Del Balso, 2018). For machines
    whose inner links are faster than the outer ones: only 1/m of the vector leaves a worker of a group of m. Two groups
    of two, segments a b c d:

        step        group 0: worker 0, worker 1         group 1: worker 2, worker 3
        inside      ring reduce-scatter over ab, cd     the same
        across      worker 0 with 2 over cd, worker 1 with 3 over ab: a ring all-reduce
        inside      ring all-gather                     the same

    Every segment is summed in one order and copied by the rest, so all replicas hold the same bits.
    """

    groups: int = 2

    def segments(self, workers: int) -> int:
        self._members(workers)
        return workers

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        members = self._members(workers)
        group, place = divmod(worker, members)
        first = group * members  # worker
        mine = (place + 1) % members * self.groups  # segment: what a reduce-scatter leaves with this place
        for step in reduce_scatter(place, members):
            yield _moved(step, lambda other: first + other, self.groups, 0)
        for half in (reduce_scatter, all_gather):
            for step in half(group, self.groups):
                yield _moved(step, lambda other: other * members + place, 1, mine)
        for step in all_gather(place, members):
            yield _moved(step, lambda other: first + other, self.groups, 0)

    def rounds(self, workers: int) -> Iterator[Round]:
        members = self._members(workers)
        near = [worker - 1 if worker % members else worker + members - 1 for worker in range(workers)]
        inside = Round(members - 1, near, [self.groups] * workers)
        yield inside
        yield Round(2 * (self.groups - 1), [(worker - members) % workers for worker in range(workers)], [1] * workers)
        yield inside

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        members, send = self._members(workers), size / bandwidth
        inside = 2 * (members - 1) * (latency + send / members)
        return inside + 2 * (self.groups - 1) * (latency + send / workers)

    def fitting(self, workers: int) -> Hierarchical:
        """Return the same collective for fewer workers, as one group if its groups would not be equal."""
        return Hierarchical(1 if workers % self.groups else self.groups)

    def _members(self, workers: int) -> int:
        if workers % self.groups:
            fit = " or ".join(str(n) for n in range(1, workers + 1) if workers % n == 0)
            raise PlanError(f"{workers} workers do not make {self.groups} equal groups; groups={fit} would do")
        return workers // self.groups


def _moved(step: Step, worker: Callable[[int], int], scale: int, offset: int) -> Step:
    """Return a step of a small ring, moved to other workers and segments."""

    def moved(part: Part | None) -> Part | None:
        if part is None:
            return None
        return Part(worker(part.other), part.first * scale + offset, part.stop * scale + offset)

    return Step(moved(step.send), moved(step.receive), step.reduce)
