"""One worker's operators: their values, their gradients and their updates.

An operator computes with whatever its parameters are when a message arrives: no version of them is kept for the way
back of an instance that met older ones on its way forward. So the module computes with parameters of its own, which lie
in the same memory as those that the optimizer steps: PyTorch's autograd would refuse a way back after an update.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from paceline.algorithms.chance import mix
from paceline.algorithms.dataflow import NO_OPERATOR
from paceline.errors import JobError
from paceline.training.gradients.backward_pass import gradients_of
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job
from paceline.training.operators.recording import Recorded, Value, mapped, operators_of, taken_apart
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import bare_step

Gradients = list[Tensor | None]


class KeptCall(NamedTuple):
    """What is kept of a call between its value and its gradient."""

    inputs: list[tuple[int, int, Tensor]]  # (call, place, the tensor that was taken of it)
    outputs: list[Tensor]


class HeldOperators:
    """The operators that one worker holds, with the user's optimizer for their parameters."""

    def __init__(self, job: Job, module: nn.Module, mine: Sequence[int], moving: tuple[str, ...]) -> None:
        self.replica = Replica(job, module.train(), ())
        self.chance = self.replica.chance
        self.operators = list(operators_of(module).values())
        self.names = list(operators_of(module))
        #: The names of the parameters and moving buffers that this worker holds.
        self.held = {n: p for n, p in trainable(module).items() if any(_within(n, self.names[o]) for o in mine)}
        self.moving = {
            n: b for n, b in module.named_buffers() if n in moving and any(_within(n, self.names[o]) for o in mine)
        }
        self.own = {o: [(n, p) for n, p in self.held.items() if _within(n, self.names[o])] for o in mine}
        stepped = _sharing(module)
        self.stepped = {name: parameter for name, parameter in trainable(stepped).items() if name in self.held}
        self._step = bare_step(job.make_optimizer(stepped, list(self.stepped.values())))
        self.kept: dict[tuple[int, int], KeptCall] = {}
        #: By (instance, operator): the sums of its gradients so far.
        self.sums: dict[tuple[int, int], Gradients] = {}
        #: By operator: the sums over the instances that have brought all of theirs.
        self.whole: dict[int, Gradients] = {}

    def forward(
        self, instance: int, call: int, recorded: Recorded, chunk: tuple[int, int], fetch: Callable[[int, int], Tensor]
    ) -> list[Tensor]:
        """Compute a call; return its tensors without their history."""
        inputs: list[tuple[int, int, Tensor]] = []
        leaves: dict[tuple[int, int], Tensor] = {}

        def fresh(number: int, place: int) -> Tensor:
            if (number, place) not in leaves:
                tensor = fetch(number, place).detach()
                leaves[number, place] = tensor.requires_grad_(tensor.is_floating_point())
                inputs.append((number, place, tensor))
            return leaves[number, place]

        args = mapped(recorded.args, Value, lambda value: fresh(value.call, value.place))
        kwargs = mapped(recorded.kwargs, Value, lambda value: fresh(value.call, value.place))
        with self.replica.precision():
            if isinstance(recorded.what, int):
                self.chance.begin(*chunk, call=(recorded.what, recorded.nth))
                result = self.operators[recorded.what](*args, **kwargs)
            else:
                self.chance.begin(*chunk, call=(mix(call), 0))
                result = recorded.what(*args, **kwargs)
        outputs = self._tensors(recorded, result)
        self.kept[instance, call] = KeptCall(inputs, outputs)
        return [output.detach() for output in outputs]

    def _tensors(self, recorded: Recorded, result: object) -> list[Tensor]:
        """Return the tensors of what a call returned."""
        if isinstance(recorded.what, int):
            return taken_apart(result, self.names[recorded.what])[0]
        if isinstance(result, Tensor):
            return [result]
        name = getattr(recorded.what, "__name__", str(recorded.what))
        raise JobError(f"{name} returned {type(result).__name__}, not a tensor, between operators; put it into one")

    def backward(
        self, instance: int, call: int, operator: int, arrived: Sequence[Gradients]
    ) -> dict[int, dict[int, Tensor]]:
        """Compute a call's gradients from those of all its users; return those of what it took, by call and place."""
        inputs, outputs = self.kept.pop((instance, call))
        sums = [(output, _sum(arrived, place)) for place, output in enumerate(outputs) if output.requires_grad]
        pairs = [(output, gradient) for output, gradient in sums if gradient is not None]
        parameters = [p for _, p in self.own[operator]] if operator != NO_OPERATOR else []
        leaves = [tensor for _, _, tensor in inputs if tensor.requires_grad]
        gradients: Sequence[Tensor | None] = [None] * (len(leaves) + len(parameters))
        if pairs and gradients:
            on, back = zip(*pairs, strict=True)
            gradients = gradients_of([*leaves, *parameters], on, back)
        if parameters:
            _add(self.sums, (instance, operator), list(gradients[len(leaves) :]))
        input_gradients: dict[int, dict[int, Tensor]] = {number: {} for number, _, _ in inputs}
        places = [(number, place) for number, place, tensor in inputs if tensor.requires_grad]
        for (number, place), gradient in zip(places, gradients, strict=False):
            if gradient is not None:
                input_gradients[number][place] = gradient
        return input_gradients

    def complete(self, instance: int, operator: int) -> None:
        """Take an instance's gradients of an operator for its next update, now that all of them are there."""
        _add(self.whole, operator, self.sums.pop((instance, operator), []))

    def step(self, operator: int, weight: float) -> bool:
        """Let the user's optimizer step an operator's parameters; return whether they are finite then."""
        gradients = self.whole.pop(operator)
        stepped = [self.stepped[name] for name, _ in self.own[operator]]
        for parameter, gradient in zip(stepped, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient / weight
        self._step()
        for parameter in stepped:
            parameter.grad = None
        return all(bool(parameter.isfinite().all()) for parameter in stepped)

    def values(self) -> dict[str, Tensor]:
        """Return the parameters and moving buffers that this worker holds."""
        return {**{name: parameter.detach() for name, parameter in self.held.items()}, **self.moving}


Key = TypeVar("Key")


def _add(sums: dict[Key, Gradients], key: Key, gradients: Gradients) -> None:
    """Add gradients to what a dictionary holds under a key; None counts for nothing."""
    before = sums.get(key)
    if before is None:
        sums[key] = gradients
        return
    for place, gradient in enumerate(gradients):
        mine = before[place]
        before[place] = gradient if mine is None else mine if gradient is None else mine + gradient


def _sum(arrived: Sequence[Gradients], place: int) -> Tensor | None:
    """Sum what the users of a call have sent back of one of its tensors, in the order of the users."""
    total = None
    for gradients in arrived:
        gradient = gradients[place] if place < len(gradients) else None
        if gradient is not None:
            total = gradient if total is None else total + gradient
    return total


def _within(name: str, operator: str) -> bool:
    return name.startswith(f"{operator}.")


def _sharing(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose parameters lie in the same memory, with a count of changes of their own."""
    memo = {id(p): nn.Parameter(p.data, p.requires_grad) for p in module.parameters()}
    return copy.deepcopy(module, memo)
