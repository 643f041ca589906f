"""What the stages of a pipeline weigh: bytes of tensors, counted while one micro-batch goes forward and backward.

Counted is the memory behind tensors, as it is taken and let go (what PyTorch's allocator is asked for). What a process
needs besides (its code, libraries' workspaces, gaps in its heap) is not in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.compute.home import optimizer_over
from paceline.compute.segment import Blueprint, Segment, skeleton
from paceline.compute.stage import Stage
from paceline.core.agenda import Chunk
from paceline.core.schedules.memory import Weighed
from paceline.data.source import Reader
from paceline.job import Job


class Live(TorchDispatchMode):
    """Counts the bytes of all tensors that are made while it is on, until they are let go."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf.untyped_storage(), given)
        return result

    def _see(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key = storage._cdata
        if key in self._known or key in given:
            return
        self._known.add(key)
        self.bytes += storage.nbytes()
        self.most = max(self.most, self.bytes)
        weakref.finalize(storage, self._gone, key, storage.nbytes())

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size

    def begin(self) -> int:
        """From here on count the most anew; what lies there now."""
        self.most = self.bytes
        return self.bytes


def weigh_all(job: Job, module: nn.Module, blueprint: Blueprint, reader: Reader, chunk: Chunk) -> list[Weighed]:
    """Every stage of a blueprint; each worker's segment is made for it."""
    holdings = blueprint.holdings(module)
    twins = [skeleton(module, mine) for mine in holdings]
    return weigh(job, [Segment(w, job, twin, blueprint, reader) for w, twin in enumerate(twins)], chunk)


def weigh(job: Job, segments: Sequence[Segment], chunk: Chunk) -> list[Weighed]:
    """Every stage, by two micro-batches like this one: the second finds gradients to add to."""
    live, stages = Live(), [s for segment in segments for s in segment.stages.values()]
    stages = sorted(stages, key=lambda stage: stage.code.number)
    found: dict[int, list[int]] = {}
    with live:
        for _ in range(2):
            _there_and_back(live, segments[0], stages, chunk, found)
    return [_weighed(job, live, stage, found[stage.code.number]) for stage in stages]


def _there_and_back(
    live: Live, segment: Segment, stages: Sequence[Stage], chunk: Chunk, found: dict[int, list[int]]
) -> None:
    sent: list[Tensor] = []
    for stage in stages:
        reads = stage.code.first or stage.code.last or segment.job.weight is not None
        before = live.begin()
        batch = segment.reader.batch(chunk) if reads else None
        takes = [value.clone() for value in sent]  # as a message is
        sent.clear()
        sent += stage.forward(0, chunk, takes, batch, 0, 0)
        del takes, batch
        found[stage.code.number] = [live.bytes - before, live.most - before]
    gradients: list[Tensor | None] = []
    for stage in reversed(stages):
        before = live.begin() - found[stage.code.number][0]
        gradients = stage.inputs(0, gradients, 0)
        found[stage.code.number].append(live.most - before)
        owed = live.begin() - before
        stage.pay(0)
        found[stage.code.number] += [owed, live.most - before]


def _weighed(job: Job, live: Live, stage: Stage, counted: list[int]) -> Weighed:
    kept, forward, backward, owed, pay = counted
    weights = stage.weights
    gradients = sum(p.nbytes for p in weights.parameters)
    state, moment = _step(live, weights.home.optimizer, weights.masters)
    held = gradients * max(1, weights.copies) + state + sum(b.nbytes for b in stage.moving.values)
    for parameter in weights.parameters:
        parameter.grad = None
    return Weighed(held, gradients, kept, forward, backward, moment, owed, pay)


def _step(live: Live, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> tuple[int, int]:
    """What the optimizer remembers of these parameters, and what a step needs for a moment; by steps on copies."""
    copies = {p: nn.Parameter(p.detach().clone()) for p in parameters}
    if not copies:
        return 0, 0
    twin = optimizer_over(optimizer, copies)
    with live:
        for copied in copies.values():
            copied.grad = torch.zeros_like(copied)
        before = live.begin()
        twin.step()
        state = live.bytes - before
        before = live.begin()
        twin.step()
        moment = live.most - before
    return state, moment
