"""Collectives that survive deaths: when the group changes, they are made again by the ranks of the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.cluster.group import Regroup
from paceline.algorithms.cluster.shares import fitting, most_lanes
from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.canonical import Canonical, spare_lanes
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.errors import PeerLost
from paceline.plans.plan import Plan, program_of
from paceline.runtime.engines.cluster.group_client import GroupClient
from paceline.runtime.engines.workers.collectives import (
    CodedSums,
    FragmentSums,
    Means,
    NeighbourMixing,
    Sums,
    frames_of,
    payloads_of,
    reduction_of,
)
from paceline.runtime.engines.workers.group import MeasuredSums
from paceline.runtime.links import TURNS
from paceline.runtime.links.tcp.link import TcpLink
from paceline.runtime.links.waiting import Cancelled
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.gradients.payload import CodedFrame, GradientSum, Payload
from paceline.training.parameters.layout import Fragments, Layout

if TYPE_CHECKING:
    from paceline.runtime.engines.workers.group import Group

#: Computes the gradient of an update again, where other chunks of it are this rank's now; returns the old one if not.
Again = Callable[[int, GradientSum], GradientSum]


class SurvivingGroup:
    """`Group` of ranks over TCP."""

    def __init__(self, client: GroupClient, agenda: Agenda, layout: Layout, plan: Plan) -> None:
        self.client, self.agenda, self.layout = client, agenda, layout
        self.fragments, self.paces, codec = Fragments.of(layout, plan.fragments), 0, plan.codec
        lanes = most_lanes(program_of(plan).collective, plan.workers) if plan.canonical else 1
        if plan.measured:
            lanes, self.paces = max(lanes, spare_lanes(plan.canonical)), plan.workers
        self.encoder: GradientEncoder | None = None
        #: How a gradient is computed again; replicas that are averaged are what they are.
        self.again: Again = lambda update, computed: computed
        length, dtype = max(Payload.room(each, lanes, self.paces) for each in self.fragments.each), layout.dtype
        if codec is not None:
            length, dtype = CodedFrame.largest(codec, self.fragments), torch.uint8
        #: This rank's vectors: the last sum lies in one of them.
        self.vectors = [torch.zeros(length, dtype=dtype) for _ in range(TURNS)]
        #: Of each fragment, over both vectors: its payloads and, under a codec, its frames.
        self.payloads: list[list[Payload]] = []
        self.frames: list[list[CodedFrame]] = []
        if codec is None:
            self.payloads = [payloads_of(self.vectors, each, lanes, self.paces) for each in self.fragments.each]

    @property
    def leads(self) -> bool:
        return self.client.leads(max(0, self.client.member.begun - 1))

    @property
    def parts(self) -> None:
        return None

    def chunks(self, update: int) -> list[Chunk]:
        return self.agenda.share(update, self.client.begin(update))

    def coming(self, update: int) -> list[Chunk]:
        return self.agenda.share(update, self.client.parts(update))

    def sums(self, collective: Collective, encoder: GradientEncoder | None = None) -> SurvivingSums:
        if encoder is not None:
            self.encoder, self.frames = encoder, frames_of(self.vectors, encoder, self.fragments)
            self.payloads = [[frame.payload for frame in frames] for frames in self.frames]
        return SurvivingSums(self, lambda link, ranks: self._reduction(link, collective, ranks), self.again)

    def mixing(self, graph: Neighbours) -> SurvivingMeans:
        return SurvivingMeans(
            self, lambda link, ranks: NeighbourMixing(link, graph, ranks, self.layout, self.payloads[0])
        )

    def taken(self, number: int) -> Payload:
        """Return the sum of this number as it was taken from a rank that had it, and so had this one's message."""
        if (encoder := self.encoder) is not None:
            if encoder.codec.in_two:
                frame = self.fragments.of_number(number, self.frames)[number % TURNS]
                encoder.remember(frame.shard, frame.message)  # taken with the sum
            encoder.finalize()
        return self.fragments.of_number(number, self.payloads)[number % TURNS]

    def _reduction(self, link: TcpLink, collective: Collective, ranks: int) -> Sums:
        fitted = fitting(collective, ranks)
        if (encoder := self.encoder) is not None:
            return FragmentSums.of([CodedSums(link, fitted, ranks, frames, encoder) for frames in self.frames])
        if self.paces and isinstance(fitted, Canonical):
            group, (payloads,) = self.client.group, self.payloads
            assert group is not None
            # Created for every group, so that its ranks have seen the same paces.
            return MeasuredSums(
                fitted, group.ranks, lambda each: reduction_of(link, each, ranks, payloads), self.client.moved
            )
        return FragmentSums.of([reduction_of(link, fitted, ranks, payloads) for payloads in self.payloads])


class _Exchange(Protocol):
    """One collective of a group: `all_reduce` or `mean`."""

    def __call__(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]: ...


class SurvivingSums(Sums):
    """`Sums` that are made again when the group changes."""

    def __init__(self, group: SurvivingGroup, over: Callable[[TcpLink, int], Sums], again: Again) -> None:
        self.group, self.client, self._over, self._again = group, group.client, over, again
        #: The collective over the current link.
        self._sums = over(*current(group.client))

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number; return (the sum of all ranks, nanoseconds waited, bytes sent)."""
        waited = 0
        while (reduction := attempt(self.client, number, computed, self._sums.all_reduce)) is None:
            group, more = joined(self.client)
            self._sums, waited = self._over(*current(self.client)), waited + more
            if group.number > number:
                return self.group.taken(number).read(computed.samples), waited, 0
            computed = self._again(number, computed)
        total, more, sent = reduction
        return total, waited + more, sent


class SurvivingMeans:
    """`Means` over neighbours on a graph, drawn anew over the ranks of each group.

    Ranks may be several exchanges apart. Those that a rank has not made when the group changes are left out.
    """

    def __init__(self, group: SurvivingGroup, over: Callable[[TcpLink, int], NeighbourMixing]) -> None:
        self.client, self._over = group.client, over
        self._mixing = over(*current(group.client))
        #: The first exchange of the current group.
        self._first = 0

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the exchange of this number; return (the mixture, nanoseconds waited, bytes sent)."""
        waited = 0
        while number >= self._first:
            average = attempt(self.client, number, computed, self._mixing.mean)
            if average is not None:
                return average[0], waited + average[1], average[2]
            group, more = joined(self.client)
            self._mixing, self._first, waited = self._over(*current(self.client)), group.number, waited + more
        return computed, waited, 0


def attempt(
    client: GroupClient, number: int, computed: GradientSum, exchange: _Exchange
) -> tuple[GradientSum, int, int] | None:
    """Run a collective in the current group; None if the group has changed."""
    if not client.enter():
        return None
    try:
        reduction = exchange(number, computed)
    except (Cancelled, PeerLost) as error:
        client.fail(error)
        return None
    client.leave(number)
    return reduction


def joined(client: GroupClient) -> tuple[Regroup, int]:
    """Join the next group; return it with the nanoseconds that it was waited for."""
    before, group = client.waited, client.rejoin()
    if group is None:
        raise Cancelled  # the run is over
    return group, client.waited - before


def current(client: GroupClient) -> tuple[TcpLink, int]:
    """Return the link of the current group, and how many ranks it has."""
    assert client.link is not None
    assert client.group is not None
    return client.link, len(client.group.ranks)


if TYPE_CHECKING:
    _group: type[Group] = SurvivingGroup
    _means: type[Means] = SurvivingMeans
