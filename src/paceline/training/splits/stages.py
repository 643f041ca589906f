"""The layers inside the stages of a pipeline, split: planned for each stage, and a worker's parts of one.

What comes from the stage before is with every worker of the group, whole, as is what goes to the next one; so each
worker exchanges messages with the worker of its own place in the neighbouring stage.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.schedules import BACKWARD, FORWARD, Pass, Work
from paceline.algorithms.splits.derivation import Program, derive
from paceline.algorithms.splits.proof import prove_program
from paceline.algorithms.splits.recipes import SplitRecipe
from paceline.errors import JobError
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch, Job
from paceline.training.parameters.layout import Layout, trainable
from paceline.training.splits.describing import describe
from paceline.training.splits.exchanging import Request
from paceline.training.splits.gradients import Shapes, largest_of, seed_alike
from paceline.training.splits.planning import (
    APART,
    compare_buffers,
    compare_gradients,
    compare_losses,
    rehearsed,
    run_together,
)
from paceline.training.splits.slicing import Stored, outline, shapes_of, sliced, stored_by
from paceline.training.splits.walk import ChunkWalk, SplitModel
from paceline.training.stages.cutting import Blueprint, Code
from paceline.training.stages.planning import Example, fresh, through
from paceline.training.stages.segment import Message, Segment
from paceline.training.stages.tracing import Traced, TracedCall, retrace

Moving = Generator[Request, Tensor, Any]


class StageParts:
    """A worker's parts of one stage, and the micro-batches that are under way in it (`stages.stage.Parts`)."""

    def __init__(self, traced: Traced, blueprint: Blueprint, stage: int, place: int) -> None:
        self.module, self.stage = traced.module, stage
        programs: Mapping[Any, Program] = blueprint.programs[stage]
        self.models = {sizes: SplitModel(traced, each, place, blueprint.shapes) for sizes, each in programs.items()}
        self.walks: dict[int, ChunkWalk] = {}

    def forward(self, micro: int, replica: Replica, tensors: list[Tensor]) -> Moving:
        """Compute a micro-batch together with the other workers of the group; return what the stage gives."""
        sizes = tuple(tuple(tensor.shape) for tensor in tensors)
        if sizes not in self.models:
            raise JobError(
                f"stage {self.stage} was split for tensors of {' or '.join(map(str, self.models))}, and some are "
                f"{sizes}; make all samples of one size, or take inside=1"
            )
        self.walks[micro] = ChunkWalk(self.models[sizes], replica, tensors)
        return (yield from self.walks[micro].forward())

    def backward(self, micro: int) -> Moving:
        """Compute back from the gradients of what the stage gave; return those of what it took."""
        return (yield from self.walks.pop(micro).backward())


class SplitStages:
    """Makes the parts of a worker's stages, over the module that holds them (`stages.segment.Inside`)."""

    def __init__(self, module: nn.Module, blueprint: Blueprint, place: int) -> None:
        self.module, self.blueprint, self.place = module, blueprint, place
        #: The same module in whole shapes and without memory, over which the model's code is traced.
        self.outer = outline(module, blueprint.shapes).train()

    def seed_alike(self) -> None:
        """Seed the modules that were traced as those that compute; to be called once `module` is seeded."""
        seed_alike(self.module, self.outer)

    def parts(self, code: Code) -> StageParts:
        return StageParts(traced_stage(code, self.module), self.blueprint, code.number, self.place)


def bytes_sent(blueprint: Blueprint, layout: Layout) -> int:
    """Return the most bytes that a worker sends to those that share its stages, in one exchange."""
    size = max(layout.bytes_per_number, 8)  # whole numbers may be larger than the model's own
    return max(largest_of(program, size) for stage in blueprint.programs for program in stage.values())


def traced_stage(code: Code, module: nn.Module) -> Traced:
    """Return the graph of one stage over the modules of the whole model."""
    graph: fx.Graph = code.part.graph
    return Traced(module, graph, TracedCall((), {}))


# Splitting the layers inside the stages of a pipeline: each stage is described, derived, proved, and all rehearsed.


def with_parts(
    job: Job, module: nn.Module, blueprint: Blueprint, examples: Sequence[Example], recipe: SplitRecipe, workers: int
) -> Blueprint:
    """Return the blueprint of a pipeline with the programs of so many workers inside each stage."""
    programs: list[dict[Shapes, Program]] = [{} for _ in blueprint.stage_to_worker]
    for example in examples:
        twin = Replica(job, copy.deepcopy(module).train(), ())
        codes = blueprint.codes(twin.module)
        traced = retrace(twin.module, blueprint.call, blueprint.exported)
        travels, _ = through(codes, twin, traced, example)
        parts = [
            describe(traced_stage(code, twin.module), [t.detach().requires_grad_(t.requires_grad) for t in tensors])
            for code, tensors in zip(codes, travels, strict=True)
        ]
        recipe.check([node for described in parts for node in described.nodes])
        for number, described in enumerate(parts):
            program = derive(
                recipe.prepare(described.nodes, workers),
                described.inputs,
                described.outputs,
                described.needs,
                workers,
                recipe.choose,
            )
            prove_program(program)
            programs[number][tuple(described.inputs.values())] = program
    shapes, stored = shapes_of(module), _stored(programs)
    extended = replace(blueprint, programs=tuple(programs), shapes=shapes, stored=stored)
    rehearsed(module, examples, lambda module, examples: _rehearse(job, module, extended, examples, workers))
    return extended


def _stored(programs: Sequence[dict[Shapes, Program]]) -> dict[str, Stored]:
    """Return how everything is stored; what several stages use must lie alike in all of them."""
    by_name: dict[str, Stored] = {}
    for stage in programs:
        for name, stored in stored_by(next(iter(stage.values()))).items():
            if by_name.setdefault(name, stored) != stored:
                raise JobError(
                    f"{name} is used by several stages, which would split it differently; cut the model elsewhere "
                    "(cuts=), or take inside=1"
                )
    return by_name


class _Known:
    """A reader of one micro-batch."""

    def __init__(self, batch: Batch) -> None:
        self.known = batch

    def batch(self, chunk: Chunk) -> Batch:
        return fresh((chunk, self.known))[1]


def _rehearse(job: Job, module: nn.Module, blueprint: Blueprint, examples: Sequence[Example], workers: int) -> None:
    """Compare all stages, computed by all workers together, with the model."""
    alone = replace(blueprint, stage_to_worker=(0,) * len(blueprint.stage_to_worker))
    for chunk, batch in examples:
        replica = Replica(job, copy.deepcopy(module).train(), blueprint.moving)
        expected = replica.backward(chunk, fresh((chunk, batch))[1], replica.chunk_weight(chunk, batch))
        segments = [_segment(job, module, alone, place, batch) for place in range(workers)]
        for segment in segments:
            segment.begin(Pass(0, (1,), lambda update, chunk=chunk: [chunk]))  # type: ignore[misc]
        stages = range(len(blueprint.stage_to_worker))
        works = [*(Work(s, 0, FORWARD) for s in stages), *(Work(s, 0, BACKWARD) for s in reversed(stages))]
        messages: list[Message] = [[] for _ in segments]
        for work in works:
            messages = run_together(
                [segment.compute(work, message) for segment, message in zip(segments, messages, strict=True)],
                blueprint.carries_chance,
            )
        sums = segments[0].stages[stages[-1]].sums
        apart = APART.get(next(iter(trainable(module).values())).dtype, 1e-2)
        compare_losses(module, expected, sums.loss / sums.weight, apart)
        gradients = [[p.grad for p in trainable(_module(segment)).values()] for segment in segments]
        compare_gradients(module, replica.take(), gradients, blueprint.stored, apart)
        compare_buffers(
            module, blueprint.moving, replica.moving, [_moving(s, blueprint.moving) for s in segments], blueprint.stored
        )


def _segment(job: Job, module: nn.Module, blueprint: Blueprint, place: int, batch: Batch) -> Segment:
    mine = sliced(module, blueprint.stored, place)
    return Segment(0, job, mine, blueprint, _Known(batch), SplitStages(mine, blueprint, place))  # type: ignore[arg-type]


def _module(segment: Segment) -> nn.Module:
    assert segment.inside is not None
    return segment.inside.module


def _moving(segment: Segment, names: Sequence[str]) -> list[torch.Tensor]:
    buffers = dict(_module(segment).named_buffers())
    return [buffers[name] for name in names]
