"""Movements between the workers of a group, over a link or in one process, and the shares that ZeRO's workers store.

Both ways add in the order of the workers.

Over a link every worker writes what others want of its part into its own vector, a box for each, offers each box to its
taker, and takes theirs. What several workers want alike is written once. Vectors are bytes, since the values of a model
have several types.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.algorithms.splits import Box, Placement
from paceline.algorithms.splits.derivation import Program, ProgramStep
from paceline.algorithms.splits.movements import Key, is_due, keeps_gathered, movements_at_end
from paceline.algorithms.splits.placements import CUT, TRIM, AllToAll, Movement, intersection, volume
from paceline.runtime.links import TURNS, Link, Span
from paceline.training.gradients.payload import GradientSum
from paceline.training.gradients.replica import Replica
from paceline.training.splits.slicing import window

ALIGN = 64


class Request(NamedTuple):
    """A movement that a worker's program has come to, with what the worker has of the value."""

    step: ProgramStep
    shape: tuple[int, ...]
    tensor: Tensor
    #: The shape of the whole value, where the movement's own is another view of it.
    whole: tuple[int, ...]

    @property
    def movement(self) -> Movement:
        return self.step.movement


@cache
def exchanges_of(movement: Movement, shape: tuple[int, ...], workers: int) -> list[AllToAll]:
    return movement.exchanges(shape, workers)


@cache
def offsets(exchange: AllToAll, sender: int, itemsize: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Return where a worker's vector has the box for each other worker, in bytes, and how many bytes are used."""
    places: dict[Box, tuple[int, int]] = {}
    spans, end = dict[int, tuple[int, int]](), 0
    for receiver in range(exchange.workers):
        box = exchange.box(sender, receiver)
        if receiver == sender:
            continue
        if box not in places:
            size = volume(box) * itemsize
            places[box] = (end, end + size)
            end += -(-size // ALIGN) * ALIGN
        spans[receiver] = places[box]
    return spans, end


def kept(request: Request, place: int) -> Tensor | None:
    """Return the result of a movement in which nothing travels; None where something does."""
    movement = request.movement
    if movement.travels:
        return None
    if movement.kind == TRIM:
        return resized(request.tensor, movement.source, movement.target, request.shape, place)
    if movement.kind != CUT:
        return request.tensor
    placement = movement.target.own
    mine = window(request.tensor.reshape(placement.extent(request.shape)), placement.box(request.shape, place)).clone()
    return shaped(mine, movement.target, request, place)


def sent_of(request: Request, place: int) -> Tensor:
    """Return what a worker takes part in a movement with: its own part, without borders."""
    source = request.movement.source
    return resized(request.tensor, source, source.own, request.shape, place)


def shaped(result: Tensor, target: Placement, request: Request, place: int) -> Tensor:
    """Return the result of a movement as operations want it: what is whole in the shape of the value."""
    if not target.is_split:
        return result.reshape(request.whole)
    return resized(result, target.own, target, request.shape, place)


def resized(tensor: Tensor, source: Placement, target: Placement, shape: tuple[int, ...], place: int) -> Tensor:
    """Return a worker's part with other borders: without some, or with zeros in their place."""
    if source == target:
        return tensor
    has, wants = source.box(shape, place), target.box(shape, place)
    both = intersection(has, wants)
    if both == wants:
        return window(tensor, wants, has)
    output = tensor.new_zeros([stop - first for first, stop in wants])
    window(output, both, wants).copy_(window(tensor, both, has))
    return output


@dataclass
class LinkMover:
    """Carries out the movements of one worker over a link."""

    link: Link
    #: The ranks of the group's workers, in the order of their places.
    group: Sequence[int]
    place: int
    #: Exchanges so far, in which the link's vectors take turns.
    count: int = 0
    #: Bytes offered to others so far.
    sent: int = 0

    def move(self, request: Request) -> Tensor:
        """Carry out a movement together with the other workers of the group."""
        if (alone := kept(request, self.place)) is not None:
            return alone
        tensor = sent_of(request, self.place)
        for exchange in exchanges_of(request.movement, request.shape, len(self.group)):
            tensor = self._exchange(exchange, tensor.reshape(self._extent(exchange)))
        return shaped(tensor, request.movement.target, request, self.place)

    def _extent(self, exchange: AllToAll) -> tuple[int, ...]:
        return tuple(stop - first for first, stop in exchange.has.box(exchange.extent, self.place))

    def _exchange(self, exchange: AllToAll, tensor: Tensor) -> Tensor:
        turn, mine, size = self.count % TURNS, self.place, tensor.element_size()
        self.count += 1
        origin = exchange.has.box(exchange.extent, mine)
        vector, written = self.link.vectors[turn], set[int]()
        for receiver, (start, stop) in offsets(exchange, mine, size)[0].items():
            if start not in written and stop > start:
                box = window(tensor, exchange.box(mine, receiver), origin)
                vector[start:stop].view(tensor.dtype).view(box.shape).copy_(box)
                written.add(start)
            self.link.offer(self.group[receiver], Span(turn, start, stop))
            self.sent += stop - start

        def taken(sender: int) -> Tensor:
            if sender == mine:
                return tensor
            start, stop = offsets(exchange, sender, size)[0][mine]
            return self.link.take(self.group[sender], Span(turn, start, stop)).view(tensor.dtype)

        return combined(exchange, mine, [taken(sender) for sender in range(len(self.group))], tensor)


def combined(exchange: AllToAll, place: int, parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return what a worker has after an exchange: boxes side by side, or their sum in the order of the workers."""
    extent = exchange.extent
    target_box = exchange.wants.box(extent, place)
    shape = [stop - first for first, stop in target_box]
    output = torch.empty(shape, dtype=like.dtype)
    for sender, part in enumerate(parts):
        box = exchange.box(sender, place)
        if sender == place:
            part = window(part, box, exchange.has.box(extent, place))
        part = part.reshape([stop - first for first, stop in box])
        if not exchange.adds:
            window(output, box, target_box).copy_(part)
        elif sender:
            output.add_(part)
        else:
            output.copy_(part)
    return output


def move_together(requests: Sequence[Request]) -> list[Tensor]:
    """Carry out a movement in which something travels, of all workers of a group, with the sums of `LinkMover`."""
    tensors = [sent_of(request, place) for place, request in enumerate(requests)]
    first, workers = requests[0], len(requests)
    for exchange in exchanges_of(first.movement, first.shape, workers):
        boxes = [exchange.has.box(exchange.extent, place) for place in range(workers)]
        views = [t.reshape([stop - start for start, stop in box]) for t, box in zip(tensors, boxes, strict=True)]
        outputs = []
        for place in range(workers):
            parts = [
                view if sender == place else window(view, exchange.box(sender, place), boxes[sender])
                for sender, view in enumerate(views)
            ]
            outputs.append(combined(exchange, place, parts, views[place]))
        tensors = outputs
    target = first.movement.target
    return [shaped(t, target, request, place) for place, (t, request) in enumerate(zip(tensors, requests, strict=True))]


def largest(steps: Sequence[ProgramStep], shapes: Mapping[str, tuple[int, ...]], workers: int, itemsize: int) -> int:
    """Return the most bytes that a worker's vector has to hold in any exchange of these steps."""
    return max(
        (
            offsets(exchange, sender, itemsize)[1]
            for step in steps
            if step.value
            for exchange in exchanges_of(step.movement, shapes[step.value], workers)
            for sender in range(workers)
        ),
        default=0,
    )


# What a worker that stores shares of parameters keeps between the chunks of an update. When the stages of ZeRO move
# what is in `algorithms.splits.movements`.


@dataclass
class Shares:
    """The state of one worker within an update."""

    stage: int
    #: Whole parameters, in stages 1 and 2.
    gathered: dict[Key, Tensor] = field(default_factory=dict)
    #: Gradients of whole parameters that were not scattered yet, in stage 1.
    unscattered: dict[str, Tensor] = field(default_factory=dict)

    def moves(self, step: ProgramStep) -> bool:
        """Whether a movement of a chunk is made now: its result is not known, nor does it wait for the end."""
        return is_due(step, self.stage, self.gathered)

    def keep(self, step: ProgramStep, parameter: Tensor) -> None:
        """Keep a parameter that was gathered, in the stages that do."""
        if keeps_gathered(self.stage):
            self.gathered[step.value, step.target] = parameter

    def add(self, value: str, gradient: Tensor) -> None:
        """Keep a whole gradient until the end of the update."""
        before = self.unscattered.get(value)
        self.unscattered[value] = gradient if before is None else before.add_(gradient)

    def finish(
        self, replica: Replica, program: Program, named: dict[str, Tensor], computed: GradientSum
    ) -> Generator[Request, Tensor, GradientSum]:
        """End an update: scatter what was kept, and add up what payloads carry besides gradients."""
        self.gathered.clear()
        *scattered, add_totals = movements_at_end(program, self.stage)
        for move in scattered:
            shape = program.shapes[move.value]
            gradient = self.unscattered.pop(move.value, None)
            full = torch.zeros(shape, dtype=named[move.value].dtype) if gradient is None else gradient
            back = yield Request(move, shape, full.contiguous(), shape)
            named[move.value].grad = back.reshape(named[move.value].shape).clone()
        gradients = replica.take() if scattered else computed.gradients
        buffers = computed.buffers or [torch.zeros_like(b) for b in replica.moving]
        dtype = torch.float64
        numbers = torch.tensor([computed.loss, computed.weight], dtype=dtype)
        totals = torch.cat([numbers, *(b.to(dtype).flatten() for b in buffers)])
        shape = tuple(totals.shape)
        full = yield Request(add_totals, shape, totals, shape)
        summed, start = [], 2
        for buffer in buffers:
            model_dtype = replica.parameters[0].dtype
            summed.append(full[start : start + buffer.numel()].view(buffer.shape).to(model_dtype))
            start += buffer.numel()
        return GradientSum(gradients, summed, float(full[0]), float(full[1]), computed.samples)
