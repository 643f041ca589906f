"""Making the blueprint of a pipeline: tracing the model, choosing where to cut it, and one micro-batch through all
stages to see what travels, and that the stages together compute what the model does, to the bit.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_map

from paceline.compute.autograd import Replica
from paceline.compute.cutting import Code, cut, mark_tensors, name_of, obstacle, places_of
from paceline.compute.segment import Blueprint
from paceline.compute.tracing import Answered, Call, Traced, trace
from paceline.core.agenda import Chunk
from paceline.core.schedules import WEIGHTS, Table
from paceline.core.splits.by_depth import balanced
from paceline.errors import JobError, PlanError
from paceline.job import Batch, Job

ROUNDS = 3  # measurements of each piece, of which the shortest counts
ALIGN = 64
CHANCE = torch.get_rng_state().nbytes


def blueprint(
    job: Job, module: nn.Module, chunk: Chunk, batch: Batch, table: Table, moving: tuple[str, ...],
    cuts: Sequence[str], by: str, recompute: Sequence[int], flushes: bool,
) -> Blueprint:  # fmt: skip
    """`chunk`: the largest micro-batch of all; `by`: what is balanced where no cuts are given."""
    twin = copy.deepcopy(module).train()
    replica = Replica(job, twin, ())
    seen = replica.prepared(chunk, batch)
    call, tensors = Call.of(replica.loss, seen)
    traced = trace(twin, call)
    mark_tensors(traced, tensors)
    places = places_of(traced, cuts) if cuts else _choose(traced, tensors, table.stages, by)
    if len(places) + 1 != table.stages:
        raise PlanError(
            f"{len(places)} cuts ({'+'.join(cuts)}) make {len(places) + 1} stages, and the plan has {table.stages}"
        )
    codes = cut(traced, places)
    travels = _rehearse(job, module, codes, replica, chunk, batch, tensors)
    names = tuple(name_of(traced, place) for place in places)
    carries = traced.draws
    extra = -(-CHANCE // ALIGN) * ALIGN if carries else 0
    return Blueprint(
        call, places, names,
        needs=tuple(tuple(t.requires_grad for t in values) for values in travels),
        carries_chance=carries, moving=moving,
        homes=table.homes, keeps=table.keeps, predicts=table.predicts, slots=table.slots,
        flushes=flushes, recompute=tuple(number in recompute for number in range(table.stages)), agrees=agrees(job),
        splits=any(work.what == WEIGHTS for line in table.lines for work in line),
        bytes_on=tuple(_bytes(values) + extra for values in travels[1:]),
        bytes_back=tuple(_bytes([t for t in values if t.requires_grad]) for values in travels[1:]),
    )  # fmt: skip


def agrees(job: Job) -> bool:
    """Whether an update needs to know something of the whole gradient."""
    return job.clip_norm is not None or job.on_nan == "skip"


def _bytes(values: Sequence[Tensor]) -> int:
    return sum(-(-t.nbytes // ALIGN) * ALIGN for t in values)


def _rehearse(
    job: Job, module: nn.Module, codes: Sequence[Code], replica: Replica, chunk: Chunk, batch: Batch,
    tensors: Sequence[Tensor],
) -> list[list[Tensor]]:  # fmt: skip
    """What each stage takes, when a micro-batch goes through all of them."""
    whole = Replica(job, copy.deepcopy(module).train(), ())
    with torch.no_grad():
        expected = whole.forward(whole.module, chunk, batch)
    seen = replica.prepared(chunk, batch)
    travels, values, answered = [], list(tensors), Answered()
    for code in codes:
        travels.append([t.detach().requires_grad_(t.requires_grad) for t in values])
        with replica.precision():
            result = code(*travels[-1])
            if code.last:
                answered.result = result
                found = replica.loss(answered, seen)
        values = list(result) if not code.last else []
    if not torch.equal(found.detach(), expected) and bool(expected.isfinite()):
        raise JobError(
            f"cut into stages the model computes something else: a loss of {float(found)}, not {float(expected)}. "
            "Its code does what cannot be seen from outside (it changes itself, or draws chance of its own); put that "
            "part into a module of its own"
        )
    return travels


# --- where to cut ---------------------------------------------------------------------------------------------------


def _choose(traced: Traced, tensors: Sequence[Tensor], stages: int, by: str) -> tuple[int, ...]:
    count = len(traced.pieces)
    cost = [math.inf if place == 0 or obstacle(traced, place) else 0.0 for place in range(count)]
    pieces = _seconds(traced, tensors) if by == "time" else _memory(traced, tensors)
    places = balanced(pieces, stages, cost) if stages <= count else ()
    if len(places) + 1 != stages:
        able = 1 + sum(math.isfinite(each) for each in cost)
        whole = "".join(f"; {path} stays whole: {why}" for path, why in traced.whole.items())
        raise PlanError(
            f"{type(traced.module).__name__} can be cut into at most {able} stages, and the plan wants {stages}; take "
            f"fewer workers{whole}"
        )
    return places


def _apart(values: Any) -> Any:
    """Cut off from the pieces before, as a stage's first would be."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            return value
        return value.detach().requires_grad_(value.is_floating_point())

    return tree_map(one, values)


def _ended(result: Any) -> Any:
    return tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, result)


def _seconds(traced: Traced, tensors: Sequence[Tensor]) -> list[float]:
    """Of each piece, forward and backward."""
    found: list[float] = []

    def clock(node: fx.Node, args: Any, kwargs: Any) -> Any:
        best = math.inf
        for _ in range(ROUNDS):
            start = time.perf_counter()
            result = traced.call_piece(node, _apart(args), _apart(kwargs))
            roots = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor) and t.requires_grad]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
            best = min(best, time.perf_counter() - start)
        found.append(best)
        return _ended(result)

    traced.run(tensors, clock)
    for parameter in traced.module.parameters():
        parameter.grad = None
    return found


def _memory(traced: Traced, tensors: Sequence[Tensor]) -> list[float]:
    """Bytes of each piece: its weights, their gradients and one momentum; and what it keeps for its backward."""
    found: list[float] = []
    weights = {p.untyped_storage().data_ptr() for p in traced.module.parameters()}

    def weigh(node: fx.Node, args: Any, kwargs: Any) -> Any:
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = traced.call_piece(node, _apart(args), _apart(kwargs))
        own = traced.module.get_submodule(str(node.target)).parameters() if node.op == "call_module" else ()
        found.append(3 * sum(p.nbytes for p in own) + sum(kept.values()))
        return _ended(result)

    traced.run(tensors, weigh)
    return found
