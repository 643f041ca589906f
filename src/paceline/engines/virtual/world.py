"""A world: how fast its workers are, how far apart, and what befalls them. All chance comes from its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class World:
    """
    compute     seconds a worker of speed 1 needs per sample
    speeds      one per worker; those left out are 1
    jitter      each computation takes up to this share longer
    straggle    (probability, factor): now and then one computation takes so many times as long
    update      seconds a shard needs to apply one gradient
    latency     seconds, and
    bandwidth   bytes per second, of the way between any two
    deaths      {worker: when}
    """

    compute: float = 1e-5
    speeds: tuple[float, ...] = ()
    jitter: float = 0.1
    straggle: tuple[float, float] = (0.0, 1.0)
    update: float = 5e-5
    latency: float = 1e-5
    bandwidth: float = 5e9
    deaths: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def speed(self, worker: int) -> float:
        return self.speeds[worker] if worker < len(self.speeds) else 1.0

    def travel(self, size: float) -> float:
        return self.latency + size / self.bandwidth


class Fate:
    """The chance of one world, drawn per worker so that one worker's draws do not depend on another's."""

    def __init__(self, world: World, workers: int) -> None:
        self.world = world
        self._draws = [np.random.Generator(np.random.Philox(key=[world.seed, w])) for w in range(workers)]

    def compute_seconds(self, worker: int, samples: int) -> float:
        world, draw = self.world, self._draws[worker]
        seconds = samples * world.compute / world.speed(worker) * (1 + world.jitter * draw.random())
        probability, factor = world.straggle
        return seconds * factor if draw.random() < probability else seconds


def nanoseconds(seconds: float) -> int:
    """Virtual time as the trace has it."""
    return round(seconds * 1e9)
