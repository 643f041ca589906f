"""Meetings: where workers meet. A collective is a table; a server is a place (its machines are in `core.server`).

A collective's table lists, for one worker, what it sends and receives, step by step, over a vector cut into as many
segments as it says. The same table is executed by the local engine, timed by the virtual one, and proved free of
deadlock by `core.proof`. One file per published method.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Step(NamedTuple):
    """At this step, offer a segment to one worker and take one from another.

    A segment that was offered may be read until its taker offers something later: a table must not let its owner
    change it before that. (In a ring what comes back to it has passed through the taker.)
    """

    send_to: int
    send: int  # segment
    receive_from: int
    receive: int  # segment
    reduce: bool  # add what is received to one's own; else replace one's own by it


class Collective(Protocol):
    def segments(self, workers: int) -> int: ...

    def steps(self, worker: int, workers: int) -> Iterator[Step]: ...

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        """Closed form of the table's time: `size` bytes over links of `latency` seconds and `bandwidth` bytes/s."""


@dataclass(frozen=True)
class Shards:
    """The parameters lie in `count` shards, each updated under one lock (or by one server)."""

    count: int = 1


def segment_cuts(length: int, count: int, bytes_per_number: int) -> list[int]:
    """Where a vector is cut into segments: on cache lines, so that two workers never write the same one."""
    line = 64 // bytes_per_number
    return [length * segment // count // line * line for segment in range(count)] + [length]
