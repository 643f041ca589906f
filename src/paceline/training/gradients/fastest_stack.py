"""Which form trains or evaluates jobs of one shape fastest. A few updates tell, once for each shape.

Of generated code: a core for each, or a lane for each. Networks without kernels are vectorised by torch.func.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Agenda
from paceline.errors import JobWarning
from paceline.kernels import CannotFuse, NoCompiler, fuse_replicas, machine
from paceline.kernels.build import COMPILING
from paceline.kernels.comparison import WrongCode
from paceline.kernels.replicas import Forward, Replicas, fuse_alike, rates_of
from paceline.kernels.weights import REALS, remember, remembered
from paceline.training.data.opening import open_source
from paceline.training.data.source import TensorSource
from paceline.training.gradients.evaluate import evaluate
from paceline.training.gradients.vmap_stack import CannotStack, Members, VmapStack
from paceline.training.jobs.job import Job, threads

# Evaluation of the members of a stack: one on each core, by generated code where that pays.
#
# PyTorch evaluates the first of them, which shows how long it takes. If all evaluations that may follow take longer
# than compiling the way forward does, the others are evaluated by generated code.

Figures = dict[str, float]
CLOSE = 1e-5, 1e-4  # relative and absolute difference from PyTorch that rounding may make in single precision
FEW = 64  # samples on which both are compared


class Evaluation:
    """Evaluates members of one shape, whose evaluations differ in nothing but parameters and test data."""

    def __init__(self) -> None:
        #: The way forward in generated code, once it has been found to pay.
        self.forward: Forward | None = None
        self._considered = False

    def figures(self, jobs: Sequence[Job], modules: Sequence[nn.Module], rounds: int) -> list[Figures | Exception]:
        """Return each member's figures, or what its evaluation raised. `rounds` more evaluations may follow."""
        if not all(map(_apart, jobs)):  # a metric's object may be shared
            return [self._one(job, module) for job, module in zip(jobs, modules, strict=True)]
        with (
            threads(1),  # since there are others
            ThreadPoolExecutor(machine.cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            outcomes: list[Figures | Exception] = []
            if not self._considered:
                begin = time.perf_counter()
                outcomes.append(self._one(jobs[0], modules[0]))
                remaining = (time.perf_counter() - begin) * (len(jobs) * (rounds + 1) - 1) / machine.cores()
                self._consider_compiling(jobs[0], modules[0], remaining)
            outcomes += pool.map(self._one, jobs[len(outcomes) :], modules[len(outcomes) :])
        return outcomes

    def _one(self, job: Job, module: nn.Module) -> Figures | Exception:
        assert job.test is not None
        by = Generated(self.forward, module) if self.forward is not None else module
        try:
            return evaluate(job, by, open_source(job.test, job.seed, "test"))
        except Exception as error:  # of the user's own: this member fails, and no other
            return error

    def _consider_compiling(self, job: Job, module: nn.Module, remaining: float) -> None:
        """Compile the way forward if it pays and is the module's own."""
        self._considered = True
        if remaining < COMPILING:
            return
        assert job.loss is not None
        assert job.test is not None
        try:
            source = open_source(job.test, job.seed, "test")
            x = source.batch(torch.arange(min(FEW, len(source))), 0)[0]
            forward = Forward(module, job.loss, x)
            if close(forward.scores(module, x), module.eval()(x)):
                self.forward = forward
        except Exception:  # PyTorch goes on, and fails where the user's own code does
            pass
        finally:
            module.train()


class Generated(nn.Module):
    """A module whose way forward is computed by generated code."""

    def __init__(self, way: Forward, module: nn.Module) -> None:
        super().__init__()
        self.way, self.of = way, [module]  # not as a part, whose mode would be changed

    def forward(self, x: Tensor) -> Tensor:
        return self.way.scores(self.of[0], x)


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two results differ by rounding alone."""
    relative, absolute = CLOSE
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=relative, atol=absolute)


def _apart(job: Job) -> bool:
    """Whether an evaluation of this job calls nothing of the user's that others may be calling at the same time."""
    overrides = (job.evaluate, job.step, job.loss_denominator, job.batch_transform)
    return not job.metrics and all(each is None for each in overrides) and _from_torch(job.loss)


def _from_torch(loss: object) -> bool:
    return str(getattr(loss, "__module__", "")).startswith("torch.")


# Jobs of one shape trained side by side in generated code: a lane of the processor's vectors for each.
#
# A member has the numbers of its separate training with compute="fused". What differs between members is data:
# parameters, the optimizer's settings, seed, rates of dropout, order of samples. Members that leave are compacted away
# as soon as fewer vectors do.

#: What an optimizer remembers of a model: by torch's name, a tensor for each of the model's weights.
Memory = dict[str, list[Tensor]]


class LaneStack(Members):
    """Trains each member in a lane of the processor's vectors."""

    def __init__(self, jobs: Sequence[Job], source: TensorSource, agenda: Agenda) -> None:
        super().__init__(jobs, source, agenda)
        self.lanes = machine.target(REALS[next(self.modules[0].parameters()).dtype]).lanes
        self._pack([])

    def _pack(self, states: Sequence[Memory]) -> None:
        """Deal the members out to as few vectors as hold them."""
        self.blocks: list[tuple[list[int], Replicas]] = []
        for first in range(0, len(self.jobs), self.lanes):
            places = list(range(first, min(first + self.lanes, len(self.jobs))))
            makers = [partial(self.jobs[place].make_optimizer, self.modules[place]) for place in places]
            loss = self.jobs[0].loss
            assert loss is not None
            fused = fuse_replicas([self.modules[p] for p in places], loss, makers, self.jobs[0].batch_size)
            if states:
                fused.remember(self.x, [states[place] for place in places], self.updates)
            self.blocks.append((places, fused))

    def advance(self, updates: int) -> list[float]:
        """Train until so many updates are made; return the mean loss of the new ones for each member."""
        totals, begun = [0.0] * len(self.jobs), self.updates
        while self.updates < updates:
            stop = min(updates, (self.updates // self.agenda.updates_per_epoch + 1) * self.agenda.updates_per_epoch)
            for places, replicas in self.blocks:
                orders = torch.stack([self._samples(place, stop) for place in places])
                seeds = [self.jobs[place].seed for place in places]
                for place, loss in zip(places, replicas.train_epochs(self.x, self.y, orders, seeds), strict=True):
                    totals[place] += loss * (stop - self.updates)
            self.updates = stop
        return [total / max(1, updates - begun) for total in totals]

    def _samples(self, place: int, stop: int) -> Tensor:
        """Return the numbers of a member's samples from now on to an update of the same pass."""
        epoch, first, _ = self.agenda.span(self.updates)
        _, _, last = self.agenda.span(stop - 1)
        return self.orders[place].span(epoch, first, last)

    def keep(self, places: Sequence[int]) -> None:
        """Keep these members alone."""
        states = self.states() if len(places) < len(self.jobs) else []
        self.choose(places)
        if states and places:
            self._pack([states[place] for place in places])

    def states(self) -> list[Memory]:
        """Return what the optimizer remembers of each member."""
        return [state for _, replicas in self.blocks for state in replicas.remembered(self.x)]

    def state(self, place: int) -> dict[str, Any]:
        """Return what a member goes on from."""
        values = {name: value.clone() for name, value in self.modules[place].state_dict().items()}
        return {"updates": self.updates, "values": values, "memory": self.states()[place]}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Let all members go on from states of the same number of updates."""
        self.updates = int(states[0]["updates"])
        for module, state in zip(self.modules, states, strict=True):
            module.load_state_dict(state["values"])
        self._pack([state["memory"] for state in states])

    def module(self, place: int) -> nn.Module:
        """Return a member's module as it is now."""
        return self.modules[place]


# Jobs of one shape trained in generated code that all share: as many at a time as there are cores, one on each.
#
# A member has the numbers of its separate training with compute="fused". Where a network's weights outgrow the nearest
# cache when every lane has its own, this is faster than lanes.


class CoreStack(Members):
    """Trains each member on a core of its own."""

    def __init__(self, jobs: Sequence[Job], source: TensorSource, agenda: Agenda, beside: Sequence[Job] = ()) -> None:
        """`beside` are jobs of this shape that will be trained by the same text later."""
        super().__init__(jobs, source, agenda)
        loss = jobs[0].loss
        assert loss is not None
        makers = [partial(job.make_optimizer, module) for job, module in zip(jobs, self.modules, strict=True)]
        first = self.modules[0]
        others = [job.make_optimizer(first, list(first.parameters())) for job in beside]
        size = jobs[0].batch_size
        self.fused = fuse_alike(self.modules, loss, makers, size, self.x[:size], self.y[:size], others)

    def advance(self, updates: int) -> list[float]:
        """Train until so many updates are made; return the mean loss of the new ones for each member."""
        with ThreadPoolExecutor(machine.cores()) as pool:  # the generated code does not hold the interpreter's lock
            losses = list(pool.map(lambda place: self._advance(place, updates), range(len(self.jobs))))
        self.updates = updates
        return losses

    def _advance(self, place: int, updates: int) -> float:
        at, total = self.updates, 0.0
        while at < updates:
            stop = min(updates, (at // self.agenda.updates_per_epoch + 1) * self.agenda.updates_per_epoch)
            epoch, first, _ = self.agenda.span(at)
            _, _, last = self.agenda.span(stop - 1)
            order: Tensor = self.orders[place].span(epoch, first, last)
            total += self.fused[place].train_epoch(self.x, self.y, order, self.jobs[place].seed) * (stop - at)
            at = stop
        return total / max(1, updates - self.updates)

    def keep(self, places: Sequence[int]) -> None:
        """Keep these members alone."""
        self.choose(places)
        self.fused = [self.fused[place] for place in places]

    def state(self, place: int) -> dict[str, Any]:
        """Return what a member goes on from."""
        values = {name: value.clone() for name, value in self.modules[place].state_dict().items()}
        fused = self.fused[place]
        (named_views,) = remembered(fused.compiled(self.x), fused.weights)
        memory = {name: [view.clone() for view in views] for name, views in named_views.items()}
        return {"updates": self.updates, "values": values, "memory": memory}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Let all members go on from states of the same number of updates."""
        self.updates = int(states[0]["updates"])
        for module, fused, state in zip(self.modules, self.fused, states, strict=True):
            module.load_state_dict(state["values"])
            remember(fused.compiled(self.x), fused.weights, [state["memory"]])
            fused.updates = self.updates

    def module(self, place: int) -> nn.Module:
        """Return a member's module as it is now."""
        return self.modules[place]


LOOK = 0.05  # seconds for which a form is timed, at least one update
SIDE_BY_SIDE = 16  # members by torch.func that are timed
WORTH = 2.0  # times the seconds of a look, which a form has to be able to save for it to be looked at
GeneratedStack = CoreStack | LaneStack


@dataclass(frozen=True)
class Pace:
    """How fast a form is: seconds of an update of so many members at once."""

    seconds: float
    members: int

    def of(self, jobs: int, updates: int) -> float:
        """Return the seconds of all updates of so many jobs."""
        return -(-jobs // self.members) * self.seconds * updates


@dataclass
class Forms:
    """The forms that were timed, by the shape of the jobs."""

    known: dict[str, dict[type[GeneratedStack], Pace]] = field(default_factory=dict)

    def stack(self, shape: str, jobs: Sequence[Job], source: TensorSource) -> GeneratedStack | VmapStack:
        """Return the stack of these jobs that is expected to be done first. Raise CannotStack where there is none."""
        agenda = _agenda(jobs, source)
        try:
            if len(jobs) == 1:
                return CoreStack(jobs, source, agenda)
            kind, _ = self._fastest(shape, jobs, source, len(jobs))
            return kind(jobs, source, agenda)
        except (CannotFuse, NoCompiler) as error:
            return _vmapped(jobs, source, agenda, error)

    def seconds(self, shape: str, jobs: Sequence[Job], source: TensorSource, members: int) -> float:
        """Return how long the fastest form takes for all updates of one job, where it trains so many of this shape."""
        try:
            return self._fastest(shape, jobs, source, members)[1] / members
        except (CannotFuse, NoCompiler) as error:
            agenda = _agenda(jobs, source)
            stack = _vmapped(list(islice(cycle(jobs), min(members, SIDE_BY_SIDE))), source, agenda, error)
            return _timed(stack) * agenda.updates / len(stack.jobs)

    def _fastest(
        self, shape: str, jobs: Sequence[Job], source: TensorSource, members: int
    ) -> tuple[type[GeneratedStack], float]:
        """Return the form of generated code that trains so many members first, and its seconds."""
        updates = _agenda(jobs, source).updates
        paces = self.known.setdefault(shape, {})
        if CoreStack not in paces:
            cores = [jobs[0]] * machine.cores()  # one text, since each would have to be compiled
            paces[CoreStack] = _pace(lambda: CoreStack(cores, source, _agenda(jobs, source), jobs), len(cores))
        on_cores = paces[CoreStack].of(members, updates) + COMPILING * (len({_rates(job) for job in jobs}) - 1)
        if LaneStack not in paces and on_cores > WORTH * COMPILING:
            some = jobs[: machine.target("float").lanes]
            try:
                paces[LaneStack] = _pace(lambda: LaneStack(some, source, _agenda(jobs, source)), len(some))
            except WrongCode:
                raise
            except CannotFuse:  # they differ in what lanes have in common
                paces[LaneStack] = Pace(float("inf"), 1)
        if LaneStack in paces and (in_lanes := paces[LaneStack].of(members, updates)) < on_cores:
            return LaneStack, in_lanes
        return CoreStack, on_cores


def _agenda(jobs: Sequence[Job], source: TensorSource) -> Agenda:
    return Agenda(len(source), jobs[0].batch_size, max(job.epochs for job in jobs))


def _vmapped(jobs: Sequence[Job], source: TensorSource, agenda: Agenda, error: Exception) -> VmapStack:
    """Return a stack by torch.func, since there are no kernels; if it cannot be, say both reasons."""
    if isinstance(error, WrongCode):
        warnings.warn(f"{error}, as these trials do", JobWarning, stacklevel=2)
    try:
        return VmapStack(jobs, source, agenda)
    except CannotStack as refused:
        raise CannotStack(f"there are no kernels ({error}), and {refused}") from error


def _pace(make: Callable[[], GeneratedStack], members: int) -> Pace:
    return Pace(_timed(make()), members)


def _timed(stack: GeneratedStack | VmapStack) -> float:
    """Return the seconds of an update of all members, from a few of them."""
    if stack.agenda.updates > 1:
        stack.advance(1)
    first, stride, begin = stack.updates, 1, time.perf_counter()
    while stack.updates < stack.agenda.updates:
        stack.advance(min(stack.agenda.updates, stack.updates + stride))
        stride *= 2
        if time.perf_counter() - begin > LOOK:
            break
    return (time.perf_counter() - begin) / (stack.updates - first)


def _rates(job: Job) -> tuple[float, ...]:
    with torch.random.fork_rng(devices=[]):
        return rates_of(job.make_model())
