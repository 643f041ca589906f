"""A segment: the stages of one worker, with the messages between them and its neighbours.

It computes the work that the worker's program asks for (`algorithms.schedules.worker`), from the message that it is
handed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn

from paceline.algorithms.schedules import BACKWARD, FORWARD, WEIGHTS, Pass, Work
from paceline.errors import NotFinite
from paceline.training.data.source import Reader
from paceline.training.gradients.payload import GradientSum
from paceline.training.gradients.replica import Chance, Replica
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import Layout, lay_out_tensors, trainable
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.store import restore_store, state_of_store
from paceline.training.parameters.worker_state import WorkerState, copy_into
from paceline.training.stages.cutting import Blueprint, Code, held
from paceline.training.stages.stage import Moves, Parts, Stage
from paceline.training.stages.weight_versions import weights_of

Message = list[Tensor | None]


class Inside(Protocol):
    """Makes a worker's parts of stages whose layers several workers share."""

    @property
    def module(self) -> nn.Module:
        """The model, with the parts that this worker stores."""

    @property
    def outer(self) -> nn.Module:
        """The model in whole shapes, over which its code is traced."""

    def seed_alike(self) -> None:
        """Seed the modules that were traced as those that compute."""

    def parts(self, code: Code) -> Parts:
        """Return this worker's parts of a stage."""


class Segment:
    """The stages of one worker."""

    def __init__(
        self,
        worker: int,
        job: Job,
        module: nn.Module,
        blueprint: Blueprint,
        reader: Reader,
        inside: Inside | None = None,
    ) -> None:
        """
        Args:
            worker: the worker's place along the axis `layers`.
            module: the model; only the parameters and buffers that this worker holds need memory.
        """
        self.worker, self.job, self.blueprint, self.reader = worker, job, blueprint, reader
        outer = module if inside is None else inside.outer
        codes = blueprint.codes(outer)
        optimizer = job.make_optimizer(module, list(trainable(module).values()))
        chance = Chance(module, job.seed)
        if inside is not None:
            inside.seed_alike()
        self.inside = inside
        self.names: dict[int, list[str]] = {}  # per stage, of its parameters and moving buffers
        self.stages = {
            code.number: self._stage(code, names, job, module, optimizer, chance)
            for code, names in zip(codes, held(codes, outer), strict=True)
            if blueprint.stage_to_worker[code.number] == worker
        }
        #: The factor of an update's gradients, and whether they are applied, as all workers agreed.
        self.scale, self.good = 1.0, True

    def _stage(
        self, code: Code, names: list[str], job: Job, module: nn.Module, optimizer: Optimizer, chance: Chance
    ) -> Stage:
        blueprint, number, named = self.blueprint, code.number, trainable(module)
        mine = [named[name] for name in names if name in named]
        moving = [name for name in blueprint.moving if name in names]
        replica = Replica(job, nn.ParameterList(), ())
        replica.parameters, replica.chance = mine, chance
        weights = weights_of(mine, optimizer, job.lr_scheduler, blueprint.versions[number], blueprint.predicts)
        self.names[number] = [*(name for name in names if name in named), *moving]
        parts = self.inside.parts(code) if self.inside is not None else None
        return Stage(code, replica, blueprint, weights, moving, parts)

    def begin(self, passing: Pass) -> None:
        """Begin a new table."""
        self.passing = passing

    def compute(self, work: Work, message: Message | None) -> Moves[Message]:
        """Compute a forward, a backward or a half of one; return the message that follows from it.

        It asks for the movements between workers that share the stage's layers.
        """
        stage, micro, what, version = self.stages[work.stage], work.micro, work.what, self.passing.first + work.version
        if what == WEIGHTS:
            stage.backward_weights(micro)
            return []
        if what == FORWARD:
            chunk, ahead = self.passing.chunk(micro), self.passing.ahead(micro, work.version)
            batch = self.reader.batch(chunk) if self.reads(stage) else None
            return list((yield from stage.forward(micro, chunk, message or [], batch, version, ahead)))  # type: ignore[arg-type]
        backward = stage.backward if what == BACKWARD else stage.backward_inputs
        return (yield from backward(micro, message or [], version))

    def update(self, work: Work) -> GradientSum:
        """Make the next version of a stage; return the sums of the update's micro-batches."""
        stage, update = self.stages[work.stage], self.passing.first + work.version - 1
        assert stage.summed is not None
        if stage.code.last and self.job.on_nan == "stop" and not math.isfinite(stage.summed.loss):
            raise NotFinite(stage.summed.loss, update, self.samples(update))
        return stage.update(self.scale, self.good)

    def reads(self, stage: Stage) -> bool:
        """Whether this stage needs the batch itself: its inputs, its targets, or its weight."""
        return stage.code.first or stage.code.last or self.job.loss_denominator is not None

    def samples(self, update: int) -> list[int]:
        chunks = self.passing.chunks(update)
        return [n for chunk in chunks for n in self.reader.order.indices(chunk).tolist()]

    def squares(self) -> float:
        """Return the squared norm of the worker's gradients, which are summed up."""
        return sum(stage.squares() for stage in self.stages.values())

    def agree(self, squares: float) -> None:
        """Clip the gradient, or leave it out, by the sum of all workers' squares."""
        job = self.job
        scale = 1.0 if job.gradient_clip_norm is None else job.gradient_clip_norm / (math.sqrt(squares) + 1e-6)
        self.scale = 1.0 if scale > 1.0 else scale
        self.good = job.on_nan != "skip" or math.isfinite(squares)

    def layout(self, number: int) -> Layout:
        """Return how a stage's gradients lie in the vector that replicas add up."""
        named = list(self.named(number))
        count = len(self.stages[number].parameters)
        return lay_out_tensors(named[:count], named[count:])

    def named(self, stage: int) -> Iterator[tuple[str, Tensor]]:
        """Yield a stage's newest parameters and its moving buffers, with their names."""
        return zip(self.names[stage], self.stages[stage].values(), strict=True)

    def worker_state(self) -> WorkerState:
        """Return the state to resume from, each stage's under its number."""
        state = WorkerState(dict(each for number in self.stages for each in self.named(number)))
        for number, stage in self.stages.items():
            store_state = state_of_store(stage.weights.store)
            state |= WorkerState(
                {f"{number}/{key}": value for key, value in store_state.tensors.items()},
                {str(number): store_state.facts},
            )
        return state

    def restore(self, state: WorkerState) -> None:
        for number, stage in self.stages.items():
            named = dict(self.named(number))
            copy_into(list(named.values()), [state.tensors[name] for name in named])
            start = f"{number}/"
            tensors = {key.removeprefix(start): value for key, value in state.tensors.items() if key.startswith(start)}
            restore_store(stage.weights.store, WorkerState(tensors, state.facts[str(number)]))
            stage.weights.restored()
