"""Making the blueprint of split layers: the model is traced, described, derived, proved, and rehearsed.

The rehearsal computes a chunk of every size by all workers in one process, and compares loss, gradients and moving
buffers with the model's own. So a model whose code does what its graph does not show is refused before a process
starts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from paceline.core.splits.derivation import PARAMETER, Program, derive
from paceline.core.splits.proof import prove_program
from paceline.core.splits.recipes import SplitRecipe
from paceline.errors import JobError
from paceline.gradients.payload import GradientSum
from paceline.gradients.replica import Replica
from paceline.jobs.job import Job
from paceline.parameters.layout import trainable
from paceline.splits.describing import describe
from paceline.splits.exchanging import Request, kept, move_together
from paceline.splits.gradients import Shapes, SplitBlueprint, SplitReplica
from paceline.splits.slicing import assembled, shapes_of, sliced
from paceline.stages.exporting import CannotExport, ExportedGraph
from paceline.stages.rehearsal import Example, fresh
from paceline.stages.tracing import Call, Traced, export, retrace, trace

T = TypeVar("T")
#: By how much losses and gradients of the rehearsal may differ, relative to their size.
APART = {torch.float64: 1e-9, torch.float32: 2e-4}


def split_blueprint(
    job: Job, module: nn.Module, examples: Sequence[Example], moving: tuple[str, ...], workers: int,
    recipe: SplitRecipe, stage: int = 0,
) -> SplitBlueprint:  # fmt: skip
    """Return the blueprint; `examples` are chunks of every size, a full one first."""
    programs: dict[Shapes, Program] = {}
    call: Call | None = None
    exported: ExportedGraph | None = None
    for example in examples:
        twin = copy.deepcopy(module).train()
        replica = Replica(job, twin, ())
        found, tensors = Call.of(replica.loss, replica.prepared(*fresh(example)))
        if call is None:
            call = found
            traced = _traced(twin, call, tensors)
            exported = traced.exported
        else:
            traced = retrace(twin, call, exported)
        described = describe(traced, tensors)
        program = derive(
            recipe.prepare(described.nodes, workers), described.inputs, described.outputs, described.needs, workers,
            recipe.choose, stage > 0, stage == 3,
        )  # fmt: skip
        prove_program(program)
        programs[tuple(tuple(t.shape) for t in tensors)] = program
    assert call is not None
    made = SplitBlueprint(call, exported, programs, shapes_of(module), moving, stage)
    try:
        _rehearse(job, module, made, examples)
    except JobError as difference:
        if any(p.dtype != torch.float32 for p in module.parameters()):
            raise
        _rehearse_in_float64(job, module, made, examples, difference)
    return made


def _rehearse_in_float64(
    job: Job, module: nn.Module, made: SplitBlueprint, examples: Sequence[Example], difference: JobError
) -> None:
    """Rehearse again with rounding that cannot matter; raise the difference that was found if there still is one.

    In float32 a sum in another order may turn a number near zero, and ReLU or the choice of a maximum with it.
    """
    doubled = [(chunk, tree_map(_doubled, batch)) for chunk, batch in examples]
    try:
        _rehearse(job, copy.deepcopy(module).double(), made, doubled)
    except (JobError, RuntimeError):  # or the loss has float32 numbers of its own
        raise difference from None


def _doubled(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _traced(twin: nn.Module, call: Call, tensors: Sequence[Tensor]) -> Traced:
    """Trace by torch.fx, and by torch.export where that fails."""
    try:
        return trace(twin, call)
    except JobError as error:
        try:
            return export(twin, call, tensors)
        except CannotExport as why:
            raise JobError(f"{error}\ntorch.export does not help: {why}") from error


def run_together(walks: Sequence[Generator[Request, Tensor, T]], draws: bool = False) -> list[T]:
    """Run the walks of all workers of a group in one process; return what each of them returns.

    With `draws` the workers draw chance outside of modules that are seeded one by one, so each goes on from where the
    default generator was at its own last movement.
    """
    states = [torch.get_rng_state()] * len(walks) if draws else []
    answers: list[Tensor | None] = [None] * len(walks)
    while True:
        requests, results = [], list[T]()
        for place, walk in enumerate(walks):
            if draws:
                torch.set_rng_state(states[place])
            try:
                requests.append(_next(walk, answers[place], place))
            except StopIteration as ended:
                results.append(ended.value)
            if draws:
                states[place] = torch.get_rng_state()
        if not requests:
            return results
        if len({request.step for request in requests}) > 1 or len(requests) < len(walks):
            raise AssertionError("workers have come to different movements")
        answers = list(move_together(requests))


def _next(walk: Generator[Request, Tensor, T], answer: Tensor | None, place: int) -> Request:
    """Let one worker go on to the next movement in which something travels."""
    request = walk.send(answer)  # type: ignore[arg-type]
    while (alone := kept(request, place)) is not None:
        request = walk.send(alone)
    return request


def _rehearse(job: Job, module: nn.Module, made: SplitBlueprint, examples: Sequence[Example]) -> None:
    """Compare all workers together with the model, the last example twice: a model may change itself in the first."""
    whole, program = Replica(job, copy.deepcopy(module).train(), made.moving), made.program
    parts = [SplitReplica(job, sliced(module, program, place), made, place) for place in range(program.workers)]
    draws = any(model.traced.draws for model in parts[0].models.values())
    for example in (*examples, examples[-1]):
        loss = whole.forward(whole.module, *fresh(example))
        loss.backward()
        expected = float(loss.detach())
        weight = 1.0 / len(parts) if made.stage else 1.0  # each has a chunk of its own
        found = run_together([each.walk(*fresh(example), weight) for each in parts], draws)[0]
        if made.stage:
            _scatter(parts)
        apart = APART.get(loss.dtype, 1e-2)
        if not math.isfinite(expected):
            return
        if abs(found - expected) > apart * max(1.0, abs(expected)):
            raise _difference(module, f"a loss of {found}, not {expected}")
        _compare(module, made, whole, parts, apart)


def _scatter(parts: Sequence[SplitReplica]) -> None:
    """End the update of the rehearsal, as stage 1 scatters gradients at its end; the gradients stay where they are."""
    none = [GradientSum([], [b.clone() for b in part.replica.moving], 0.0, 1.0 / len(parts), 0) for part in parts]
    ended = run_together([part.finish(each) for part, each in zip(parts, none, strict=True)])
    for part, whole in zip(parts, ended, strict=True):
        for parameter, gradient in zip(part.replica.parameters, whole.gradients, strict=False):
            parameter.grad = gradient


def _compare(
    module: nn.Module, made: SplitBlueprint, whole: Replica, parts: Sequence[SplitReplica], apart: float
) -> None:
    expected, found = whole.take(), [each.replica.take() for each in parts]
    total = math.hypot(*(float(g.norm()) for g in expected if g is not None))
    for number, name in enumerate(trainable(module)):
        one, mine = expected[number], [gradients[number] for gradients in found]
        if (one is None) != any(g is None for g in mine):
            raise _difference(module, f"the gradient of {name} is {'there' if one is None else 'not there'}")
        if one is not None:
            other = whole_of(made, name, mine)  # type: ignore[arg-type]
            if float((one - other).norm()) > apart * (float(one.norm()) + total / 100):
                raise _difference(module, f"the gradient of {name} differs")
    for number, name in enumerate(made.moving):
        other = whole_of(made, name, [each.replica.moving[number] for each in parts])
        if not torch.allclose(whole.moving[number].double(), other.double(), rtol=1e-4, atol=1e-4, equal_nan=True):
            raise _difference(module, f"its buffer {name} moves otherwise")


def whole_of(made: SplitBlueprint, name: str, parts: Sequence[Tensor]) -> Tensor:
    """Return a whole parameter or buffer from what the workers of a group have of it."""
    program = made.program
    placed = program.stored.get(name)
    if placed is None:
        return parts[0].clone()
    return assembled(parts, placed, program.shapes[PARAMETER + name], made.shapes[name])


def _difference(module: nn.Module, what: str) -> JobError:
    return JobError(
        f"with its layers split {type(module).__name__} computes something else: {what}. Its code does what its graph "
        "does not show (it changes itself, or draws chance of its own); put that part into a module of its own"
    )
