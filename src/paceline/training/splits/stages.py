"""A worker's parts of one stage of a pipeline: its program runs between what the stage takes and what it gives.

What comes from the stage before is with every worker of the group, whole, as is what goes to the next one; so each
worker exchanges messages with the worker of its own place in the neighbouring stage.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from torch import Tensor, fx, nn

from paceline.algorithms.splits.derivation import Program
from paceline.errors import JobError
from paceline.training.gradients.replica import Replica
from paceline.training.parameters.layout import Layout
from paceline.training.splits.exchanging import Request
from paceline.training.splits.gradients import largest_of, seed_alike
from paceline.training.splits.slicing import outline
from paceline.training.splits.walk import ChunkWalk, SplitModel
from paceline.training.stages.blueprint import Blueprint
from paceline.training.stages.cutting import Code
from paceline.training.stages.tracing import Traced, TracedCall

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
