"""The network between workers and servers in a virtual world: who waits for whose link."""

from __future__ import annotations

from paceline.runtime.engines.virtual.world import World


class ServerLinks:
    """Says when messages between workers and shards arrive, in the order in which they are sent.

    In a world with `copies` the servers lie with workers: every machine sends one message at a time and receives one at
    a time, and what does not leave a machine takes no time. Without, only the link that a rack's workers share is busy.
    """

    def __init__(self, world: World, workers: int) -> None:
        self.world, self.workers = world, workers
        #: When each machine can send, and receive, the next message.
        self._sends, self._receives = [0.0] * workers, [0.0] * workers
        #: When the link of each rack to the others has carried what was put on it so far.
        self._uplinks = [0.0] * (world.rack_of(workers - 1) + 1)

    def pushed(self, worker: int, shard: int, now: float, size: int) -> float:
        """Return when a worker's gradient has arrived at a shard."""
        if not self.world.copies:
            return self._to_rack(worker, now, size)
        return self._between(worker, shard % self.workers, now, size)

    def copied(self, shard: int, now: float, size: int) -> None:
        """Send a gradient on from a shard to its copies: links are busy, and no worker waits."""
        for copy in range(1, min(self.world.copies, self.workers)):
            self._between(shard % self.workers, (shard + copy) % self.workers, now, size)

    def answered(self, worker: int, shard: int, now: float, size: int) -> float:
        """Return when what a shard sends to a worker has arrived."""
        if not self.world.copies:
            return self._to_rack(worker, now, size)
        return self._between(shard % self.workers, worker, now, size)

    def delay(self, worker: int) -> float:
        """Return the seconds of an empty message between a worker and the servers."""
        world = self.world
        return max(world.far_latency, world.latency) if world.rack_of(worker) else world.latency

    def _between(self, sender: int, receiver: int, now: float, size: int) -> float:
        if sender == receiver:
            return now
        start = max(now, self._sends[sender], self._receives[receiver]) if size else now
        end = start + size / self.world.bandwidth
        if size:
            self._sends[sender] = self._receives[receiver] = end
        return end + self.world.latency

    def _to_rack(self, worker: int, now: float, size: int) -> float:
        rack = self.world.rack_of(worker)
        if not rack:
            return now + self.world.travel(size)
        if not size:
            return now + self.delay(worker)
        start = max(now, self._uplinks[rack])
        self._uplinks[rack] = start + size / min(self.world.uplink, self.world.bandwidth)
        return self._uplinks[rack] + self.delay(worker)
