"""The workers that keep step on a mesh: those with the same parts of a layer add their gradients up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.algorithms.splits import Mesh
from paceline.plans.methods.split_layers import DATA, SplitLayers
from paceline.runtime.engines.workers.collectives import Means, PayloadReduction, Reduction, payloads_of
from paceline.runtime.links import Link, Span
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import Layout
from paceline.training.stages.segment import Segment

if TYPE_CHECKING:
    from paceline.runtime.engines.workers.collectives import Sums
    from paceline.runtime.engines.workers.group import Group


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
    _: type[Group] = MeshGroup
    _link: type[Link] = GroupLink
