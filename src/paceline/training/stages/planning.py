"""Making the blueprint of a pipeline: the model is traced, cut, and rehearsed.

The rehearsal shows what travels between stages, and that they compute together what the model does.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_map

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.schedules import WEIGHTS, Table
from paceline.algorithms.splits import balanced
from paceline.errors import JobError, PlanError
from paceline.training.data.source import Order, Source
from paceline.training.gradients.loss import backward
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch, Job
from paceline.training.parameters.layout import trainable
from paceline.training.stages.cutting import (
    Blueprint,
    Code,
    cut,
    cut_conflict,
    indivisible,
    mark_tensors,
    message_bytes,
    name_of,
    obstacle,
    places_of,
)
from paceline.training.stages.exporting import CannotExport, check_sizes
from paceline.training.stages.refusals import in_pieces, step_alone
from paceline.training.stages.tracing import KnownResult, Traced, TracedCall, export, retrace, trace

ROUNDS = 3  # measurements of each piece, of which the shortest counts
CARRIED = 1e-9  # seconds to carry a byte to the next stage and its gradient back
FLOP, VALUE, CALL = 1e-10, 1e-9, 1e-5  # seconds, by count: of an operation, of a value that a piece makes, of a piece
ALIGN = 64
CHANCE = torch.get_rng_state().nbytes


def blueprint(
    job: Job,
    module: nn.Module,
    examples: Sequence[Example],
    table: Table,
    request: CutRequest,
    recompute: Sequence[int],
    flushes: bool,
) -> Blueprint:
    """Return the blueprint of a pipeline; `examples` are micro-batches of every size, the largest first."""
    twin = copy.deepcopy(module).train()
    replica = Replica(job, twin, ())
    call, tensors = TracedCall.of(replica.loss, replica.prepared(*fresh(examples[0])))
    traced, places = _traced_and_cut(twin, call, tensors, request)
    travels = rehearse(job, module, traced, places, examples)
    names = tuple(name_of(traced, place) for place in places)
    carries = traced.draws
    extra = -(-CHANCE // ALIGN) * ALIGN if carries else 0
    return Blueprint(
        call,
        traced.exported,
        tuple(sorted(traced.numbers)),
        places,
        names,
        needs=tuple(tuple(t.requires_grad for t in values) for values in travels),
        carries_chance=carries,
        moving=request.moving,
        stage_to_worker=table.stage_to_worker,
        versions=table.versions,
        predicts=table.predicts,
        slots=table.slots,
        flushes=flushes,
        recompute=tuple(number in recompute for number in range(table.stages)),
        agrees=agrees(job),
        splits=splits(table),
        bytes_on=tuple(_bytes(values) + extra for values in travels[1:]),
        bytes_back=tuple(_bytes([t for t in values if t.requires_grad]) for values in travels[1:]),
    )


@dataclass(frozen=True)
class CutRequest:
    """The cuts that are asked for."""

    cuts: tuple[str, ...]  # (): so that `by` is balanced
    stages: int
    by: str  # a key of MEASURES
    moving: tuple[str, ...]  # buffers that training changes
    parameters: bool = False  # every stage must have some, as a server is to hold them


def _traced_and_cut(
    twin: nn.Module, call: TracedCall, tensors: Sequence[Tensor], request: CutRequest
) -> tuple[Traced, tuple[int, ...]]:
    """Trace by torch.fx, and by torch.export where that fails; return the graph and where stages begin."""
    reasons = {"": "its own forward cannot be followed"}
    try:
        traced = trace(twin, call)
        reasons = traced.whole
        return traced, _places(traced, tensors, request)
    except (JobError, PlanError) as error:
        if not reasons:
            raise
        try:
            traced = export(twin, call, tensors)
        except CannotExport as why:
            raise type(error)(f"{error}. torch.export does not help: {why}") from error
    return traced, _places(traced, tensors, request)


def _places(traced: Traced, tensors: Sequence[Tensor], request: CutRequest) -> tuple[int, ...]:
    with in_pieces():
        mark_tensors(traced, tensors)
        if not request.cuts:
            return _choose(traced, tensors, request)
    places = places_of(traced, request.cuts)
    if why := cut_conflict(traced, places, request.moving):
        raise JobError(f"the model cannot be cut before {' and '.join(request.cuts)}: {why}")
    return places


def splits(table: Table) -> bool:
    """Return whether backwards come in two halves."""
    return any(work.what == WEIGHTS for line in table.lines for work in line)


def agrees(job: Job) -> bool:
    """Return whether an update needs the norm of the whole gradient."""
    return job.gradient_clip_norm is not None or job.on_nan == "skip"


def _bytes(values: Sequence[Tensor]) -> int:
    return sum(-(-t.nbytes // ALIGN) * ALIGN for t in values)


# where to cut.


def _choose(traced: Traced, tensors: Sequence[Tensor], request: CutRequest) -> tuple[int, ...]:
    """Return the cuts that make the most expensive stage as cheap as possible, messages included."""
    count = len(traced.pieces)
    able = [place > 0 and not obstacle(traced, place) for place in range(count)]
    for users in indivisible(traced, request.moving).values():
        able[users[0] + 1 : users[-1] + 1] = [False] * (users[-1] - users[0])
    price = 1.0 if request.by == "memory" else CARRIED
    prices = [price * size if fine else math.inf for size, fine in zip(message_bytes(traced), able, strict=True)]
    pieces = MEASURES[request.by](traced, tensors)
    brings = _bring_parameters(traced) if request.parameters else [True] * count
    places = balanced(pieces, request.stages, prices, brings) if request.stages <= count else ()
    if len(places) + 1 == request.stages:
        return places
    most = _most_stages(able, brings)
    why = "".join(f"; {path} stays whole: {why}" for path, why in traced.whole.items())
    kind = " with parameters" * request.parameters
    raise PlanError(
        f"{type(traced.module).__name__} can be cut into at most {most} stage{'s' * (most != 1)}{kind}, and the plan "
        f"wants {request.stages}; take fewer workers{why}"
    )


def _bring_parameters(traced: Traced) -> list[bool]:
    """Return whether each piece is the first that uses some trainable parameter."""
    flags, visited = list[bool](), set[nn.Parameter]()
    for node in traced.pieces:
        new = {p for p in traced.parameters(node) if p.requires_grad} - visited
        visited |= new
        flags.append(bool(new))
    return flags


def _most_stages(able: Sequence[bool], brings: Sequence[bool]) -> int:
    """Return the most stages of pieces that can be cut where they are `able`, each with one of `brings`."""
    most, has = 1, False
    for place, (can, new) in enumerate(zip(able, brings, strict=True)):
        if can and has and any(brings[place:]):
            most, has = most + 1, False
        has = has or new
    return most


def _apart(values: Any, changing: bool) -> Any:
    """Detach values from the pieces before, as those that a stage takes are."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            return value
        alone = value.detach().requires_grad_(value.is_floating_point())
        return alone.clone() if changing else alone  # autograd refuses changes of a leaf in place

    return tree_map(one, values)


def _ended(result: Any) -> Any:
    return tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, result)


def _seconds(traced: Traced, tensors: Sequence[Tensor]) -> list[float]:
    """Measure the seconds of each piece, forward and backward."""
    seconds: list[float] = []

    def clock(node: fx.Node, args: Any, kwargs: Any) -> Any:
        best = math.inf
        for _ in range(ROUNDS):
            start = time.perf_counter()
            result = traced.call_piece(node, *_apart((args, kwargs), bool(node.meta["changes"])))
            roots = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor) and t.requires_grad]
            if roots:
                backward(roots, [torch.ones_like(t) for t in roots])
            best = min(best, time.perf_counter() - start)
        seconds.append(best)
        return _ended(result)

    traced.run(tensors, clock)
    for parameter in traced.module.parameters():
        parameter.grad = None
    return seconds


def _operations(traced: Traced, tensors: Sequence[Tensor]) -> list[float]:
    """Return the seconds of each piece on a machine that nothing disturbs, by counting its work and its values."""
    from torch.utils.flop_counter import FlopCounterMode

    costs: list[float] = []

    def count(node: fx.Node, args: Any, kwargs: Any) -> Any:
        with FlopCounterMode(display=False) as counter:
            result = traced.call_piece(node, *_apart((args, kwargs), bool(node.meta["changes"])))
            values = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
            roots = [t for t in values if t.requires_grad]
            if roots:
                backward(roots, [torch.ones_like(t) for t in roots])
        costs.append(FLOP * counter.get_total_flops() + VALUE * sum(t.numel() for t in values) + CALL)
        return _ended(result)

    traced.run(tensors, count)
    for parameter in traced.module.parameters():
        parameter.grad = None
    return costs


def _memory(traced: Traced, tensors: Sequence[Tensor]) -> list[float]:
    """Return the bytes of each piece: its weights, their gradients, one momentum, and what it keeps for backward.

    Weights count for the first piece that uses them.
    """
    sizes, visited = list[float](), set[nn.Parameter]()
    weights = {p.untyped_storage().data_ptr() for p in traced.module.parameters()}

    def weigh(node: fx.Node, args: Any, kwargs: Any) -> Any:
        storages: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = traced.call_piece(node, *_apart((args, kwargs), bool(node.meta["changes"])))
        mine = {*traced.parameters(node)} - visited
        visited.update(mine)
        sizes.append(3 * sum(p.nbytes for p in mine) + sum(storages.values()))
        return _ended(result)

    traced.run(tensors, weigh)
    return sizes


#: What stages are balanced by: the price of each piece.
MEASURES: dict[str, Callable[[Traced, Sequence[Tensor]], list[float]]] = {
    "time": _seconds,
    "memory": _memory,
    "operations": _operations,
}


# A rehearsal before the start: micro-batches of every size go through all stages and through the model itself.
#
# Losses, gradients and running statistics must be the same, or the stages would train another model than the user's.

ROUNDING = 100  # machine epsilons by which a loss may differ
APART = 1e-4  # the share of its norm by which a gradient may differ, and a hundredth of that of all gradients

Example = tuple[Chunk, Batch]  # a micro-batch


def fresh(example: Example) -> Example:
    """Return a copy of an example, which may then be changed in place."""
    chunk, batch = example
    return chunk, tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, batch)


def examples_of(job: Job, source: Source, agenda: Agenda) -> list[Example]:
    """Return a chunk of every size that an epoch has, a full one first."""
    epoch = min(agenda.updates, agenda.updates_per_epoch)
    sizes = {each.samples: each for update in (epoch - 1, 0) for each in agenda.filled(update)}
    order = Order(len(source), job.seed, job.shuffle, agenda.cuts)
    chunks = [sizes[samples] for samples in sorted(sizes, key=lambda samples: (samples < max(sizes), samples))]
    return [(each, source.batch(order.indices(each), each.epoch)) for each in chunks]


def rehearse(
    job: Job, module: nn.Module, traced: Traced, places: Sequence[int], examples: Sequence[Example]
) -> list[list[Tensor]]:
    """Compare the stages with the model; return what each stage takes for the first example."""
    replica, twin = (Replica(job, copy.deepcopy(module).train(), ()) for _ in range(2))
    rewritten = retrace(twin.module, traced.call, traced.exported)
    rewritten.numbers = traced.numbers
    codes, travels = cut(rewritten, places), list[list[Tensor]]()
    for example in (*examples, examples[-1]):  # twice: a model that changes itself does so in the first
        loss = replica.forward(replica.module, *fresh(example))
        loss.backward()
        with in_pieces():
            stage_inputs, cut_loss = through(codes, twin, traced, example)
        travels = travels or stage_inputs
        if math.isfinite(float(loss.detach())):
            _compare(module, traced, (loss.detach(), cut_loss), (replica.take(), twin.take()))
    _compare_buffers(replica.module, twin.module)
    return [[t.detach().requires_grad_(t.requires_grad) for t in values] for values in travels]


def through(
    codes: Sequence[Code], replica: Replica, traced: Traced, example: Example
) -> tuple[list[list[Tensor]], Tensor]:
    """Run a micro-batch through all stages and back; return what each stage takes, and the loss."""
    prepared = replica.prepared(*fresh(example))
    tensors = traced.call.tensors_of(replica.loss, fresh((example[0], prepared))[1])
    if traced.exported is not None:
        check_sizes(traced.exported, tensors)
    travels, results, values, answered = list[list[Tensor]](), list[Any](), tensors, KnownResult()
    for code in codes:
        travels.append([t.detach().requires_grad_(t.requires_grad) for t in values])
        if code.last and not traced.draws:
            replica.chance.again()  # as at the worker of the last stage
        with replica.precision():
            results.append(code(*travels[-1]))
        if code.last:
            with step_alone():
                loss = answered.loss(replica, prepared, results.pop())
        values = [] if code.last else list(results[-1])
    if loss.requires_grad:
        loss.backward()
    for result, after in zip(reversed(results), reversed(travels[1:]), strict=True):
        pairs = [(one, other.grad) for one, other in zip(result, after, strict=True) if other.grad is not None]
        if pairs:
            backward(*zip(*pairs, strict=True))
    return travels, loss.detach()


def _compare(
    module: nn.Module,
    traced: Traced,
    losses: tuple[Tensor, Tensor],
    gradients: tuple[list[Tensor | None], list[Tensor | None]],
) -> None:
    expected, actual = losses
    if not torch.allclose(actual, expected, rtol=ROUNDING * torch.finfo(actual.dtype).eps, atol=0.0):
        raise _difference(module, traced, f"a loss of {float(actual)}, not {float(expected)}")
    norms = [float(g.norm()) for g in gradients[0] if g is not None]
    total = math.hypot(*norms)
    if not math.isfinite(total):
        return
    for name, one, other in zip(trainable(module), *gradients, strict=True):
        if (one is None) != (other is None) or not (one is None or _near(one, other, total)):  # type: ignore[arg-type]
            raise _difference(module, traced, f"the gradient of {name} differs")


def _near(one: Tensor, other: Tensor, total: float) -> bool:
    apart = APART if one.dtype in (torch.float32, torch.float64) else 1.0
    return float((one - other).norm()) <= apart * (float(one.norm()) + total / 100)


def _compare_buffers(original: nn.Module, cut: nn.Module) -> None:
    buffers = dict(cut.named_buffers())
    for name, one in original.named_buffers():
        if not torch.allclose(one.double(), buffers[name].double(), rtol=APART, atol=APART, equal_nan=True):
            raise JobError(
                f"cut into stages the model computes something else: its buffer {name} moves otherwise. Put the code "
                "that changes it into a module of its own, with the buffer"
            )


def _difference(module: nn.Module, traced: Traced, what: str) -> JobError:
    if traced.exported is not None:
        return JobError(
            f"torch.export, which is needed to follow {type(module).__name__}'s code, writes down something else: "
            f"{what}. Does the code have a backward of its own, or change itself? Put that part into a module of its "
            "own"
        )
    return JobError(
        f"cut into stages the model computes something else: {what}. Its code does what cannot be seen from outside "
        "(it changes itself, or draws chance of its own); put that part into a module of its own"
    )
