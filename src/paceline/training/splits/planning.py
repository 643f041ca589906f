"""Making the blueprint of split layers: the model is traced, described, derived, proved, and rehearsed.

The rehearsal computes a chunk of every size by all workers in one process, and compares loss, gradients and moving
buffers with the model's own. So a model whose code does what its graph does not show is refused before a process
starts.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from paceline.algorithms.splits.derivation import Program, derive
from paceline.algorithms.splits.proof import prove_program
from paceline.algorithms.splits.recipes import SplitRecipe
from paceline.errors import JobError, JobWarning, PlanError
from paceline.training.gradients.payload import GradientSum
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import Optimizer, bare_step, optimizer_over
from paceline.training.splits.describing import describe
from paceline.training.splits.exchanging import Request, kept, move_together
from paceline.training.splits.gradients import Shapes, SplitBlueprint, SplitReplica
from paceline.training.splits.slicing import Stored, assembled, shapes_of, sliced
from paceline.training.stages.exporting import CannotExport, ExportedGraph
from paceline.training.stages.memory_estimate import BESIDES, OPERATION, Live, step_bytes
from paceline.training.stages.planning import Example, fresh
from paceline.training.stages.tracing import Traced, TracedCall, export, retrace, trace

# The check that the user's optimizer steps parts of a parameter as it steps the whole.

STEPS = 3


def check_parts(optimizer: Optimizer, module: nn.Module) -> None:
    """Raise `PlanError` for an optimizer whose step of a number depends on others (Muon, Adafactor, LAMB).

    A copy of it steps a small matrix, and another one its halves. What takes only matrices is tried with the first
    matrix's settings.
    """
    named = trainable(module)
    chosen = next((p for p in named.values() if p.dim() == 2), next(iter(named.values())))
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    gradients = [torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(STEPS)]
    full = _stepped(optimizer, chosen, value, gradients)
    halves = [_stepped(optimizer, chosen, value[rows], [g[rows] for g in gradients]) for rows in _HALVES]
    if not torch.allclose(full, torch.cat(halves), rtol=1e-9, atol=1e-12):
        raise PlanError(
            f"{type(optimizer).__name__} steps each number by others of its matrix, and under this plan a worker has a "
            "part of it alone; use an optimizer such as SGD, Adam or Adagrad, or a plan that does not split layers"
        )


_HALVES = (slice(0, 2), slice(2, 6))


def _stepped(
    optimizer: Optimizer, chosen: nn.Parameter, value: torch.Tensor, gradients: list[torch.Tensor]
) -> torch.Tensor:
    parameter = nn.Parameter(value.clone())
    copy = optimizer_over(optimizer, {chosen: parameter})
    for state in _initial(optimizer, chosen, parameter):
        copy.state[parameter] = state
    for gradient in gradients:
        parameter.grad = gradient.clone()
        bare_step(copy)()
    return parameter.detach()


def _initial(optimizer: Optimizer, chosen: nn.Parameter, parameter: nn.Parameter) -> list[dict[str, object]]:
    """Return the state that some optimizers (Adagrad) make at once, of the right shape."""
    state = optimizer.state.get(chosen)
    if not state:
        return []
    return [{key: _like(parameter, value, chosen.shape) for key, value in state.items()}]


def _like(parameter: nn.Parameter, value: object, shape: torch.Size) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.full_like(parameter, float(value.flatten()[0])) if value.shape == shape else value.clone()


T = TypeVar("T")
#: By how much losses and gradients of the rehearsal may differ, relative to their size.
APART = {torch.float64: 1e-9, torch.float32: 2e-4}


def split_blueprint(
    job: Job,
    module: nn.Module,
    examples: Sequence[Example],
    moving: tuple[str, ...],
    workers: int,
    recipe: SplitRecipe,
    stage: int = 0,
) -> SplitBlueprint:
    """Return the blueprint; `examples` are chunks of every size, a full one first."""
    twin = copy.deepcopy(module).train()
    replica = Replica(job, twin, ())
    call, tensors = TracedCall.of(replica.loss, replica.prepared(*fresh(examples[0])))
    traced = _traced(twin, call, tensors)
    closed = {path: why for path, why in traced.whole.items() if list(twin.get_submodule(path).parameters())}
    if closed:  # torch.export may look into them; whatever goes wrong there, the graph of torch.fx serves
        with contextlib.suppress(Exception):
            exported = export(copy.deepcopy(module).train(), call, tensors).exported
            return _blueprint(job, module, examples, moving, workers, recipe, stage, call, exported)
    for path, why in closed.items() if not stage else ():
        warnings.warn(
            f"every worker computes all of {path}, since its code cannot be followed ({why})", JobWarning, stacklevel=4
        )
    return _blueprint(job, module, examples, moving, workers, recipe, stage, call, traced.exported)


def _blueprint(
    job: Job,
    module: nn.Module,
    examples: Sequence[Example],
    moving: tuple[str, ...],
    workers: int,
    recipe: SplitRecipe,
    stage: int,
    call: TracedCall,
    exported: ExportedGraph | None,
) -> SplitBlueprint:
    """Return the blueprint for a graph by torch.export, or by torch.fx if there is none."""
    programs: dict[Shapes, Program] = {}
    # A program for each size of chunk: the last batch of an epoch is smaller, and its parts are others.
    for example in examples:
        twin = copy.deepcopy(module).train()
        replica = Replica(job, twin, ())
        _, tensors = TracedCall.of(replica.loss, replica.prepared(*fresh(example)))
        traced = retrace(twin, call, exported)
        described = describe(traced, tensors)
        recipe.check(described.nodes)
        program = derive(
            recipe.prepare(described.nodes, workers),
            described.inputs,
            described.outputs,
            described.needs,
            workers,
            recipe.choose,
            stage > 0,
            stage == 3,
        )
        prove_program(program)
        if program.stored != next(iter(programs.values()), program).stored:
            raise JobError(
                f"a batch of {len(tensors[0])}, the last of an epoch, has too few samples to be cut as full ones are; "
                "give a batch_size that divides the data, or less data="
            )
        programs[tuple(tuple(t.shape) for t in tensors)] = program
    blueprint = SplitBlueprint(call, exported, programs, shapes_of(module), moving, stage)
    rehearsed(module, examples, lambda module, examples: _rehearse(job, module, blueprint, examples))
    return blueprint


def rehearsed(
    module: nn.Module, examples: Sequence[Example], rehearse: Callable[[nn.Module, Sequence[Example]], None]
) -> None:
    """Rehearse, and where a difference is found in float32, again with rounding that cannot matter.

    In float32 a sum in another order may turn a number near zero, and ReLU or the choice of a maximum with it.
    """
    try:
        rehearse(module, examples)
        return
    except JobError as error:
        if any(p.dtype != torch.float32 for p in module.parameters()):
            raise
        difference = error
    doubled = [(chunk, tree_map(_doubled, batch)) for chunk, batch in examples]
    try:
        rehearse(copy.deepcopy(module).double(), doubled)
    except (JobError, RuntimeError):  # or the loss has float32 numbers of its own
        raise difference from None


def _doubled(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _traced(twin: nn.Module, call: TracedCall, tensors: Sequence[Tensor]) -> Traced:
    """Trace by torch.fx, and by torch.export where that fails."""
    try:
        return trace(twin, call)
    except JobError as error:
        try:
            return export(twin, call, tensors)
        except CannotExport as why:
            raise JobError(f"{error}. torch.export does not help: {why}") from error


def run_together(
    walks: Sequence[Generator[Request, Tensor, T]], draws: bool = False, lives: Sequence[Live] | None = None
) -> list[T]:
    """Run the walks of all workers of a group in one process; return what each of them returns.

    With `draws` the workers draw chance outside of modules that are seeded one by one, so each goes on from where the
    default generator was at its own last movement. `lives` count the bytes that each of them takes.
    """
    states = [torch.get_rng_state()] * len(walks) if draws else []
    answers: list[Tensor | None] = [None] * len(walks)
    while True:
        requests, results = [], list[T]()
        for place, walk in enumerate(walks):
            if draws:
                torch.set_rng_state(states[place])
            try:
                with lives[place] if lives else contextlib.nullcontext():
                    answer = answers[place]
                    answers[place] = None
                    # Over a link each worker has a copy of its own, whose bytes count.
                    requests.append(_next(walk, answer.clone() if lives and answer is not None else answer, place))
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


def _rehearse(job: Job, module: nn.Module, blueprint: SplitBlueprint, examples: Sequence[Example]) -> None:
    """Compare all workers together with the model, the last example twice: a model may change itself in the first."""
    replica, program = Replica(job, copy.deepcopy(module).train(), blueprint.moving), blueprint.program
    parts = [
        SplitReplica(job, sliced(module, blueprint.stored, place), blueprint, place) for place in range(program.workers)
    ]
    draws = any(model.traced.draws for model in parts[0].models.values())
    for example in (*examples, examples[-1]):
        loss = replica.forward(replica.module, *fresh(example))
        loss.backward()
        expected = float(loss.detach())
        weight = 1.0 / len(parts) if blueprint.stage else 1.0  # each has a chunk of its own
        actual = run_together([each.walk(*fresh(example), weight) for each in parts], draws)[0]
        if blueprint.stage:
            _scatter(parts)
        apart = APART.get(loss.dtype, 1e-2)
        # A loss that is not finite compares with nothing, and is another check's to refuse.
        if not math.isfinite(expected):
            return
        compare_losses(module, expected, actual, apart)
        _compare(module, blueprint, replica, parts, apart)


def compare_losses(module: nn.Module, expected: float, actual: float, apart: float) -> None:
    if abs(actual - expected) > apart * max(1.0, abs(expected)):
        raise _difference(module, f"a loss of {actual}, not {expected}")


def _scatter(parts: Sequence[SplitReplica]) -> None:
    """End the update of the rehearsal, as stage 1 scatters gradients at its end; the gradients stay where they are."""
    none = [GradientSum([], [b.clone() for b in part.replica.moving], 0.0, 1.0 / len(parts), 0) for part in parts]
    ended = run_together([part.finish(each) for part, each in zip(parts, none, strict=True)])
    for part, total in zip(parts, ended, strict=True):
        for parameter, gradient in zip(part.replica.parameters, total.gradients, strict=False):
            parameter.grad = gradient


def _compare(
    module: nn.Module, blueprint: SplitBlueprint, replica: Replica, parts: Sequence[SplitReplica], apart: float
) -> None:
    gradients = [each.replica.take() for each in parts]
    compare_gradients(module, replica.take(), gradients, blueprint.stored, apart)
    moved = [each.replica.moving for each in parts]
    compare_buffers(module, blueprint.moving, replica.moving, moved, blueprint.stored)


def compare_gradients(
    module: nn.Module,
    expected: Sequence[Tensor | None],
    actual: Sequence[Sequence[Tensor | None]],
    stored: Mapping[str, Stored],
    apart: float,
) -> None:
    """Compare the model's gradients with those of its parts, place by place. Raise `JobError` where they differ."""
    total = math.hypot(*(float(g.norm()) for g in expected if g is not None))
    for number, name in enumerate(trainable(module)):
        one, mine = expected[number], [gradients[number] for gradients in actual]
        if (one is None) != any(g is None for g in mine):
            raise _difference(module, f"the gradient of {name} is {'there' if one is None else 'not there'}")
        if one is not None:
            other = assembled(mine, stored.get(name), one.shape)  # type: ignore[arg-type]
            if float((one - other).norm()) > apart * (float(one.norm()) + total / 100):
                raise _difference(module, f"the gradient of {name} differs")


def compare_buffers(
    module: nn.Module,
    names: Sequence[str],
    expected: Sequence[Tensor],
    actual: Sequence[Sequence[Tensor]],
    stored: Mapping[str, Stored],
) -> None:
    """Compare the model's moving buffers with those of its parts, place by place."""
    for number, (name, one) in enumerate(zip(names, expected, strict=True)):
        other = assembled([mine[number] for mine in actual], stored.get(name), one.shape)
        if not torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-4, equal_nan=True):
            raise _difference(module, f"its buffer {name} moves otherwise")


def _difference(module: nn.Module, what: str) -> JobError:
    return JobError(
        f"with its layers split {type(module).__name__} computes something else: {what}. Its code does what its graph "
        "does not show (it changes itself, or draws chance of its own); put that part into a module of its own"
    )


# The memory of workers with parts of layers: bytes of tensors, counted while all of them compute an update together.
# A worker's own memory is what it stores of the model, gradients, the optimizer's state, and what a chunk needs: values
# between forward and backward, what movements bring, what is gathered of parameters. The vectors through which workers
# exchange numbers are shared, and not counted.


def peaks_of_parts(
    job: Job, module: nn.Module, blueprint: SplitBlueprint, example: Example, chunks: int = 1
) -> list[int]:
    """Return the most bytes that each worker of a group will take, if an update has so many chunks like this one."""
    workers = range(blueprint.program.workers)
    parts = [SplitReplica(job, sliced(module, blueprint.stored, place), blueprint, place) for place in workers]
    lives = [Live() for _ in workers]
    draws = any(model.traced.draws for model in parts[0].models.values())
    for _ in range(min(2, chunks)):  # the second finds gradients to add to
        walks = []
        for part, live in zip(parts, lives, strict=True):
            with live:
                walks.append(part.walk(*fresh(example), 1.0))
        run_together(walks, draws, lives)
    sums = [GradientSum([], [b.clone() for b in p.replica.moving], 0.0, 1.0, 0) for p in parts]
    run_together([part.finish(each) for part, each in zip(parts, sums, strict=True)], False, lives)
    return [_peak(job, part, live) for part, live in zip(parts, lives, strict=True)]


def _peak(job: Job, part: SplitReplica, live: Live) -> int:
    """Return the peak of one worker: in a chunk, or in the optimizer's step."""
    replica = part.replica
    resident = sum(p.nbytes for p in replica.module.parameters()) + sum(b.nbytes for b in replica.module.buffers())
    gradients = sum(p.grad.nbytes for p in replica.parameters if p.grad is not None)
    chunk, graph = live.most, OPERATION * live.operations
    replica.take()
    state, moment = step_bytes(live, job.make_optimizer(replica.module, replica.parameters), replica.parameters)
    return BESIDES + resident + state + max(chunk + graph, gradients + moment)
