"""The walk of a program: a generator that computes what a worker does for one chunk, and asks for each movement.

    request = next(walk)                the first movement, with what this worker has of the value
    request = walk.send(tensor)         what the worker has after it
    StopIteration.value                 the mean loss of the chunk

Operations between two movements are a segment. Autograd sees a segment at a time: what a segment takes is cut off from
what made it, and its gradient is handed on. So each operation is computed back once, however its result is used. The
gradients of what a worker stores add up in `parameter.grad`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as preserve_version
from torch.utils._pytree import tree_map

from paceline.algorithms.splits import WHOLE, Layout, Placement, SplitNode, cannon, ways
from paceline.algorithms.splits.derivation import JOINT, PARAMETER, Program, ProgramStep
from paceline.training.gradients.loss import backward, backward_from
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch
from paceline.training.splits.exchanging import Request, Shares
from paceline.training.splits.operations import Operation
from paceline.training.stages.memory_estimate import resize
from paceline.training.stages.refusals import step_alone, tensors_of
from paceline.training.stages.tracing import KnownResult, Traced, attribute

KINDS = (*cannon.KINDS, *ways.KINDS)  # operations that are no piece of the model's graph
Key = tuple[str, Placement]
Walk = Generator[Request, Tensor, float]
Moves = Generator[Request, Tensor, None]


@dataclass
class Segment:
    """What autograd has seen of one segment."""

    #: Values from elsewhere, cut off from what made them.
    taken: dict[Key, Any] = field(default_factory=dict)
    made: dict[Key, Any] = field(default_factory=dict)


class SplitModel:
    """A worker's part of a model, with the program that it follows."""

    def __init__(
        self,
        traced: Traced,
        program: Program,
        place: int,
        shapes: Mapping[str, tuple[int, ...]],
        shares: Shares | None = None,
    ) -> None:
        """
        Args:
            traced: the graph of the whole model, over the modules that hold this worker's parts.
            shapes: of the model's whole parameters.
            shares: what is kept of gathered parameters, where a worker stores shares of them.
        """
        self.traced, self.program, self.place, self.shares = traced, program, place, shares
        self.shapes = {value: shapes.get(value.removeprefix(PARAMETER), s) for value, s in program.shapes.items()}
        self.steps = program.steps
        self.pieces = {node.name: node for node in traced.graph.nodes}
        #: The last step that uses a gathered parameter, forward.
        self.last_use = {
            (move.value, move.target): step.nodes
            for step in self.steps
            if not step.back
            for move in program.gathers(step)
        }
        self.operations = {
            name: Operation(
                traced, self.pieces[name.partition("#")[0]], node, program.layouts[name], program.ways[name], place
            )
            for name, node in program.nodes.items()
        }

    def walk(self, replica: Replica, batch: Batch, tensors: list[Tensor], weight: float) -> Walk:
        """Compute the loss of a chunk and add its gradient, times the weight, to the gradients of the parameters."""
        passing = ChunkWalk(self, replica, tensors)
        result = yield from passing.forward()
        with step_alone():
            loss = KnownResult().loss(replica, batch, result, weight)
        if loss.requires_grad:
            backward_from(loss, weight)
        yield from passing.backward()
        return float(loss.detach())

    def stored(self, name: str) -> Tensor:
        """Return what this worker stores of a parameter or a buffer."""
        tensor: Tensor = attribute(self.traced.module, name)
        return tensor

    def idle(self) -> Walk:
        """Take part in the movements of a chunk for which this worker has no samples."""
        for step in self.steps:
            if not step.value or not (self.shares is None or self.shares.moves(step)):
                continue
            shape, full_shape = self.program.shapes[step.value], self.shapes[step.value]
            mine = self.stored(step.value.removeprefix(PARAMETER))
            payload = torch.zeros(shape, dtype=mine.dtype) if step.back else mine.detach()
            moved = yield Request(step, shape, payload, full_shape)
            if step.back:
                add_gradient(mine, moved)
            elif self.shares is not None:
                self.shares.keep(step, moved)
        return 0.0


class ChunkWalk:
    """The values of one chunk."""

    def __init__(self, model: SplitModel, replica: Replica, tensors: list[Tensor]) -> None:
        self.model, self.program, self.replica = model, model.program, replica
        #: What this worker has of each value, in each placement.
        self.has: dict[Key, Any] = {(n, WHOLE): t for n, t in zip(self.program.inputs, tensors, strict=True)}
        #: The gradients of values so far, a list with an entry for each tensor of the value.
        self.gradients: dict[Key, list[Tensor | None]] = {}
        self.segments: dict[tuple[str, ...], Segment] = {}
        self.segment = Segment()

    def forward(self) -> Generator[Request, Tensor, Any]:
        """Compute forward; return what the model, or the stage, returns. Its gradients are to be left in it."""
        for step in self.model.steps[: self._turn]:
            yield from self._do(step)
        self.segment = Segment()
        output = self.model.traced.output.args[0]
        return fx.node.map_arg(output, lambda node: self._value((node.name, WHOLE)))

    def backward(self) -> Generator[Request, Tensor, list[Tensor | None]]:
        """Compute back; return the gradients of the tensors that were taken."""
        self._hand_on()
        for step in self.model.steps[self._turn :]:
            yield from self._do(step)
        per_input = [self.gradients.pop((name, WHOLE), None) for name in self.program.inputs]
        return [gradients[0] if gradients else None for gradients in per_input]

    @property
    def _turn(self) -> int:
        """The number of steps before the first of the backward pass."""
        steps = self.model.steps
        return next((number for number, step in enumerate(steps) if step.back or step.again), len(steps))

    def _do(self, step: ProgramStep) -> Moves:
        if step.nodes:
            self._compute_back(step) if step.back else self._compute(step)
        elif step.again:
            yield from self._gather_again(step)
        else:
            yield from self._move_back(step) if step.back else self._move(step)

    # --- forward ----------------------------------------------------------------------------------------------------

    def _compute(self, step: ProgramStep) -> None:
        self.segment = self.segments[step.nodes] = Segment()
        with self.replica.precision():
            for name in step.nodes:
                self._operate(name)
        if self.program.drops:
            for move in self.program.gathers(step):
                key = move.value, move.target
                if self.model.last_use[key] == step.nodes:
                    resize(self.has[key], 0)

    def _operate(self, name: str) -> None:
        node, layout = self.program.nodes[name], self.program.layouts[name]
        piece = self.model.operations[name].piece
        if piece.op == "get_attr":
            result = self._read(node, layout) if node.held else self._constant(piece)
        elif node.kind == "size":
            result = node.facts["value"]
        elif node.kind in KINDS:
            blocks = [self._value(key) for key in zip(node.takes, layout.takes, strict=True)]
            with self._parameters(name):
                result = self.model.operations[name](blocks, {})
        else:
            placed = dict(zip(node.takes, layout.takes, strict=True))
            changes = bool(node.facts.get("changes"))

            def value(each: fx.Node) -> Any:
                operand = self._value((each.name, placed.get(each.name, WHOLE)))
                return tree_map(_apart, operand) if changes else operand

            args, kwargs = fx.node.map_arg((piece.args, piece.kwargs), value)
            with self._parameters(name):
                result = self.model.operations[name](args, kwargs)
        self.segment.made[name, layout.gives] = result
        self.has[name, layout.gives] = result

    def _value(self, key: Key) -> Any:
        """Return a value for the present segment: what another one made is cut off."""
        segment = self.segment
        if key in segment.made:
            return segment.made[key]
        if key not in segment.taken:
            segment.taken[key] = tree_map(lambda each: self._cut_off(key[0], each), self.has[key])
        return segment.taken[key]

    def _cut_off(self, value: str, each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        requires_grad = value in self.program.needs and each.is_floating_point()
        return each.detach().requires_grad_(requires_grad)

    def _stored(self, name: str, placement: Placement) -> Tensor:
        """Return a parameter as it is stored, or as it was moved to."""
        if self.program.stored.get(name, WHOLE) == placement:
            return self.model.stored(name)
        tensor: Tensor = self._value((PARAMETER + name, placement))
        return tensor

    def _read(self, node: SplitNode, layout: Layout) -> Tensor:
        (parameter,) = node.held
        return self._stored(parameter.name, layout.uses.get(parameter.role, WHOLE))

    def _constant(self, piece: fx.Node) -> Any:
        target: Any = self.model.traced.module
        for word in str(piece.target).split("."):
            target = getattr(target, word)
        return target

    @contextlib.contextmanager
    def _parameters(self, name: str) -> Generator[None, None, None]:
        """Lend a module the parameters that were moved for it."""
        node, layout = self.program.nodes[name], self.program.layouts[name]
        lent: list[tuple[dict[str, Any], str, Any]] = []
        for parameter in node.held:
            placement = layout.uses.get(parameter.role, WHOLE)
            if self.program.stored.get(parameter.name, WHOLE) != placement:
                path, _, attribute = f"{node.layer}.{parameter.role}".lstrip(".").rpartition(".")
                owner = self.model.traced.module.get_submodule(path)
                where = owner._parameters if attribute in owner._parameters else owner._buffers
                lent.append((where, attribute, where[attribute]))
                where[attribute] = self._stored(parameter.name, placement)  # type: ignore[assignment]
        try:
            yield
        finally:
            for where, attribute, original in lent:
                where[attribute] = original

    def _move(self, step: ProgramStep) -> Moves:
        shares, key = self.model.shares, (step.value, step.target)
        if shares is not None and not shares.moves(step):
            self.has[key] = shares.gathered[key]
            return
        source = self._held(step.value, step.source)
        moved = yield Request(step, self.program.shapes[step.value], source, self.model.shapes[step.value])
        node = self.program.nodes.get(step.value)
        if node is not None and not step.target.is_split and (order := node.numbers("lies")):
            # What draws chance later does it in the order in which the value lies in memory.
            moved = moved.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])
        self.has[key] = moved
        if shares is not None:
            shares.keep(step, moved)

    def _gather_again(self, step: ProgramStep) -> Moves:
        """Gather a parameter into the memory that was dropped: autograd's views of it are valid again."""
        dropped = self.has[step.value, step.target]
        source = self._held(step.value, step.source)
        moved = yield Request(step, self.program.shapes[step.value], source, self.model.shapes[step.value])
        with preserve_version(dropped):
            resize(dropped, dropped.nbytes)
            dropped.copy_(moved)

    def _held(self, value: str, placed: Placement) -> Tensor:
        if value.startswith(PARAMETER):
            return self.model.stored(value.removeprefix(PARAMETER)).detach()
        tensor: Tensor = self.has[value, placed]
        return tensor.detach()

    # --- backward ---------------------------------------------------------------------------------------------------

    def _compute_back(self, step: ProgramStep) -> None:
        """Compute back through a segment, and hand on the gradients of what it took."""
        self.segment = self.segments.pop(step.nodes)
        roots: list[Tensor] = []
        root_gradients: list[Tensor] = []
        for key, value in self.segment.made.items():
            gradients = self.gradients.pop(key, None) or []
            for tensor, gradient in zip(tensors_of(value), gradients, strict=False):
                if gradient is not None and tensor.requires_grad:
                    roots.append(tensor)
                    root_gradients.append(gradient)
            self.has.pop(key, None)
        if roots:
            backward(roots, root_gradients)
        self._hand_on()

    def _hand_on(self) -> None:
        """Add the gradients of what the segment took to those of the values."""
        for key, value in self.segment.taken.items():
            self._add(key, [tensor.grad for tensor in tensors_of(value)])

    def _add(self, key: Key, gradients: list[Tensor | None]) -> None:
        before = self.gradients.get(key)
        if before is None:
            self.gradients[key] = gradients
            return
        pairs = zip(before, gradients, strict=True)
        self.gradients[key] = [b if a is None else a if b is None else a + b for a, b in pairs]

    def _move_back(self, step: ProgramStep) -> Moves:
        """Bring the gradient of a moved value back to where the value was made."""
        if step.value == JOINT:
            yield from self._move_joint(step)
            return
        gradient = self._gradient(step.value, step.target)
        shares = self.model.shares
        if shares is not None and not shares.moves(step):
            self.has.pop((step.value, step.target))
            shares.add(step.value, gradient)
            return
        shape, full_shape = self.program.shapes[step.value], self.model.shapes[step.value]
        back = yield Request(step, shape, gradient.contiguous(), full_shape)
        self.has.pop((step.value, step.target), None)
        if step.value.startswith(PARAMETER):
            add_gradient(self.model.stored(step.value.removeprefix(PARAMETER)), back)
        else:
            self._add((step.value, step.source), [back])

    def _gradient(self, value: str, target: Placement) -> Tensor:
        """Return the gradient of a moved value: zero where nothing was computed from it, as the others wait for it."""
        gradients = self.gradients.pop((value, target), None)
        gradient = gradients[0] if gradients else None
        return torch.zeros_like(self.has[value, target]) if gradient is None else gradient

    def _move_joint(self, step: ProgramStep) -> Moves:
        """Sum the gradients of several parameters in one movement."""
        parts = [self._gradient(value, step.target).flatten() for value in step.joins]
        shape = self.program.shapes[JOINT]
        back = yield Request(step, shape, torch.cat(parts), shape)
        for value, gradient in zip(step.joins, back.split([part.numel() for part in parts]), strict=True):
            self.has.pop((value, step.target), None)
            add_gradient(self.model.stored(value.removeprefix(PARAMETER)), gradient)


def add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to that of what a worker stores of a parameter."""
    gradient = gradient.reshape(parameter.shape)
    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)


def _apart(value: Any) -> Any:
    """Copy a tensor that an operation changes in place, since autograd allows no change of what was cut off."""
    return value.clone() if isinstance(value, Tensor) else value
