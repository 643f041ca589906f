"""Ring all-reduce: reduce-scatter once around, then all-gather once around.

Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009; brought to deep
learning by Baidu (2017) and Horovod. Each of P workers sends 2 (P-1)/P of the vector, whatever P: optimal in
bandwidth, poor in latency (2 (P-1) steps). Three workers, segments a b c, capital = sum complete:

    step        worker 0          worker 1          worker 2
    reduce 0    sends a, adds c   sends b, adds a   sends c, adds b
    reduce 1    sends c, adds B   sends a, adds C   sends b, adds A
    gather 0    sends B, has A    sends C, has B    sends A, has C
    gather 1    sends A, has C    sends B, has A    sends C, has B

Every segment is summed in one order by one worker and copied by the rest, so all replicas hold the same bits. Not to be
confused with a ring of parameter copies (gossip), which never agrees exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.algorithms.collectives import Part, Round, Step


@dataclass(frozen=True)
class Ring:
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
