"""What a node needs for its part of a run, and what all nodes do alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from paceline.algorithms.cluster.vacancies import Vacancy
from paceline.plans.plan import program_of
from paceline.runtime.engines.cluster.group_client import RankConfig
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.cluster.terms import Terms
from paceline.runtime.engines.setup import Setup
from paceline.runtime.engines.workers.state_buffers import ResumePoint, StateBuffer
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.hub import Hub
from paceline.runtime.links.tcp.waiting import Pump, Timing
from paceline.training.parameters.layout import sha256, state_tensors
from paceline.training.parameters.worker_state import WorkerState

POLL = 0.1  # seconds between two looks at the worker, at most


@dataclass(frozen=True)
class NodePart:
    """One node's part of a run."""

    setup: Setup
    roster: Roster
    terms: Terms
    hub: Hub
    pump: Pump
    timing: Timing
    #: Seconds that a rank may wait for another one.
    deadline: float

    def close(self) -> None:
        """Leave all other nodes."""
        self.hub.close()
        self.pump.close()

    def starting_from(self, initial: Mapping[str, Tensor]) -> NodePart:
        """Return this part with a model that starts from the head's parameters and buffers."""
        module = self.setup.fresh_module()
        with torch.no_grad():
            for name, tensor in state_tensors(module).items():
                tensor.copy_(initial[name])
        digest = sha256(module)
        job, users_job = self.setup.job.with_(model=module), self.setup.users_job.with_(model=module)
        setup = replace(self.setup, job=job, users_job=users_job, module=module, initial_sha256=digest)
        return replace(self, setup=setup, terms=replace(self.terms, initial_sha256=digest))

    def moves_early(self, resumed: bool) -> bool:
        """Whether another rank may lead before the training has begun: where that needs nothing but ready workers.

        Servers would have to be started anew, and only the first head knows what a run is resumed from.
        """
        return self.setup.plan.method.server is None and not resumed

    def rank_config(self, run: bytes, host: str) -> RankConfig:
        """Return what this node's worker needs to meet the other ranks."""
        plan, job = self.setup.plan, self.terms.sha256
        canonical = program_of(plan).collective if plan.canonical else None
        return RankConfig(
            self.roster.rank,
            plan.workers,
            run,
            job,
            host,
            self.roster.credentials,
            self.deadline,
            self.timing,
            canonical,
        )


class ManagedNodes(Protocol):
    """Nodes that the head starts, and may replace, as those of the roster `ray`."""

    #: Whether a node that is lost is replaced.
    replaces: bool

    def start(self, head: Address) -> None:
        """Start the nodes, which dial the head there."""

    def poll(self) -> None:
        """See whether all is well; called several times a second.

        Raises:
            RunFailed: a node cannot start, or what starts them cannot be reached any longer.
        """

    def started(self) -> None:
        """Take note that every node has come: from now on one that ends is replaced, or does not end the run."""

    def offer(self) -> Vacancy:
        """Return a rank that no node has, for one whose own another node has by now."""

    def admits(self, vacancy: Vacancy) -> bool:
        """Whether a node may have a rank, which was offered to no other."""

    def lost(self, rank: int) -> None:
        """Take note that the node of a rank cannot be reached any longer."""

    def joined(self, rank: int) -> None:
        """Take note that a node has come in the place of one that was lost."""


def resume_point(updates: int, every: int, keeps: bool, state: WorkerState | None) -> ResumePoint:
    """Return from where a worker trains, with its state in a buffer if the run keeps checkpoints or was resumed."""
    buffer = StateBuffer() if keeps or state is not None else None
    if buffer is not None and state is not None:
        buffer.next.write(updates, state)
    return ResumePoint(updates, state is not None, every, buffer)


def joined(values: Sequence[Tensor]) -> memoryview:
    """Return values one after another, as bytes."""
    flat: memoryview = torch.cat([value.detach().flatten() for value in values]).numpy().data
    return flat


def split(setup: Setup, content: memoryview) -> list[Tensor]:
    """Return the values that `joined` has put together."""
    tensors = dict(setup.module.named_parameters()) | dict(setup.module.named_buffers())
    shapes = [tuple(tensors[name].shape) for name in setup.names]
    flat = torch.frombuffer(bytearray(content), dtype=setup.layout.dtype)
    parts = flat.split([prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
