"""The blueprint of a pipeline: where the model is cut, which worker has which stage, and what each stage needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.derivation import Program
from paceline.training.parameters.layout import trainable
from paceline.training.stages.cutting import Code, cut
from paceline.training.stages.exporting import ExportedGraph
from paceline.training.stages.tracing import TracedCall, retrace


@dataclass(frozen=True)
class Blueprint:
    """The cuts of the model, with all that workers need to cut it in the same way."""

    call: TracedCall
    exported: ExportedGraph | None  # the model's graph, where torch.fx cannot make it
    numbers: tuple[str, ...]  # values that travel as tensors and are whole numbers
    places: tuple[int, ...]  # where stages begin, in pieces
    names: tuple[str, ...]  # the same, as users know them
    needs: tuple[tuple[bool, ...], ...]  # per stage: which of what it takes wants a gradient
    carries_chance: bool  # whether the generator's state goes with the activations
    moving: tuple[str, ...]
    stage_to_worker: tuple[int, ...]
    versions: tuple[int, ...]
    predicts: bool
    slots: int
    flushes: bool
    recompute: tuple[bool, ...]
    splits: bool  # whether backwards come in two halves
    agrees: bool  # whether workers all-reduce the norm of the gradient before an update
    bytes_on: tuple[int, ...]  # of the largest message from each stage to the next
    bytes_back: tuple[int, ...]  # and back from that one
    #: Per stage, where workers share its layers: their program for each size of what the stage takes.
    programs: tuple[Mapping[tuple[tuple[int, ...], ...], Program], ...] = ()
    #: The shapes of the model's whole parameters and buffers.
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: How workers that share layers store each parameter and buffer, with the shape that the placement refers to.
    stored: Mapping[str, tuple[Placement, tuple[int, ...]]] = field(default_factory=dict)

    def codes(self, module: nn.Module) -> list[Code]:
        """Return the code of every stage, over this module."""
        traced = retrace(module.train(), self.call, self.exported)
        traced.numbers = set(self.numbers)
        return cut(traced, self.places)

    def holdings(self, module: nn.Module) -> list[list[str]]:
        """Return, per worker, the names of the parameters and buffers that it holds."""
        by_worker: list[list[str]] = [[] for _ in range(max(self.stage_to_worker) + 1)]
        for worker, names in zip(self.stage_to_worker, held(self.codes(module), module), strict=True):
            by_worker[worker] += names
        return by_worker


def skeleton(module: nn.Module, names: Sequence[str]) -> nn.Module:
    """Return a copy of the module in which only these parameters and buffers have memory."""
    real, memo = set(names), dict[int, object]()
    for name, parameter in module.named_parameters():
        if name not in real:
            memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for name, buffer in module.named_buffers():
        if name not in real:
            memo[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(module, memo)


def held(codes: Sequence[Code], module: nn.Module) -> list[list[str]]:
    """Return, per stage, the names of its parameters and buffers, in the module's order.

    A trained parameter belongs to the first stage that uses it, the rest to every one, and the last has the unused.
    """
    tensors, trained = dict((*module.named_parameters(), *module.named_buffers())), trainable(module)
    used = [{id(t) for t in (*code.part.parameters(), *code.part.buffers())} for code in codes]
    used[-1] |= {id(t) for t in tensors.values()} - set[int]().union(*used)
    once = {id(t) for t in trained.values()}
    used = [mine - (once & set[int]().union(*used[:number])) for number, mine in enumerate(used)]
    return [[name for name, tensor in tensors.items() if id(tensor) in mine] for mine in used]
