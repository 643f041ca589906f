"""The team of a node: its worker leads, and helpers compute chunks of the same batch beside it, in shared memory.

parameters, moving buffers     what the batch is computed from; the leader writes them
sums, one per chunk            gradients, moving buffers, loss and weight of it; its helper writes them
integers                       who is asked for which batch, and has done it (`algorithms.cluster.team`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.cluster.team import Answer, Team, Turn
from paceline.runtime.engines.setup import Setup
from paceline.runtime.links.memory import LINE, Memory, lines
from paceline.runtime.links.waiting import INTS, Doorbell, Waiter
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import not_trained, trainable

LATE = 2.5  # seconds that a leader waits for a helper at least, before it computes the helper's chunks itself
TIMES = 4  # and at least so many times as long as it has computed itself
FIGURES = 3  # of a chunk: loss, weight, samples

Kinds = tuple[tuple[tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True)
class TeamShape:
    """The sizes of everything that a team shares."""

    #: Processes that compute, with the leader.
    processes: int
    #: Chunks that a batch, and an update of several batches, is cut into.
    parts: int
    chunks: int
    #: Shapes and types.
    parameters: Kinds
    buffers: Kinds

    @staticmethod
    def of(setup: Setup, cores: int) -> TeamShape | None:
        """Return the shape of the team of a node with so many cores; None if its worker computes alone.

        Loader processes, embedding tables and GPUs are the worker's own, so it computes chunk after chunk with them.
        """
        plan, job, module = setup.plan, setup.job, setup.module
        processes = min(plan.chunks, cores // plan.threads)
        on_cpu = all(device.type == "cpu" for device in setup.placement.devices)
        if not plan.traits.optimizer_at_server or plan.traits.gathers or processes < 2 or not on_cpu:
            return None
        if job.num_workers or setup.probe.tables:
            return None
        others = not_trained(module)
        return TeamShape(
            processes,
            plan.chunks,
            plan.chunks * job.accumulate_grad_batches,
            _kinds(list(trainable(module).values())),
            _kinds([others[name] for name in setup.probe.moving]),
        )

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        tensors = sum(
            lines(torch.Size(shape).numel() * kind.itemsize) for shape, kind in self.parameters + self.buffers
        )
        more = lines(8 * len(self.parameters)) + lines(8 * FIGURES) + LINE * len(self.buffers)
        meeting = self.processes * (lines(8 * INTS) + LINE) + lines(8 * Team(self.processes, self.parts).ints)
        # Buffers are added up in the type of the parameters, which may take more bytes than their own: at most twice.
        return (1 + 2 * self.chunks) * (tensors + more) + meeting


class ChunkSum:
    """The sums of one chunk."""

    def __init__(self, shape: TeamShape, memory: Memory) -> None:
        self.gradients = _take(memory, shape.parameters)
        dtype = shape.parameters[0][1]
        self.buffers = _take(memory, tuple((size, dtype) for size, _ in shape.buffers))
        self.present = memory.ints(len(shape.parameters))
        self.figures = memory.take(8 * FIGURES).cast("d")

    def write(self, computed: GradientSum) -> None:
        for number, (mine, gradient) in enumerate(zip(self.gradients, computed.gradients, strict=True)):
            self.present[number] = gradient is not None
            if gradient is not None:
                mine.copy_(gradient)
        for mine, buffer in zip(self.buffers, computed.buffers, strict=True):
            mine.copy_(buffer)
        self.figures[0], self.figures[1], self.figures[2] = computed.loss, computed.weight, computed.samples

    def read(self, chunk: int) -> GradientSum:
        """Return the sums, as views that the next turn writes again."""
        pairs = zip(self.gradients, self.present, strict=True)
        gradients = [gradient if present else None for gradient, present in pairs]
        loss, weight, samples = self.figures
        return GradientSum(gradients, self.buffers, loss, weight, int(samples), chunk)


class TeamMemory:
    """What a team shares, as one process sees it."""

    def __init__(self, shape: TeamShape, memory: Memory | None = None) -> None:
        self.shape, self.memory = shape, memory or Memory(shape.size)
        self.team = Team(shape.processes, shape.parts)
        self.state = self.memory.ints(self.team.ints)
        self.doorbells = [Doorbell.of(self.memory) for _ in range(shape.processes)]
        self.parameters, self.buffers = _take(self.memory, shape.parameters), _take(self.memory, shape.buffers)
        helped = [chunk for chunk in range(shape.chunks) if self.team.process_of(chunk)]
        self.sums = {chunk: ChunkSum(shape, self.memory) for chunk in helped}

    def __reduce__(self) -> tuple[object, ...]:
        return TeamMemory, (self.shape, self.memory)


class TeamLeader:
    """The worker's side of its team."""

    def __init__(self, memory: TeamMemory, learner: Learner, waiter: Waiter) -> None:
        """`waiter` waits at the first doorbell of the memory."""
        self.memory, self.learner, self.waiter, self.team = memory, learner, waiter, memory.team

    def compute(self, chunks: list[Chunk]) -> GradientSum:
        """Return the sums over the chunks of an update, in their order: those of one process, bit for bit."""
        learner, memory = self.learner, self.memory
        start, begun = learner.buffers(), now()
        _copy(memory.parameters, [p.detach() for p in learner.replica.parameters])
        _copy(memory.buffers, start)
        turn, helpers = self.team.ask(memory.state, chunks[0].update)
        for helper in helpers:
            memory.doorbells[helper].ring()
        mine = [chunk for chunk in chunks if self.team.process_of(chunk.number) not in helpers]
        first = sum(1 for one, other in zip(mine, chunks, strict=False) if one is other)  # computed in one go
        total = learner.add_up(mine[:first], start) if first else None
        local = {chunk.number: self._one(chunk, start) for chunk in mine[first:]}
        end = now() + max(int(LATE * 1e9), TIMES * (now() - begun))
        for chunk in chunks[first:]:
            chunk_sum = local.pop(chunk.number, None)
            if chunk_sum is None:
                helper = self.team.process_of(chunk.number)

                def answer(helper: int = helper) -> Answer:
                    return self.team.answer(memory.state, helper, turn, helpers[helper])

                self.waiter.until(lambda: answer() is not Answer.NOT_YET or now() >= end, lambda: "a helper")
                done = answer() is Answer.DONE
                chunk_sum = memory.sums[chunk.number].read(chunk.number) if done else self._one(chunk, start)
            if total is None:
                total = chunk_sum.scaled(1.0)  # in memory of its own
            else:
                total.add(chunk_sum)
        assert total is not None
        return learner.accept(total, chunks, start)

    def _one(self, chunk: Chunk, start: Sequence[Tensor]) -> GradientSum:
        """Compute a chunk apart, from the buffers that all chunks start from."""
        _copy(self.learner.replica.moving, start)
        return self.learner.add_up([chunk], [])


def serve(memory: TeamMemory, learner: Learner, agenda: Agenda, helper: int, turn: Turn) -> None:
    """Compute a helper's chunks of a turn, from the parameters in the memory, which its replica has."""
    for chunk in agenda.task(turn.task):
        if memory.team.process_of(chunk.number) == helper:
            _copy(learner.replica.moving, memory.buffers)
            memory.sums[chunk.number].write(learner.add_up([chunk], []))
    memory.team.done(memory.state, helper, turn)
    memory.doorbells[0].ring()


def _kinds(tensors: Sequence[Tensor]) -> Kinds:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)


def _take(memory: Memory, kinds: Kinds) -> list[Tensor]:
    return [memory.tensor(torch.Size(shape).numel(), dtype).view(shape) for shape, dtype in kinds]


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for mine, value in zip(into, values, strict=True):
        mine.copy_(value)
