"""A simulated world: its clock, the speeds of workers, the network between them and collectives on it, deaths.

All randomness is seeded.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.algorithms.collectives import Collective, Round
from paceline.algorithms.collectives.whole_vectors import Gather
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


# A simulated clock, which goes to the next event at once.


class Clock:
    """Runs events in the order of their times, without waiting between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, what: Callable[..., None], *arguments: Any) -> None:
        """Schedule `what(*arguments)` for `time`; events of one time run in the order in which they were scheduled."""
        self._count += 1
        heapq.heappush(self._events, (time, self._count, what, arguments))

    def run(self) -> None:
        events, pop = self._events, heapq.heappop
        while events:
            self.now, _, what, arguments = pop(events)
            what(*arguments)


# A collective in virtual time: its rounds, each for all workers at once.
#
# A ring of P workers takes 2 (P - 1) steps, in each of which a worker waits for its neighbour. In a large world of
# equal links they have a closed form: after k steps worker w is at
#
#     k t + max over j in 0..k of (arrived[w - j] + j latency)          t = seconds of one part on the wire
#
# since the slowest chain of waits moves on to the next worker in j of the k steps. It is the maximum of a window that
# slides once around the ring, so it costs O(P) instead of O(P^2).

LARGE = 512  # workers from which on the closed form is used, which does not divide the waiting by steps
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Exchanged(NamedTuple):
    """The cost of a collective for each worker."""

    #: When each worker leaves, in seconds.
    ends: list[float]
    #: Seconds for which the worker it takes from had not arrived. In a large ring: beyond an undisturbed exchange.
    waited: list[float]
    #: Bytes sent.
    sent: list[int]


def exchange(collective: Collective, arrived: Sequence[float], size: float, world: World) -> Exchanged:
    """Compute the times and bytes of a collective for each worker; see `exchange_all`."""
    ends, waited, sent = exchange_all(collective, np.array(arrived, float), size, world)
    return Exchanged(ends.tolist(), waited.tolist(), sent.tolist())


def exchange_all(collective: Collective, arrived: Floats, size: float, world: World) -> tuple[Floats, Floats, Indices]:
    """Compute the times and bytes of a collective over `size` bytes from the time at which each worker arrived.

    They equal those that `algorithms.collectives.advance` gives step by step.
    """
    workers = len(arrived)
    if isinstance(collective, Gather):
        return _gathered(arrived, size / workers, world)
    clocks: Floats = np.array(arrived, float)
    waited, sent = np.zeros(workers), np.zeros(workers, np.int64)
    piece = size / collective.segments(workers)
    for steps, source, sends, around in _prepared(collective, workers):  # type: ignore[arg-type]  # a frozen dataclass
        part: Floats = np.asarray(sends * piece, float)
        sent += steps * np.rint(part).astype(np.int64)
        if around and workers >= LARGE and not world.rack:
            travel = float(part[0]) / world.bandwidth
            after = _around(clocks, steps, travel, world.latency)
            waited += np.maximum(0.0, after - clocks - steps * (travel + world.latency))
            clocks = after
        else:
            clocks = _step_by_step(steps, source, clocks, waited, part, world)
    return clocks, waited, sent


@lru_cache(maxsize=8)
def _prepared(collective: Collective, workers: int) -> list[tuple[int, Indices, Indices, bool]]:
    """The rounds of a collective as arrays, and whether each goes around a ring."""
    return [
        (each.steps, np.array(each.sources), np.array(each.sends), _is_ring(each))
        for each in collective.rounds(workers)
    ]


def _step_by_step(steps: int, source: Indices, clocks: Floats, waited: Floats, part: Floats, world: World) -> Floats:
    """Make every step of a round; adds to `waited`."""
    latency, bandwidth = world.links(source)
    takes, travels = source != np.arange(len(clocks)), part / bandwidth
    transfer = part[source] / bandwidth
    for _ in range(steps):
        other = clocks[source]
        waited += np.maximum(other - clocks, 0.0)
        begins = np.maximum(clocks, other + latency)
        clocks = np.maximum(clocks + travels, np.where(takes, begins + transfer, 0.0))
    return clocks


def _gathered(arrived: Floats, message: float, world: World) -> tuple[Floats, Floats, Indices]:
    """Send all messages at once: the last to arrive is waited for once, and each link carries one after the other."""
    workers, numbers = len(arrived), np.arange(len(arrived))
    begins, travel = np.array(arrived, float), np.zeros(workers)
    for away in range(1, workers):
        source = (numbers - away) % workers
        latency, bandwidth = world.links(source)
        begins = np.maximum(begins, arrived[source] + latency)
        travel += message / bandwidth
    sent = np.full(workers, (workers - 1) * round(message), np.int64)
    return begins + travel, np.maximum(begins - arrived - world.latency, 0.0), sent


def _is_ring(candidate: Round) -> bool:
    """Whether every worker takes an equal part from the one before it."""
    workers = len(candidate.sources)
    sources = np.array(candidate.sources)
    return bool((sources == (np.arange(workers) - 1) % workers).all()) and len(set(candidate.sends)) == 1


def _around(arrived: Floats, steps: int, travel: float, latency: float) -> Floats:
    """Return every worker's clock after so many steps around a ring."""
    workers = len(arrived)
    # Position u stands for worker u mod P; a wait that began j steps back has come j workers far.
    places = np.arange(-steps, workers)
    values = arrived[places % workers] - places * latency
    largest = _sliding_largest(values, steps + 1)
    return np.asarray(steps * travel + np.arange(workers) * latency + largest)


def _sliding_largest(values: Floats, width: int) -> Floats:
    """Return the largest value of each window of this width, in time that does not depend on the width."""
    count = len(values) - width + 1
    blocks = -(-len(values) // width)
    padded = np.full(blocks * width, -np.inf)
    padded[: len(values)] = values
    grid = padded.reshape(blocks, width)
    ahead = np.maximum.accumulate(grid, axis=1).ravel()
    back = np.maximum.accumulate(grid[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.asarray(np.maximum(back[:count], ahead[width - 1 : width - 1 + count]))
