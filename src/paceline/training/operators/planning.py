"""Which worker holds which operator; everything that can be refused before the first update is refused here."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.dataflow import Graph
from paceline.errors import JobError, PlanError
from paceline.training.gradients.loss import loss_function
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch, Job
from paceline.training.operators.held import Gradients, HeldOperators
from paceline.training.operators.recording import Built, Instance, Recorder, leaves, operators_of, structure_of
from paceline.training.parameters.layout import trainable

# --- Computing one instance by its operators, in one process, to compare it with the model itself ---------------------

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
    return max(sum(tensor.nbytes for tensor in made) for made in values)


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
        for (_, operator), found in operators.sums.items()
        for (name, _), gradient in zip(operators.own[operator], found, strict=True)
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
