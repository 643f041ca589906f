"""A simulated world: the speeds of workers, the network between them, and deaths. All randomness is seeded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class World:
    """The speeds, delays and deaths of a simulation."""

    #: Seconds that a worker of speed 1 needs per sample.
    compute: float = 1e-5
    #: One per worker; speeds that are left out are 1.
    speeds: tuple[float, ...] = ()
    #: Each computation takes up to this share longer.
    jitter: float = 0.1
    #: (probability, factor): with this probability a computation takes this many times as long.
    straggle: tuple[float, float] = (0.0, 1.0)
    #: Seconds that a shard needs to apply one gradient.
    update: float = 5e-5
    #: Seconds between any two workers.
    latency: float = 1e-5
    #: Bytes per second between any two workers.
    bandwidth: float = 5e9
    #: Seconds after which a worker dies, by its number.
    deaths: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def speed(self, worker: int) -> float:
        return self.speeds[worker] if worker < len(self.speeds) else 1.0

    def travel(self, size: float) -> float:
        """Return the seconds that a message of this many bytes takes."""
        return self.latency + size / self.bandwidth


class ComputeTimes:
    """Draws how long computations take, per worker, so that one worker's draws do not depend on another's."""

    def __init__(self, world: World, workers: int) -> None:
        self.world = world
        self._draws = [np.random.Generator(np.random.Philox(key=[world.seed, w])) for w in range(workers)]

    def draw(self, worker: int, samples: int) -> float:
        world, draw = self.world, self._draws[worker]
        seconds = samples * world.compute / world.speed(worker) * (1 + world.jitter * draw.random())
        probability, factor = world.straggle
        return seconds * factor if draw.random() < probability else seconds


def nanoseconds(seconds: float) -> int:
    """Convert virtual seconds to the nanoseconds of a trace."""
    return round(seconds * 1e9)
