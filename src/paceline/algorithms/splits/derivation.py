"""The derivation: from how each layer is split to the program that every worker of the group runs.

Layers are taken in the model's order. Where one wants a value placed otherwise than it was made, the movement between
the two placements becomes a step of the program:

    compute  embed                         every worker, on what it holds
    move     embed: partial -> copied      sum
    compute  linear1, relu, linear2
    move     linear2: partial -> whole     sum
    compute  loss
    ...                                    and back: the same steps in reverse, each movement by its dual

A value is moved to a placement once, for all operations. All workers have the same steps, so the program of a group
is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from paceline.algorithms.splits import COPIED, WHOLE, Held, Layout, Placement, Shape, SplitNode, cannon, flat
from paceline.algorithms.splits import ways as experts
from paceline.algorithms.splits.cannon import PRODUCT
from paceline.algorithms.splits.catalogue import SPLITS
from paceline.algorithms.splits.placements import Movement, follow, kind_of
from paceline.errors import PlanError

#: Chooses the split of a layer from how what it takes was made; an empty word lets it follow.
Choose = Callable[[SplitNode, Sequence[Placement], int], str]
#: Ways under which a layer becomes several operations.
COMPOSED = {cannon.Cannon.name: cannon.steps, experts.Experts.name: experts.steps}
PARAMETER = "@"  # before the name of a parameter, where it is a value of the program
JOINT = "+"  # the value that gradients of several parameters are together, to be added up in one movement


class ProgramStep(NamedTuple):
    """One step of a program: some operations, or a movement of one value."""

    #: The operations, in order; () for a movement.
    nodes: tuple[str, ...] = ()
    value: str = ""
    source: Placement = WHOLE
    target: Placement = WHOLE
    #: Whether it belongs to the backward pass.
    back: bool = False
    #: Whether it repeats a movement of the forward pass, whose result was dropped.
    again: bool = False
    #: The parameters whose gradients are moved together, where the value is `JOINT`.
    joins: tuple[str, ...] = ()

    @property
    def movement(self) -> Movement:
        """What travels: of the value, or of its gradient."""
        forward = Movement(self.source, self.target)
        return forward.back if self.back else forward

    def __str__(self) -> str:
        way = "back through " if self.back else ""
        if self.nodes:
            return f"compute {way}{', '.join(self.nodes)}"
        what = "the gradient of " if self.back else ""
        if self.joins:
            return f"{self.movement.kind} the gradients of {', '.join(v.removeprefix(PARAMETER) for v in self.joins)}"
        return f"{self.movement.kind} {what}{self.value} ({self.source} -> {self.target})"


@dataclass(frozen=True)
class Program:
    """What the workers of a group compute and exchange for one chunk."""

    workers: int
    nodes: Mapping[str, SplitNode]
    #: The way in which each operation is split; an empty word where it follows what it takes.
    ways: Mapping[str, str]
    layouts: Mapping[str, Layout]
    #: How every parameter and buffer is stored between updates, by its name in the model.
    stored: Mapping[str, Placement]
    #: The shape of each value, of each parameter with `PARAMETER` before its name, and of `JOINT`.
    shapes: Mapping[str, Shape]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: The values that need a gradient.
    needs: frozenset[str]
    forward: tuple[ProgramStep, ...]
    #: Whether what was gathered of a parameter is dropped after its last use forward, and gathered again for its first
    #: use back.
    drops: bool = False

    def __post_init__(self) -> None:
        joined = sum(prod(self.shapes[value]) for value in self.joins)
        object.__setattr__(self, "shapes", {**self.shapes, JOINT: (joined,)})

    @property
    def steps(self) -> tuple[ProgramStep, ...]:
        """The whole line: forward, then backward."""
        back: list[ProgramStep] = []
        gathered: set[tuple[str, Placement]] = set()
        for step in reversed(self.forward):
            if step.nodes and self.drops:
                again = [move for move in self.gathers(step) if (move.value, move.target) not in gathered]
                gathered |= {(move.value, move.target) for move in again}
                back += [move._replace(again=True) for move in again]
            if step.nodes or step.value in self.needs:
                back.append(step._replace(back=True))
        joins = self.joins
        if joins:
            back = [step for step in back if step.value not in joins or step.again]
            back.append(ProgramStep((), JOINT, WHOLE, COPIED, True, joins=joins))
        return (*self.forward, *back)

    @property
    def joins(self) -> tuple[str, ...]:
        """The parameters whose gradients are summed together, at the end: a message costs more than some numbers."""
        moves = [step for step in self.forward if step.value.startswith(PARAMETER) and step.value in self.needs]
        summed = [step.value for step in moves if (step.source, step.target) == (WHOLE, COPIED)]
        others = {step.value for step in moves if step.value not in summed}
        values = tuple(value for value in reversed(summed) if value not in others)
        return values if len(values) > 1 else ()

    def gathers(self, step: ProgramStep) -> list[ProgramStep]:
        """Return the movements whose results a step's layers use, and may drop afterwards.

        They are those of parameters, and of blocks. What code reads by name may have been handed on, and stays.
        """
        used: set[tuple[str, Placement]] = set()
        for name in step.nodes:
            node, layout = self.nodes[name], self.layouts[name]
            used |= {(PARAMETER + parameter.name, layout.uses.get(parameter.role, WHOLE)) for parameter in node.held}
            if node.kind == PRODUCT:
                used.add((node.takes[0], layout.takes[0]))
        read = {
            PARAMETER + parameter.name for node in self.nodes.values() if node.kind == "read" for parameter in node.held
        }
        return [
            move
            for move in self.forward
            if (move.value, move.target) in used and move.source.is_split and move.value not in read
        ]

    def placed(self, value: str) -> Placement:
        """Return how a value is placed where it is made."""
        if value.startswith(PARAMETER):
            return self.stored[value.removeprefix(PARAMETER)]
        return self.layouts[value].gives if value in self.layouts else WHOLE

    def numbers(self, place: int) -> dict[str, int]:
        """Return how many numbers the worker at this place sends, forward and back, by value."""
        counts: dict[str, int] = {}
        for step in self.steps:
            if step.value:
                sent = step.movement.numbers(self.shapes[step.value], place, self.workers)
                counts[step.value] = counts.get(step.value, 0) + sent
        return {value: sent for value, sent in counts.items() if sent}


@dataclass
class _Derivation:
    """The program so far."""

    nodes: dict[str, SplitNode]
    workers: int
    shards_parameters: bool
    placed: dict[str, Placement]
    shapes: dict[str, Shape]
    stored: dict[str, Placement] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    steps: list[ProgramStep] = field(default_factory=list)
    moved: set[tuple[str, Placement]] = field(default_factory=set)

    def add(self, node: SplitNode, choose: Choose) -> None:
        placements = [self.placed.get(value, WHOLE) for value in node.takes]
        way = choose(node, placements, self.workers)
        if way and (why := SPLITS[way].refusal(node, self.workers)):
            raise PlanError(f"{node.layer or node.name} cannot be split by {way}: {why}")
        for each in COMPOSED[way](node, self.workers) if way in COMPOSED else (node,):
            layout = SPLITS[way].layout(each, self.workers) if way else follow(node, placements, self.workers)
            self.compute(each, way, layout)

    def compute(self, node: SplitNode, way: str, layout: Layout) -> None:
        """Add an operation, with the movements that it needs."""
        self.nodes[node.name] = node
        self.ways[node.name], self.layouts[node.name] = way, layout
        for parameter in node.held:
            self.hold(node, parameter, layout.uses.get(parameter.role, WHOLE))
        for value, placement in zip(node.takes, layout.takes, strict=True):
            self.move(node, value, placement)
        if self.steps and self.steps[-1].nodes:
            self.steps[-1] = ProgramStep((*self.steps[-1].nodes, node.name))
        else:
            self.steps.append(ProgramStep((node.name,)))
        self.placed[node.name] = layout.gives
        if node.shape is not None:
            self.shapes[node.name] = node.shape

    def hold(self, node: SplitNode, parameter: Held, placement: Placement) -> None:
        """Store a parameter as its first layer uses it, or in shares, and move it for the others."""
        name, value = parameter.name, PARAMETER + parameter.name
        shared = self.shards_parameters and parameter.trained
        stored = flat(parameter.shape, self.workers) if shared else placement.stored
        self.stored.setdefault(name, stored)
        self.placed[value] = self.stored[name]
        self.shapes.setdefault(value, parameter.shape)
        self.move(node, value, placement)

    def move(self, node: SplitNode | None, value: str, target: Placement) -> None:
        source = self.placed.get(value, WHOLE)
        if source == target or (value, target) in self.moved:
            return
        if value not in self.shapes:
            who = "the loss" if node is None else node.layer or node.name
            raise PlanError(
                f"{value} is not a tensor, and would have to be moved for {who} ({source} -> {target}); leave the "
                "layer "
                "that makes it whole"
            )
        self.moved.add((value, target))
        kind_of(source, target)  # raises where nothing leads there
        self.steps.append(ProgramStep((), value, source, target))


def derive(
    nodes: Sequence[SplitNode],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    needs: Collection[str],
    workers: int,
    choose: Choose,
    shards_parameters: bool = False,
    drops: bool = False,
) -> Program:
    """Return the program of a model.

    Args:
        nodes: the operations, in order.
        inputs: the tensors that the model takes, with their shapes; every worker has them.
        outputs: the values that the loss takes; every worker needs them whole.
        needs: the values that need a gradient; parameters with `PARAMETER` before their names.
        shards_parameters: whether every worker stores a share of each parameter, and gathers it.
        drops: whether it drops what it gathered after the forward pass of the layer, and gathers it again.
    """
    draft = _Derivation({}, workers, shards_parameters, dict.fromkeys(inputs, WHOLE), dict(inputs))
    for node in nodes:
        draft.add(node, choose)
    for value in outputs:
        draft.move(None, value, WHOLE)
    for name, node in draft.nodes.items():
        if "#" in name and (node.held or any(value in needs for value in node.takes)):
            needs = {*needs, name}
    drops = drops or any(node.kind in cannon.KINDS for node in draft.nodes.values())
    return Program(
        workers,
        draft.nodes,
        draft.ways,
        draft.layouts,
        draft.stored,
        draft.shapes,
        tuple(inputs),
        tuple(outputs),
        frozenset(needs),
        tuple(draft.steps),
        drops,
    )
