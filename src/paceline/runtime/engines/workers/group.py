"""The workers that keep step with one another: who computes which chunks, and how their vectors are exchanged.

A walk is written against `Group`, so it knows neither what carries the vectors nor whether workers come and go. On one
machine the group is fixed: a run cannot continue without one of its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.cluster.shares import Membership
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.canonical import Canonical, lanes_of, spare_lanes
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.algorithms.splits import Mesh
from paceline.plans.methods.split_layers import DATA, SplitLayers
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.collectives import (
    CodedSums,
    FragmentSums,
    Means,
    NeighbourMixing,
    PayloadReduction,
    Reduction,
    Sums,
    frames_of,
    payloads_of,
    reduction_of,
)
from paceline.runtime.links import TURNS, Link, Span
from paceline.runtime.links.waiting import Waiter
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import Fragments, Layout
from paceline.training.stages.segment import Segment


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
    `device` is where a library sums gradients in place of a table (NCCL); None where the table does.
    """

    def __init__(
        self,
        number: int,
        arena: Arena,
        agenda: Agenda,
        waiter: Waiter,
        shares: Membership,
        measured: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.number, self.arena, self.agenda, self.waiter = number, arena, agenda, waiter
        self.shares, self.device = shares, device
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
        if self.device is not None:
            from paceline.runtime.engines.workers.process_group import (
                GroupReduction,  # imports torch.distributed: half a second
            )

            return FragmentSums.of([GroupReduction(workers, layout, self.device) for layout in fragments.each])
        link = self.arena.link(self.arena.payloads, self.number, self.waiter, changes=True)
        if encoder is not None:
            fragment_frames = frames_of(link.vectors, encoder, fragments)
            return FragmentSums.of(
                [CodedSums(link, collective, workers, frames, encoder) for frames in fragment_frames]
            )
        if self.paces and isinstance(collective, Canonical):
            lanes = spare_lanes(collective.chunks)
            measured = payloads_of(link.vectors, shape.layout, lanes, paces=workers)
            return MeasuredSums(
                collective, range(workers), lambda each: reduction_of(link, each, workers, measured), self.shares.moved
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


# Shares that follow the speeds of workers: chunks move from worker to worker while they train.
#
#     every update      the seconds of a chunk at each worker are summed with the gradients, in a number of its own
#     after a WINDOW    all workers divide the chunks by the same numbers, from the next update on
#
# So they agree without a message, and a worker that has become slow gives chunks away within two windows. The sum is
# canonical: no number of the training changes.

LEAST = 4  # updates between two divisions
WINDOW = 0.2  # seconds between two divisions, at least: a core's quota stops a worker ten times a second


class MeasuredSums(Sums):
    """`Sums` whose table changes with the shares."""

    def __init__(
        self,
        collective: Canonical,
        ranks: Sequence[int],
        over: Callable[[Canonical], PayloadReduction],
        moved: Callable[[int, Canonical], object],
    ) -> None:
        """
        Args:
            collective: the shares to begin with.
            ranks: the workers that share, by the places of their paces.
            over: makes the sum by other shares.
            moved: is told from which update on which shares hold.
        """
        self.collective, self._ranks, self._over, self._moved = collective, ranks, over, moved
        self._sums = over(collective)
        #: The seconds of a chunk at each worker, update by update since shares were divided.
        self._paces: list[list[float]] = []
        #: Seconds of these updates, about: all workers have the same numbers.
        self._seconds = 0.0
        #: The paces, smoothed, of all updates before these; 0 where nothing is known.
        self._means = [0.0] * len(ranks)

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number, then divide the chunks anew if it is time to."""
        total = self._sums.all_reduce(number, computed)
        self._paces.append(self._sums.payloads[number % TURNS].paces[list(self._ranks)].tolist())
        self._seconds += max(self._paces[-1]) * self.collective.chunks / len(self._ranks)
        if len(self._paces) >= LEAST and self._seconds >= WINDOW:
            latest, self._paces, self._seconds = zip(*self._paces, strict=True), [], 0.0
            self._means = [_smoothed(before, each) for before, each in zip(self._means, latest, strict=True)]
            following = self.collective.by_pace(self._means)
            if following is not self.collective:
                self.collective, self._sums = following, self._over(following)
                self._moved(number + 1, following)
        return total


def _smoothed(before: float, latest: Sequence[float]) -> float:
    """Return the mean of the latest that are known, and of the mean before.

    Means, since a core's quota stops a worker periodically and lets it run at full speed in between.
    """
    known = [pace for pace in latest if pace > 0]
    return fmean([fmean(known), before] if before else known) if known else before


# The workers that keep step on a mesh: those with the same parts of a layer add their gradients up.


class GroupLink:
    """A link among some of its ranks, numbered by their places in the group, over the first numbers of its vectors."""

    def __init__(self, link: Link, group: Sequence[int], length: int) -> None:
        self.link, self.group = link, group
        self.rank = group.index(link.rank)
        self.vectors: Sequence[Tensor] = [vector[:length] for vector in link.vectors]
        self.waited = 0

    def offer(self, to: int, span: Span) -> None:
        self.link.offer(self.group[to], span)

    def take(self, peer: int, span: Span) -> Tensor:
        before = self.link.waited
        tensor = self.link.take(self.group[peer], span)
        self.waited += self.link.waited - before
        return tensor

    def abort(self) -> None:
        self.link.abort()


class MeshGroup:
    """`Group` of the workers of a mesh; `layout` is that of this worker's own parts."""

    paces = 0

    def __init__(
        self, number: int, method: SplitLayers, mesh: Mesh, agenda: Agenda, link: Link, layout: Layout
    ) -> None:
        self.number, self.method, self.mesh, self.agenda = number, method, mesh, agenda
        self.link, self.layout = link, layout

    @property
    def leads(self) -> bool:
        return not self.mesh.coordinate(self.number, DATA)  # replicas hold the same

    @property
    def parts(self) -> None:
        return None  # workers of a group compute a chunk together, update by update

    def chunks(self, update: int) -> list[Chunk]:
        return self.method.chunks(self.mesh, self.agenda, update, self.number)

    def coming(self, update: int) -> list[Chunk]:
        return [chunk for chunk in self.chunks(update) if chunk.samples]

    def sums(self, collective: Collective, encoder: GradientEncoder | None = None) -> Sums:
        peers = self.mesh.group(self.number, DATA)
        if len(peers) == 1:
            return NoSum()
        link = GroupLink(self.link, peers, Payload.length(self.layout))
        return PayloadReduction(Reduction(link, collective, len(peers)), payloads_of(link.vectors, self.layout))

    def mixing(self, graph: Neighbours) -> Means:
        raise NotImplementedError("replicas of split layers add their gradients up")


class StageSums:
    """The sums of a worker's stages with those of the same place in other replicas, over the same vectors."""

    def __init__(self, link: Link, peers: Sequence[int], collective: Collective, segment: Segment) -> None:
        self.count = 0
        self.stages: dict[int, Sums] = {}
        for number in segment.stages:
            layout = segment.layout(number)
            between = GroupLink(link, peers, Payload.length(layout))
            reduction = Reduction(between, collective, len(peers))
            self.stages[number] = PayloadReduction(reduction, payloads_of(between.vectors, layout))

    def all_reduce(self, stage: int, share: GradientSum) -> tuple[GradientSum, int, int]:
        """Return a stage's sum over all replicas, nanoseconds waited, bytes sent."""
        self.count += 1
        return self.stages[stage].all_reduce(self.count, share)


class NoSum:
    """The sum over one replica."""

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        return computed, 0, 0

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        return computed, 0, 0


if TYPE_CHECKING:
    _mesh: type[Group] = MeshGroup
    _link: type[Link] = GroupLink
