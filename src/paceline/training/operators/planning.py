"""Which worker holds which operator, what is refused before the first update, and the operators of one worker."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.chance import mix
from paceline.algorithms.dataflow import NO_OPERATOR, Graph
from paceline.errors import JobError, PlanError
from paceline.training.gradients.loss import gradients_of, loss_function
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch, Job
from paceline.training.operators.recording import (
    Built,
    Instance,
    Recorded,
    Recorder,
    Value,
    leaves,
    mapped,
    operators_of,
    structure_of,
    taken_apart,
)
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import bare_step

# Computing one instance by its operators, in one process, to compare it with the model itself.

TOLERANCE = 1e-3  # of the gradient's norm, in single precision and with the sums of another order


def rehearse(job: Job, module: nn.Module, chunk: Chunk, batch: Batch, recorder: Recorder) -> int:
    """Compute an instance call after call; return the bytes of its largest value.

    Raise `JobError` where its gradient is not the model's own.
    """
    operators = HeldOperators(job, copy.deepcopy(module), list(recorder.holders), ())
    instance = recorder.record(operators.replica.prepared(chunk, batch))
    values = _forward(operators, instance, chunk)
    mine = _backward(operators, instance, values)
    replica = Replica(job, copy.deepcopy(module).train(), ())
    replica.backward(chunk, batch, 1.0)
    theirs = dict(zip(trainable(replica.module), replica.take(), strict=True))
    if (gap := _gap(theirs, mine)) > TOLERANCE:
        raise JobError(
            f"computed operator by operator, the gradient of the first instance differs from the model's own by "
            f"{gap:.1%}: something in forward() depends on more than its input and its operators"
        )
    return max(sum(tensor.nbytes for tensor in outputs) for outputs in values)


def _forward(operators: HeldOperators, instance: Instance, chunk: Chunk) -> list[list[Tensor]]:
    """Compute all calls; return their values."""
    values: list[list[Tensor]] = []
    for number, call in enumerate(instance.calls):
        where = chunk.update, chunk.number
        values.append(operators.forward(0, number, call, where, lambda other, place: values[other][place]))
    return values


def _backward(operators: HeldOperators, instance: Instance, values: list[list[Tensor]]) -> dict[str, Tensor | None]:
    """Compute the gradients of all calls; return those of the parameters by name."""
    back: list[dict[int, Gradients]] = [{} for _ in values]
    for number in range(len(values) - 1, -1, -1):
        users = instance.graph.users[number]
        loss: list[Gradients] = [[torch.ones_like(values[number][0])]]
        arrived = [back[number][user] for user in users] or loss
        for other, places in operators.backward(0, number, instance.graph.calls[number].operator, arrived).items():
            back[other][number] = [places.get(place) for place in range(max(places, default=-1) + 1)]
    return {
        name: gradient
        for (_, operator), gradients in operators.sums.items()
        for (name, _), gradient in zip(operators.own[operator], gradients, strict=True)
    }


def _gap(one: Mapping[str, Tensor | None], other: Mapping[str, Tensor | None]) -> float:
    """Return the relative difference of two gradients."""
    apart = total = 0.0
    for name, gradient in one.items():
        mine = other.get(name)
        a = torch.zeros(()) if gradient is None else gradient
        b = torch.zeros_like(a) if mine is None else mine
        apart += float((a - b).double().square().sum())
        total += float(a.double().square().sum())
    return float((apart / total) ** 0.5) if total else 0.0


LINE = 64  # bytes to which a tensor in a message may be rounded up
ROOM, TIMES = 1 << 16, 4  # bytes of a message, at least; how many times as large as those of the first batch it may be


@dataclass(frozen=True)
class OperatorBlueprint:
    """Which worker holds which operator."""

    names: tuple[str, ...]
    #: For each operator with parameters or moving buffers, its worker.
    holders: Mapping[int, int]
    #: How what each operator returns is built of tensors.
    returns: Mapping[int, Built]
    moving: tuple[str, ...]
    #: The most tensors and bytes of a message.
    tensors: int
    room: int
    #: The graph of the first instance.
    example: Graph

    @property
    def bytes(self) -> int:
        """The bytes of a message with its head, each of its tensors in lines of its own."""
        return self.room + LINE * (1 + self.tensors)

    def held_by(self, worker: int) -> tuple[int, ...]:
        """Return the operators that a worker holds."""
        return tuple(operator for operator, holder in self.holders.items() if holder == worker)


def operator_blueprint(
    job: Job,
    module: nn.Module,
    examples: Sequence[tuple[Chunk, Batch]],
    moving: tuple[str, ...],
    workers: int,
    on: Sequence[int],
    plan: str,
) -> OperatorBlueprint:
    """Place operators, `on` these workers or balanced, and compare an instance's operators with the model itself."""
    operators = operators_of(module)
    counts = _check(module, operators, plan)
    holding = [n for n, (name, part) in enumerate(operators.items()) if counts[n] or _moves(name, part, moving)]
    if len(holding) < workers:
        names = ", ".join(list(operators)[n] for n in holding)
        raise PlanError(
            f"plan {plan}: the model has {len(holding)} operators with parameters ({names}), fewer than {workers} "
            "workers; give fewer workers. An operator is a child of the model, or of a ModuleList in it"
        )
    loss, returns = loss_function(job), dict[int, Built]()
    for chunk, batch in examples:
        replica = Replica(job, copy.deepcopy(module).train(), ())
        structure = structure_of(
            replica.module,
            lambda model, r=replica, c=chunk, b=batch: loss(model, r.prepared(c, b)),  # type: ignore[misc]
        )
        returns |= structure
    recorder = Recorder(module, loss, dict.fromkeys(holding, 0), returns)
    calls: Counter[int] = Counter()
    for _, batch in examples:
        graph = recorder.record(batch).graph
        calls.update(call.operator for call in graph.calls)
    holders = _placed(holding, [counts[n] * max(calls[n], 1) for n in holding], workers, on, plan)
    recorder = Recorder(module, loss, holders, returns)
    largest = rehearse(job, module, *examples[0], recorder)
    example = recorder.record(examples[0][1]).graph
    tensors = max(sum(1 for _ in leaves(built)) for built in returns.values())
    return OperatorBlueprint(tuple(operators), holders, returns, moving, tensors, max(ROOM, TIMES * largest), example)


def with_operators_of(module: nn.Module, blueprint: OperatorBlueprint, worker: int) -> nn.Module:
    """Return a copy of a model in which the parameters of other workers' operators take no memory."""
    elsewhere = [blueprint.names[operator] for operator, holder in blueprint.holders.items() if holder != worker]
    memo: dict[int, object] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if any(name.startswith(f"{operator}.") for operator in elsewhere):
            empty = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
            memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


def _check(module: nn.Module, operators: Mapping[str, nn.Module], plan: str) -> list[int]:
    """Return how many parameters each operator has; raise for parameters that do not belong to exactly one."""
    outside = [n for n in trainable(module) if not any(n.startswith(f"{name}.") for name in operators)]
    if outside:
        raise PlanError(
            f"plan {plan}: parameter {outside[0]} belongs to the model itself, and parameters lie with operators, "
            "which are its submodules; put it into one of them"
        )
    owner: dict[int, str] = {}
    for name, part in operators.items():
        for inner, parameter in part.named_parameters():
            if owner.setdefault(id(parameter), name) != name:
                raise PlanError(
                    f"plan {plan}: operators {owner[id(parameter)]} and {name} share a parameter, {inner}, and each "
                    "makes its own updates; put them into one submodule"
                )
    return [sum(p.numel() for p in part.parameters() if p.requires_grad) for part in operators.values()]


def _moves(name: str, part: nn.Module, moving: Sequence[str]) -> bool:
    return any(f"{name}.{inner}" in moving for inner, _ in part.named_buffers())


def _placed(holding: Sequence[int], costs: Sequence[int], workers: int, on: Sequence[int], plan: str) -> dict[int, int]:
    """Place operators: as the user says, or the costliest first, each at the worker that has least so far."""
    if on:
        if len(on) != len(holding) or set(on) != set(range(workers)):
            raise PlanError(
                f"plan {plan}: on={'+'.join(map(str, on))} must name a worker from 0 to {workers - 1} for each of the "
                f"{len(holding)} operators with parameters, and each worker at least once"
            )
        return dict(zip(holding, on, strict=True))
    loads, counts, placement = [0] * workers, [0] * workers, dict[int, int]()
    for operator, cost in sorted(zip(holding, costs, strict=True), key=lambda pair: (-pair[1], pair[0])):
        worker = min(range(workers), key=lambda w: (loads[w], counts[w], w))
        placement[operator] = worker
        loads[worker] += cost
        counts[worker] += 1
    return dict(sorted(placement.items()))


# One worker's operators: their values, their gradients and their updates.
#
# An operator computes with whatever its parameters are when a message arrives: no version of them is kept for the way
# back of an instance that met older ones on its way forward. So the module computes with parameters of its own, which
# lie in the same memory as those that the optimizer steps: PyTorch's autograd would refuse a way back after an
# update.

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
