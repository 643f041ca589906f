"""A simulated world: the speeds of workers, the network between them, deaths and repairs. All randomness is seeded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from paceline.errors import UsageError

DRAWS = 64  # draws of a worker that are made at once
SPREADS = ("uniform", "normal", "lognormal", "exponential")


@dataclass(frozen=True)
class World:
    """The speeds, delays and deaths of a simulation.

    Args:
        compute: Seconds that a worker of speed 1 needs per sample.
        speeds: One per worker; speeds that are left out are 1.
        jitter: Each computation takes up to this share longer.
        spread: Evenly spaced quantiles of a computation's seconds, over those of `compute`, as a card has them; they
            take the place of `jitter`.
        straggle: `(probability, factor)`: with this probability a computation takes this many times as long.
        update: Seconds that a shard needs to apply one gradient.
        latency: Seconds between any two workers of a rack.
        bandwidth: Bytes per second between any two workers of a rack.
        deaths: `{worker: seconds}` after which it dies.
        seed: Seeds all randomness.
        repairs: `{worker: seconds}` after which another worker takes its place. Only servers let workers join.
        rack: Workers of a rack; 0: all are in one. Servers are in the first.
        far_latency: Seconds between workers of different racks.
        uplink: Bytes per second of the link between racks, which the workers of a rack share.
        copies: Servers of each shard, which lie with workers: the first of shard s with worker s. All that a machine
            sends shares its link, and so does all that it receives. 0: no message to a server waits for another one.
    """

    compute: float = 1e-5
    speeds: tuple[float, ...] = ()
    jitter: float = 0.1
    spread: tuple[float, ...] = ()
    straggle: tuple[float, float] = (0.0, 1.0)
    update: float = 5e-5
    latency: float = 1e-5
    bandwidth: float = 5e9
    deaths: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    repairs: Mapping[int, float] = field(default_factory=dict)
    rack: int = 0
    far_latency: float = 1e-4
    uplink: float = 1e9
    copies: int = 0

    def __post_init__(self) -> None:
        for name in ("compute", "jitter", "update", "latency", "far_latency"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"a world with {name}={getattr(self, name)}: give a number of at least 0")
        for name in ("bandwidth", "uplink"):
            if not getattr(self, name) > 0:
                raise UsageError(f"a world with {name}={getattr(self, name)}: give bytes per second, more than 0")
        if not all(0 <= each < math.inf for each in self.spread):
            raise UsageError(f"a world with spread={self.spread}: give quantiles, numbers of at least 0")
        if not all(speed > 0 for speed in self.speeds):
            raise UsageError(f"a world with speeds of {min(self.speeds)}: give numbers above 0, such as 0.5 for half")

    def speed(self, worker: int) -> float:
        """Return the speed of a worker."""
        return self.speeds[worker] if worker < len(self.speeds) else 1.0

    def travel(self, size: float) -> float:
        """Return the seconds that a message of this many bytes takes within a rack."""
        return self.latency + size / self.bandwidth

    def rack_of(self, worker: int) -> int:
        """Return the rack of a worker."""
        return worker // self.rack if self.rack else 0

    def links(self, sources: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return latency and bandwidth from each worker's source to itself.

        In each step of a ring one message crosses between two racks; where more do, they are taken not to slow each
        other down.
        """
        targets = np.arange(len(sources))
        far = (sources // self.rack != targets // self.rack) if self.rack else np.zeros(len(sources), bool)
        return (
            np.where(far, max(self.far_latency, self.latency), self.latency),
            np.where(far, min(self.uplink, self.bandwidth), self.bandwidth),
        )

    def with_failures(self, workers: int, mtbf: float, repair: float, seconds: float) -> World:
        """Return the same world with deaths: each worker's comes after `mtbf` seconds on average.

        Its replacement joins after `repair` seconds, and does not die. Deaths after `seconds` are left out.
        """
        if not mtbf > 0 or not repair >= 0:
            raise UsageError(f"failures with mtbf={mtbf} and repair={repair}: the first must be positive, in seconds")
        draws = np.random.Generator(np.random.Philox(key=[self.seed, 1 << 62])).exponential(mtbf, workers)
        deaths = {worker: float(at) for worker, at in enumerate(draws) if at < seconds}
        return replace(self, deaths=deaths, repairs={worker: at + repair for worker, at in deaths.items()})

    def with_speeds(self, workers: int, spread: str, width: float) -> World:
        """Return the same world with speeds drawn from a distribution of mean or median 1, and of this width."""
        if spread not in SPREADS or not width >= 0:
            raise UsageError(f"speeds {spread!r} of width {width}; allowed: {', '.join(SPREADS)}, of at least 0")
        draw = np.random.Generator(np.random.Philox(key=[self.seed, 1 << 61]))
        speeds = {
            "uniform": lambda: draw.uniform(1 - width, 1 + width, workers),
            "normal": lambda: draw.normal(1.0, width, workers),
            "lognormal": lambda: draw.lognormal(0.0, width, workers),
            "exponential": lambda: 1 / np.maximum(draw.exponential(1.0, workers), 0.05),
        }[spread]()
        return replace(self, speeds=tuple(np.maximum(speeds, 0.05).tolist()))


class ComputeTimes:
    """Draws how long computations take, per worker, so that one worker's draws do not depend on another's."""

    def __init__(self, world: World, workers: Sequence[int]) -> None:
        self.world = world
        self._generators = [np.random.Generator(np.random.Philox(key=[world.seed, w])) for w in workers]
        self._speeds, self._spread = [world.speed(worker) for worker in workers], world.spread
        #: Each worker's next draws, two numbers each, and how many of them it has used.
        self._drawn: list[list[float]] = [[] for _ in workers]
        self._used = [0] * len(workers)
        self._block: npt.NDArray[np.float64] | None = None
        self._row = 0

    def draw(self, worker: int, samples: int) -> float:
        """Return the seconds of a worker's next computation."""
        world, used, drawn = self.world, self._used[worker], self._drawn[worker]
        if used == len(drawn):
            drawn = self._drawn[worker] = self._generators[worker].random(2 * DRAWS).tolist()
            used = 0
        self._used[worker] = used + 2
        share = self._spread[int(drawn[used] * len(self._spread))] if self._spread else 1 + world.jitter * drawn[used]
        seconds = samples * world.compute / self._speeds[worker] * share
        probability, factor = world.straggle
        return seconds * factor if drawn[used + 1] < probability else seconds

    def draw_all(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the seconds of every worker's next computation; they are those that `draw` would give.

        A simulation uses either this or `draw`.
        """
        if self._block is None or self._row == DRAWS:
            self._block = np.array([generator.random(2 * DRAWS) for generator in self._generators])
            self._row = 0
        world, mine = self.world, self._block[:, 2 * self._row : 2 * self._row + 2]
        self._row += 1
        share = 1 + world.jitter * mine[:, 0]
        if self._spread:
            share = np.array(self._spread)[(mine[:, 0] * len(self._spread)).astype(int)]
        seconds = samples * world.compute / np.array(self._speeds) * share
        probability, factor = world.straggle
        return np.asarray(np.where(mine[:, 1] < probability, seconds * factor, seconds), float)


def nanoseconds(seconds: float) -> int:
    """Convert virtual seconds to the nanoseconds of a trace."""
    return round(seconds * 1e9)
