"""A segment: the stages of one worker, with the messages between them and its neighbours.

It executes the work of the worker's program (core.schedules). Messages to another worker are fetched from it, and those
from another worker handed to it. What goes from one of its stages to another stays inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor, nn

from paceline.core.schedules import ALL_REDUCE, BACKWARD, FORWARD, SEND_ON, TAKE_ON, UPDATE, WEIGHTS, Work
from paceline.core.schedules.passes import Pass
from paceline.data.source import Reader
from paceline.errors import NotFinite
from paceline.gradients.payload import GradientSum
from paceline.gradients.randomness import Chance
from paceline.gradients.replica import Replica
from paceline.jobs.job import Job
from paceline.parameters.layout import Layout, lay_out_tensors, trainable
from paceline.parameters.optimizers import Optimizer
from paceline.parameters.store import restore_store, state_of_store
from paceline.parameters.worker_state import WorkerState, copy_into
from paceline.stages.blueprint import Blueprint, held
from paceline.stages.cutting import Code
from paceline.stages.stage import Moves, Parts, Stage
from paceline.stages.weight_versions import weights_of

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
        self, worker: int, job: Job, module: nn.Module, blueprint: Blueprint, reader: Reader,
        inside: Inside | None = None,
    ) -> None:  # fmt: skip
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
        #: Adds a stage's sums up with those of other replicas.
        self.add_up: Callable[[int, GradientSum], GradientSum] = lambda stage, share: share
        self.names: dict[int, list[str]] = {}  # per stage, of its parameters and moving buffers
        self.stages = {
            code.number: self._stage(code, names, job, module, optimizer, chance)
            for code, names in zip(codes, held(codes, outer), strict=True)
            if blueprint.stage_to_worker[code.number] == worker
        }
        #: The factor of an update's gradients, and whether they are applied, as all workers agreed.
        self.scale, self.good = 1.0, True
        #: Values between stages, by (whether it is an activation, stage that needs it, micro-batch).
        self.between: dict[tuple[bool, int, int], Message] = {}

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

    def do(self, work: Work) -> Moves[GradientSum | None]:
        """Execute work that is not a message; return the sums of an update's micro-batches.

        It asks for the movements between workers that share the stage's layers.
        """
        stage = self.stages[work.stage]
        version = self.passing.first + work.version
        if work.what == UPDATE:
            self.settle(work.stage)
            assert stage.summed is not None
            if stage.code.last and self.job.on_nan == "stop" and not math.isfinite(stage.summed.loss):
                raise NotFinite(stage.summed.loss, version - 1, self.samples(version - 1))
            return stage.update(self.scale, self.good)
        if work.what == ALL_REDUCE:
            return None
        if work.what == FORWARD:
            chunk = self.passing.chunk(work.micro)
            values = [] if stage.code.first else self._taken(True, work)
            batch = self.reader.batch(chunk) if self.reads(stage) else None
            ahead = self.passing.ahead(work.micro, work.version)
            gives: Message = list((yield from stage.forward(work.micro, chunk, values, batch, version, ahead)))  # type: ignore[arg-type]
            if not stage.code.last:
                self.between[True, work.stage + 1, work.micro] = gives
        elif work.what == WEIGHTS:
            stage.backward_weights(work.micro)
        else:
            gradients = [] if stage.code.last else self._taken(False, work)
            backward = stage.backward if work.what == BACKWARD else stage.backward_inputs
            back = yield from backward(work.micro, gradients, version)
            if not stage.code.first:
                self.between[False, work.stage - 1, work.micro] = back
        return None

    def reads(self, stage: Stage) -> bool:
        """Whether this stage needs the batch itself: its inputs, its targets, or its weight."""
        return stage.code.first or stage.code.last or self.job.loss_denominator is not None

    def samples(self, update: int) -> list[int]:
        chunks = self.passing.chunks(update)
        return [n for chunk in chunks for n in self.reader.order.indices(chunk).tolist()]

    def settle(self, number: int) -> None:
        """Add the sums of a stage up with those of other replicas, once in an update."""
        if self.stages[number].summed is None:
            self.stages[number].settle(self.add_up(number, self.stages[number].share()))

    def squares(self) -> float:
        """Return the squared norm of the worker's gradients, once all of an update's are there."""
        for number in self.stages:
            self.settle(number)
        return sum(stage.squares() for stage in self.stages.values())

    def agree(self, squares: float) -> None:
        """Clip the gradient, or leave it out, by the sum of all workers' squares."""
        job = self.job
        scale = 1.0 if job.gradient_clip_norm is None else job.gradient_clip_norm / (math.sqrt(squares) + 1e-6)
        self.scale = 1.0 if scale > 1.0 else scale
        self.good = job.on_nan != "skip" or math.isfinite(squares)

    def _taken(self, onward: bool, work: Work) -> Message:
        return self.between.pop((onward, work.stage, work.micro))

    def fetch(self, work: Work) -> Message:
        """Return the message to be sent."""
        onward = work.what == SEND_ON
        return self.between.pop((onward, work.stage + (1 if onward else -1), work.micro))

    def hand(self, work: Work, message: Message) -> None:
        """Accept a message."""
        self.between[work.what == TAKE_ON, work.stage, work.micro] = message

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
        found = WorkerState(dict(each for number in self.stages for each in self.named(number)))
        for number, stage in self.stages.items():
            kept = state_of_store(stage.weights.store)
            found |= WorkerState(
                {f"{number}/{key}": value for key, value in kept.tensors.items()}, {str(number): kept.facts}
            )
        return found

    def restore(self, kept: WorkerState) -> None:
        for number, stage in self.stages.items():
            named = dict(self.named(number))
            copy_into(list(named.values()), [kept.tensors[name] for name in named])
            start = f"{number}/"
            tensors = {key.removeprefix(start): value for key, value in kept.tensors.items() if key.startswith(start)}
            restore_store(stage.weights.store, WorkerState(tensors, kept.facts[str(number)]))
            stage.weights.restored()
