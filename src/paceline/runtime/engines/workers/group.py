"""The workers that keep step with one another: who computes which chunks, and how their vectors are exchanged.

A walk is written against `Group`, so it knows neither what carries the vectors nor whether workers come and go. On one
machine the group is fixed: a run cannot continue without one of its workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.cluster.shares import Membership
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.canonical import Canonical, lanes_of, spare_lanes
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.coded_sums import CodedSums, frames_of
from paceline.runtime.engines.workers.collectives import (
    FragmentSums,
    Means,
    NeighbourMixing,
    Sums,
    payloads_of,
    reduction_of,
)
from paceline.runtime.engines.workers.measured import MeasuredSums
from paceline.runtime.links.waiting import Waiter
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.parameters.layout import Fragments


class Group(Protocol):
    """One worker's view of the workers that keep step."""

    @property
    def leads(self) -> bool:
        """Whether this worker is the one that writes what all of them could write, such as snapshots."""

    @property
    def parts(self) -> Sequence[int] | None:
        """The parts of each update that this worker computes, side by side; None where they may change."""

    @property
    def paces(self) -> int:
        """The workers whose seconds of a chunk are summed with the gradients; 0 where shares do not follow speeds."""

    def chunks(self, update: int) -> list[Chunk]:
        """Return the chunks of an update that this worker computes now."""

    def coming(self, update: int) -> list[Chunk]:
        """Return the chunks of an update that this worker will compute, as far as it is known."""

    def sums(self, collective: Collective, encoder: GradientEncoder | None = None) -> Sums:
        """Make this worker's side of the collective that sums the vectors of all; an encoder writes messages."""

    def mixing(self, graph: Neighbours) -> Means:
        """Make this worker's side of the exchange with its neighbours on a graph."""


class FixedGroup:
    """`Group` of the workers of one arena.

    `shares` says which parts of a batch this worker computes; with `measured` they follow the speeds of workers.
    `library` names the library that sums gradients in place of a table (NCCL), if one does.
    """

    def __init__(
        self,
        number: int,
        arena: Arena,
        agenda: Agenda,
        waiter: Waiter,
        shares: Membership,
        measured: bool = False,
        library: str = "",
        device: torch.device | None = None,
    ) -> None:
        self.number, self.arena, self.agenda, self.waiter = number, arena, agenda, waiter
        self.shares, self.library, self.device = shares, library, device
        self.parts: Sequence[int] | None = None if measured else shares.parts_of(number, 0)
        self.paces = arena.shape.workers if measured else 0

    @property
    def leads(self) -> bool:
        return self.number == 0

    def chunks(self, update: int) -> list[Chunk]:
        return self.agenda.share(update, self.shares.parts_of(self.number, update))

    def coming(self, update: int) -> list[Chunk]:
        return self.chunks(update)

    def sums(self, collective: Collective, encoder: GradientEncoder | None = None) -> Sums:
        shape = self.arena.shape
        fragments, workers = Fragments.of(shape.layout, shape.fragments), shape.workers
        if self.library:
            from paceline.runtime.engines.workers.process_group import (
                GroupReduction,  # imports torch.distributed: half a second
            )

            assert self.device is not None
            return FragmentSums.of([GroupReduction(workers, layout, self.device) for layout in fragments.each])
        link = self.arena.link(self.arena.payloads, self.number, self.waiter, changes=True)
        if encoder is not None:
            fragment_frames = frames_of(link.vectors, encoder, fragments)
            return FragmentSums.of(
                [CodedSums(link, collective, workers, frames, encoder) for frames in fragment_frames]
            )
        if self.paces and isinstance(collective, Canonical):
            lanes = spare_lanes(collective.chunks)
            own = payloads_of(link.vectors, shape.layout, lanes, paces=workers)
            return MeasuredSums(
                collective, range(workers), lambda each: reduction_of(link, each, workers, own), self.shares.moved
            )
        lanes = lanes_of(collective, workers)
        payloads = [payloads_of(link.vectors, layout, lanes) for layout in fragments.each]
        return FragmentSums.of([reduction_of(link, collective, workers, mine) for mine in payloads])

    def mixing(self, graph: Neighbours) -> NeighbourMixing:
        workers, layout = self.arena.shape.workers, self.arena.shape.layout
        link = self.arena.link(self.arena.payloads, self.number, self.waiter, changes=True)
        return NeighbourMixing(link, graph, workers, layout, payloads_of(link.vectors, layout))


if TYPE_CHECKING:
    _: type[Group] = FixedGroup
