"""What a method shows: its picture, which `explain.drawing` draws, and its claim, which `explain.proving` proves.

Like effects, these are data: a method names what there is to see, and says nothing of text, terminals and pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.algorithms.coordinators import Coordinator
from paceline.algorithms.schedules import Schedule, Table
from paceline.algorithms.schedules.worker import Program
from paceline.algorithms.server.gates import Gate
from paceline.algorithms.splits import Mesh
from paceline.algorithms.splits.recipes import SplitRecipe

BATCHES, WAITS = "  -   computes a batch", "  .   waits"
OWN_STEP = "  -o  a step of its own parameters"
FITTING = 10  # local steps between two exchanges that fit on a page


@dataclass(frozen=True)
class Words:
    """A sentence: there is nothing else to draw, or nothing to prove."""

    text: str


@dataclass(frozen=True)
class Summing:
    """The table of a collective by which all workers end with the same sum, or mean."""

    collective: Collective
    #: Commands the updates between sums, where there is one.
    coordinator: Coordinator | None = None
    #: What the proof of the table leaves open.
    open: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mixing:
    """The table by which neighbours on a graph mix."""

    collective: Neighbours


@dataclass(frozen=True)
class Commands:
    """What a coordinator commands in an update."""

    coordinator: Coordinator


@dataclass(frozen=True)
class Parts:
    """Layers that are split over the workers of a group, of which each replica has one."""

    recipe: SplitRecipe
    inside: int
    #: The stage of ZeRO; 0 for other splits.
    stage: int
    replicas: int
    #: Adds gradients up between replicas.
    collective: Collective


@dataclass(frozen=True)
class Stages:
    """The timetable of a pipeline, and the other axes of its mesh."""

    mesh: Mesh
    micro_batches: int
    schedule: Schedule
    #: Makes the table of updates of so many micro-batches each.
    table: Callable[[Sequence[int]], Table]
    recipe: SplitRecipe
    #: Adds gradients up between replicas.
    collective: Collective
    #: The gate of the server between replicas; None where they keep step.
    gate: Gate | None
    #: Whether there is more than stages.
    wide: bool
    #: What a worker does; the second where its replica leases batches from a server.
    program: Callable[[Any], Program]
    leasing_program: Callable[[Any], Program]

    @property
    def span(self) -> int:
        """Updates of a table; 0 where the pipeline is never flushed."""
        return self.schedule.span


@dataclass(frozen=True)
class Operators:
    """Operators that send each other messages."""

    micro_batches: int
    active: int
    every: int
    #: What a worker does.
    program: Callable[[Any], Any]


@dataclass(frozen=True)
class Served:
    """A desk and shards, with every order in which workers can reach them."""


@dataclass(frozen=True)
class Timeline:
    """A line per worker, in a virtual world of unequal workers, with a legend."""

    #: Updates that are drawn.
    updates: int
    #: Lines that explain the signs.
    signs: tuple[str, ...]
    #: What is to be said of it.
    says: tuple[str, ...] = ()
    #: Whether it also says how old gradients were.
    staleness: bool = False
    #: Workers step their own parameters, rather than a server's.
    own_steps: bool = True
    #: A push is drawn as the number of the version that it makes.
    versions: bool = True
    #: The method with fewer local steps than the plan's, where those do not fit on a page; a note says so.
    fitting: Any = None
    note: str = ""


Picture = Words | Summing | Commands | Parts | Stages | Operators | Timeline
Claim = Words | Summing | Mixing | Parts | Stages | Operators | Served


def pushes(updates: int, *signs: str, versions: bool = True) -> Timeline:
    """Return the timeline of workers whose gradients a server applies."""
    return Timeline(updates, (BATCHES, *signs, WAITS), staleness=True, own_steps=False, versions=versions)


def shortened(every: int) -> tuple[int, str]:
    """Return the local steps that fit on a page, and a note; it is empty where all fit."""
    if every <= FITTING:
        return every, ""
    return FITTING, f"Drawn with every={FITTING} instead of {every}, to fit on a page."
