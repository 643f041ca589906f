"""The fused network: what `fuse` returns. Arguments are checked before a call, since generated code checks nothing.

The module's own parameters are copied into padded memory before a call and back after it; within a call, which may be a
whole epoch, nothing else leaves the generated text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels.build import compiler
from paceline.kernels.comparison import FEW, MOST, Numbers, WrongCode, compared, fault, note
from paceline.kernels.compiled import Compiled, CompiledCall, Draft, canonical, plan_of, tensors_of, view_of
from paceline.kernels.cuda.device import nvidia
from paceline.kernels.cuda.gpu import Gpu
from paceline.kernels.graph import describe
from paceline.kernels.ir import Lookup, Loss
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.losses import LossText, loss_kind
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan, table
from paceline.kernels.processors import Cpu, Runner, Sizes
from paceline.kernels.weights import REALS, OneModel, Weights

TEAM = 16  # numbers of the row of work: two, on a cache line each
MEMORY = 2 << 30  # bytes of numbers


def fuse(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Callable[..., torch.optim.Optimizer] | None,
    batch_size: int,
    *,
    threads: int | None = None,
    l1: float = 0.0,
) -> Fused:
    """`model` as one compiled program, made when the first samples show their shape.

    The code is for the CPU, or for the GPU that the model's parameters lie on.

    loss       nn.CrossEntropyLoss() of class numbers, or nn.MSELoss()
    optimizer  a function of the parameters that makes a torch optimizer; None where only gradients are wanted
    threads    of the CPU, at most; default: the cores this process may use
    l1         weight of the sum of all weights' sizes, added to the loss
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise CannotFuse(f"batch_size={batch_size} is not a whole number of at least 1")
    where, kind = device_of(model), loss_kind(loss)
    on_gpu = where.type == "cuda"
    processor = Gpu(nvidia(where.index or 0)) if on_gpu else Cpu(threads or machine.cores())
    return Fused(OneModel(model, optimizer, l1), kind, batch_size, Runner(processor))


class Fused:
    """A network as generated code, with its optimizer.

    weights   the module, or several, and how its parameters are trained
    loss      the loss's name in a text
    runner    the processor that the code is for, and the processes that run it together
    like      another network of the same shape and rule, whose text is used
    """

    def __init__(
        self, weights: Weights, loss: LossText, batch_size: int, runner: Runner, like: Fused | None = None
    ) -> None:
        self.weights, self.loss, self.batch_size, self.runner, self.like = weights, loss, batch_size, runner, like
        self.processor, self.model, self.optimizer = runner.processor, weights.module, weights.optimizer
        #: Updates made so far: the number of the next, which bias corrections and dropout depend on.
        self.updates = 0
        #: Samples and seconds of the last epoch.
        self.timed: tuple[int, float] | None = None
        self._compiled: dict[tuple[Any, ...], Compiled] = {}
        self._drafts: dict[tuple[Any, ...], Draft] = {}

    # --- what users call ---

    @torch.no_grad()
    def train_epoch(self, x: Tensor, y: Tensor, order: Tensor, seed: int = 0) -> float:
        """One pass over the samples named by `order`, in batches; the mean loss of its updates."""
        if self.optimizer is None:
            raise CannotFuse("fuse(...) was given no optimizer: there is nothing to train by")
        if self._compiled and tuple(x.shape[1:]) not in {shape for shape, _ in self._compiled}:
            raise CannotFuse(f"samples of shape {tuple(x.shape[1:])}: what the optimizer remembers is of another shape")
        compiled = self.compiled(x)
        compiled.take_weights()
        call, alive = self._prepared(compiled, x, y, order, self.weights.settings(compiled.plan.target.lanes))
        begin = time.perf_counter()
        samples = order.shape[-1]
        updates = -(-samples // self.batch_size)
        total = self._call(compiled, call, self.batch_size, updates, self.updates, seed)
        del alive  # the call has only their addresses
        self.timed = samples, time.perf_counter() - begin
        self.updates += updates
        compiled.give_weights()
        self.weights.count_batches(updates)
        return total / updates

    @torch.no_grad()
    def loss_and_gradients(self, x: Tensor, y: Tensor, seed: int = 0) -> tuple[float, dict[str, Tensor]]:
        """The mean loss of these samples and its gradient by parameter, in memory that the next call overwrites."""
        compiled = self.compiled(x)
        compiled.take_weights()
        call, alive = self.call_for(compiled, x, y)
        loss = self._call(compiled, call, len(x), 1, -1, seed)
        del alive  # the call has only their addresses
        self.copy_statistics(compiled)
        return loss, compiled.gradients

    def explain(self) -> str:
        """Say which path was taken, the plan, and how fast the last epoch was."""
        if not self._compiled:
            return "not compiled yet: the first samples show the shape"
        return "\n\n".join(self._explained(plan) for plan in self._compiled.values())

    def close(self) -> None:
        """Returns the memory that MPI lent; all ranks together, and before MPI ends."""
        self.runner.node.close()
        self._compiled = {}

    # --- compiling ---

    @torch.no_grad()
    def prepare(self, x: Tensor, y: Tensor | None = None) -> None:
        """Compiles for samples such as these, and compares their gradient with PyTorch's where there are targets."""
        compiled = self.compiled(x)
        if y is not None:
            self.call_for(compiled, x, y)

    def _compare(self, compiled: Compiled, x: Tensor, y: Tensor, order: Tensor) -> None:
        """Raises `WrongCode` where the gradient of samples is not PyTorch's; once for each text on a machine."""
        if compiled.compared or self.processor.where.type != "cpu" or compiled.plan.target.apart:
            return
        compiled.compared = True
        loss_of, file = self.loss.function, compiled.program.file
        most = max(FEW, MOST // max(compiled.plan.flops, 1))
        samples = (order if order.dim() == 1 else order[0])[: min(self.batch_size, most)]
        if loss_of is None or len(samples) <= compared(file):
            return
        for some in (samples[:FEW], samples):
            near, targets = x[some], y[some]
            words = fault(self._twin, partial(self._numbers, x=near, y=targets), loss_of, near, targets)
            if words is None:
                return
            if words:
                raise WrongCode(
                    f"generated code is wrong for this network on this machine: in a batch of {len(some)}, {words}. "
                    f"{compiler()} made it of {file.with_suffix('.cpp')}, which is worth a report. Use "
                    "compute='autograd', which is PyTorch"
                )
        note(file, len(samples))

    def _twin(self) -> Fused:
        """The same text, for copies of the modules."""
        return Fused(self.weights.twin(), self.loss, self.batch_size, Runner(self.processor), self)

    def modules(self) -> list[nn.Module]:
        """Each module that is trained."""
        return self.weights.modules()

    def _numbers(self, twin: Fused, x: Tensor, y: Tensor) -> list[Numbers]:
        """Loss, gradients and statistics of each module of a twin, without dropout."""
        compiled = twin.compiled(x)
        compiled.compared = True
        compiled.take_weights()
        plan, order = compiled.plan, torch.arange(len(x))
        order = order.expand(plan.target.lanes, -1) if plan.target.replicas else order
        call, alive = twin._prepared(compiled, x, y, order, torch.zeros(1, dtype=torch.float64))
        call.still, call.batch = 1, len(x)
        twin.give_arenas(compiled, call)
        if plan.scratch:  # whatever an update before has left there: zeros would hide a number that is never written
            arenas = compiled.memory["arenas"].view(-1, plan.sizes["arena"] * plan.target.lanes)
            arenas[:, : plan.scratch * plan.target.lanes] = torch.nan
        losses = [twin._call(compiled, call, len(x), 1, -1, 0)]
        del alive  # the call has only their addresses
        if plan.target.replicas:
            losses = twin.runner.losses(compiled).tolist()
        views, moved = (
            {id(tensor): view for view, tensor in twin.weights.views(plan, compiled.memory[kind])}
            for kind in ("gradients", "weights")
        )
        return [
            {"the loss": torch.tensor(loss, dtype=torch.float64).to(self.weights.dtype)}
            | {f"the gradient of {n}": views[id(p)] for n, p in module.named_parameters() if id(p) in views}
            | {f"the buffer {n}": moved[id(b)] for n, b in module.named_buffers() if id(b) in moved}
            for module, loss in zip(twin.modules(), losses, strict=False)
        ]

    def compiled(self, x: Tensor | None = None) -> Compiled:
        """What was compiled for samples such as these, which it is now if it was not before; or what was first."""
        if x is None:
            return next(iter(self._compiled.values()))
        if not x.dim():
            raise CannotFuse("x is one number: its first dimension is the samples'")
        tokens = not x.is_floating_point()
        key = (tuple(x.shape[1:]), tokens)
        if key not in self._compiled:
            self._compiled[key] = self._compile(key[0], tokens)
        return self._compiled[key]

    def _compile(self, shape: tuple[int, ...], tokens: bool) -> Compiled:
        """Makes plan, text, program and memory for samples of this shape."""
        begin = time.perf_counter()
        named = self.weights.named
        plan, rule, source, program = self._text(shape, tokens)
        memory = self._memory(plan, rule)
        views = self.weights.views(plan, memory["weights"])
        gradients = {
            name: view_of(memory["gradients"], plan, name, p.shape)
            for name, p in named.items()
            if name in plan.places and f"d_{name}" in plan.places
        }
        seconds = time.perf_counter() - begin
        weights, tensors = [view for view, _ in views], [tensor for _, tensor in views]
        return Compiled(plan, rule, self.batch_size, source, program, seconds, memory, weights, tensors, gradients)

    def draft(self, x: Tensor) -> Draft:
        """The text for samples such as these, which is not compiled yet."""
        return self._draft(tuple(x.shape[1:]), not x.is_floating_point())

    def _draft(self, shape: tuple[int, ...], tokens: bool) -> Draft:
        if (shape, tokens) not in self._drafts:
            graph = canonical(describe(self.model, shape, tokens), self.model)
            target = self.processor.target(REALS[self.weights.dtype], self.batch_size)
            plan = plan_of(graph, tensors_of(graph, self.model), set(self.weights.named), self.loss, target)
            rule = self.weights.rule(plan)
            self._drafts[shape, tokens] = Draft(plan, rule, self.processor.text(plan, rule))
        return self._drafts[shape, tokens]

    def _text(self, shape: tuple[int, ...], tokens: bool) -> tuple[Plan, Rule, str, Any]:
        """Makes plan, rule, text and program, or takes those of the network like this one."""
        if self.like is not None:
            compiled = self.like._compiled[shape, tokens]
            return compiled.plan, compiled.rule, compiled.source, compiled.program
        draft = self._draft(shape, tokens)
        with self.runner.node.first():
            return draft.plan, draft.rule, draft.source, self.processor.load(draft.source)

    def _memory(self, plan: Plan, rule: Rule) -> dict[str, Tensor]:
        """All that a call reads and writes besides the samples."""
        lanes, sizes, chunks = plan.target.lanes, plan.sizes, self.processor.chunks
        wide = lanes if plan.target.replicas else 1
        arena = sizes["arena"] * lanes * self.processor.arenas(plan, self.batch_size)
        weights, lane_gradients = sizes["weights"] * wide, sizes["lanes"] * lanes * chunks
        dtype = self.weights.dtype
        needed = (weights * (1 + len(rule.states) + chunks) + lane_gradients + arena) * dtype.itemsize
        if needed > MEMORY:
            raise CannotFuse(
                f"this network needs {needed / 1e9:.1f} GB side by side; kernels are for small "
                "networks, and gain nothing on large ones: compute='autograd' trains it"
            )
        shared = {
            "weights": (weights, dtype),
            "gradients": (sizes["gradient"] * wide * chunks, dtype),
            "lane_gradients": (lane_gradients, dtype),
            "state": (weights * len(rule.states), dtype),
            "losses": ((chunks + 1) * lanes, torch.float64),
            "team": (TEAM, torch.int64),
        }
        return self._allocated(shared) | self._arenas(plan, arena)

    def _arenas(self, plan: Plan, numbers: int) -> dict[str, Tensor]:
        """A group reads other groups' arenas only where a phase has to end for all samples first."""
        if len(plan.phases) > 1:
            return self._allocated({"arenas": (numbers, self.weights.dtype)})
        return {"arenas": torch.zeros(max(numbers, 1), dtype=self.weights.dtype, device=self.processor.where)}

    def _allocated(self, sizes: Sizes) -> dict[str, Tensor]:
        """Zeros that all processes of the node share; at least one number each, so that every address is valid."""
        at_least = {name: (max(count, 1), dtype) for name, (count, dtype) in sizes.items()}
        return self.runner.node.allocate(at_least, self.processor.where)

    # --- running ---

    def _call(self, compiled: Compiled, call: CompiledCall, batch: int, updates: int, update: int, seed: int) -> float:
        """Runs the generated code: so many updates from `update` on, or, if that is negative, one batch's gradient."""
        call.batch, call.updates, call.update, call.seed = batch, updates, update, seed
        return self.run(compiled, call)

    def run(self, compiled: Compiled, call: CompiledCall) -> float:
        """Makes the updates of a call that was prepared; the sum of their losses."""
        self.give_arenas(compiled, call)
        return self.runner.run(compiled, call)

    def give_arenas(self, compiled: Compiled, call: CompiledCall) -> None:
        """Lets a call have the memory that batches of its size need."""
        check_batches(compiled.plan, call.samples, call.batch)
        needed = (
            compiled.plan.sizes["arena"] * compiled.plan.target.lanes * self.processor.arenas(compiled.plan, call.batch)
        )
        if compiled.memory["arenas"].numel() < needed:
            compiled.memory |= self._arenas(compiled.plan, needed)
        call.arenas = compiled.memory["arenas"].data_ptr()

    def call_for(self, compiled: Compiled, x: Tensor, y: Tensor) -> tuple[CompiledCall, list[Tensor]]:
        """A call of these samples, and the tensors that have to live as long as it does."""
        return self._prepared(compiled, x, y, torch.arange(len(x)), torch.zeros(1, dtype=torch.float64))

    def _prepared(
        self, compiled: Compiled, x: Tensor, y: Tensor, order: Tensor, settings: Tensor
    ) -> tuple[CompiledCall, list[Tensor]]:
        """The call with its arguments, checked and copied to the processor; and the tensors that these point into."""
        plan, where = compiled.plan, self.processor.where
        tokens, labels = plan.program.tokens, self.loss.labels
        self.processor.check_places(x, y, order)
        check_kinds(plan, labels, y, order)
        x = x.to(where, torch.long if tokens else self.weights.dtype).contiguous()
        y = y.to(where, torch.long if labels else self.weights.dtype).contiguous()
        order, settings = order.to(where, torch.long).contiguous(), settings.to(where)
        check_samples(plan, labels, x, y, order)
        self._compare(compiled, x, y, order)
        pointers = {name: tensor.data_ptr() for name, tensor in compiled.memory.items()}
        call = CompiledCall(
            **pointers,
            **{"tokens" if tokens else "x": x.data_ptr(), "labels" if labels else "targets": y.data_ptr()},
            order=order.data_ptr(),
            settings=settings.data_ptr(),
            samples=order.shape[-1],
            threads=self.processor.threads,
        )
        draws = self.weights.draws(plan)
        for name, tensor in draws.items():
            setattr(call, name, tensor.data_ptr())
        return call, [x, y, order, settings, *draws.values()]

    def copy_statistics(self, compiled: Compiled) -> None:
        """Batch-norm's statistics go back into the module; its parameters did not change."""
        moving = [tensor for tensor in compiled.tensors if not isinstance(tensor, nn.Parameter)]
        if moving:
            compiled.give_weights(moving)
            self.weights.count_batches(1)

    def _explained(self, compiled: Compiled) -> str:
        """What `explain` says of samples of one shape."""
        plan = compiled.plan
        kib = plan.sizes["arena"] * plan.target.lanes * self.weights.dtype.itemsize / 1024
        lines = [
            *self.processor.explain(compiled),
            f"arithmetic: {plan.flops / 1e3:,.1f} kFLOP a sample; one group of samples uses {kib:,.0f} KiB",
        ]
        if self.timed is not None:
            samples, seconds = self.timed
            speed = plan.flops * samples / seconds / 1e9
            lines.append(
                f"last epoch: {seconds:.3f} s, {samples / seconds:,.0f} samples/s, {speed:.1f} GFLOP/s"
                + self.processor.share(speed)
            )
        return "\n".join([*lines, "", table(plan)])


# Arguments are checked before a call, since generated code checks nothing.


def device_of(model: nn.Module) -> torch.device:
    """The one device that all parameters lie on."""
    places = {p.device for p in model.parameters()}
    if len(places) > 1 or any(place.type not in ("cpu", "cuda") for place in places):
        raise CannotFuse(f"parameters on {', '.join(map(str, places))}: kernels are for one CPU or one GPU")
    return places.pop() if places else torch.device("cpu")


def check_kinds(plan: Plan, labels: bool, y: Tensor, order: Tensor) -> None:
    """Refuses targets and orders of a wrong type, before a conversion hides it."""
    if order.is_floating_point() or order.dtype == torch.bool or order.dim() != (2 if plan.target.replicas else 1):
        raise CannotFuse(
            f"an order of {order.dtype} and shape {tuple(order.shape)}: it is the samples' numbers, in a row"
        )
    if labels and y.is_floating_point():
        raise CannotFuse(f"targets of {y.dtype}: cross entropy has a kernel for class numbers, which are whole")


def check_batches(plan: Plan, samples: int, batch: int) -> None:
    """Refuses an order whose batches leave batch-norm a single sample."""
    if plan.program.batch_norm and 1 in (min(batch, samples), samples % batch):
        raise CannotFuse(
            f"{samples} samples in batches of {batch} leave one sample alone, which has no variance for the batch-norm "
            f"{plan.program.batch_norm}; take another batch_size"
        )


def check_samples(plan: Plan, labels: bool, x: Tensor, y: Tensor, order: Tensor) -> None:
    """Refuses all that would make the generated code read or write outside its memory. `labels`: class numbers."""
    if len(x) != len(y) or not order.numel():
        raise CannotFuse(f"{len(x)} samples, {len(y)} targets and an order of {order.numel()}: nothing to train on")
    if int(order.min()) < 0 or int(order.max()) >= len(x):
        raise CannotFuse(f"an order from {int(order.min())} to {int(order.max())}, of {len(x)} samples")
    for it in (s for s in plan.program.forward if isinstance(s, Lookup)):
        _check_rows(it, x.reshape(len(x), -1)[:, list(it.columns)] if it.numbers else x)
    program = plan.program
    if labels:
        ignored = next(s.ignored for s in program.forward if isinstance(s, Loss))
        counted = y if y.numel() and int(y.min()) >= 0 else y[y != ignored]
        if counted.numel() and not (int(counted.min()) >= 0 and int(counted.max()) < program.outputs):
            raise CannotFuse(
                f"class numbers from {int(counted.min())} to {int(counted.max())}, for a network of {program.outputs} "
                "outputs"
            )
        if tuple(y.shape[1:]) != program.places:
            expected = "one class per sample" if not program.places else f"classes of shape {program.places} per sample"
            raise CannotFuse(f"targets of shape {tuple(y.shape)}: this network and its loss want {expected}")
    elif tuple(y.shape[1:]) != program.result:
        raise CannotFuse(f"targets of shape {tuple(y.shape[1:])}, for outputs of shape {program.result}")


def _check_rows(it: Lookup, numbers: Tensor) -> None:
    """Refuses numbers that an embedding has no row for."""
    if not numbers.numel():
        return
    least, most = float(numbers.min()), float(numbers.max())
    if least < 0 or most >= it.rows:
        raise CannotFuse(f"tokens from {least:.0f} to {most:.0f}, for an embedding of {it.rows} rows")
    if numbers.is_floating_point() and not torch.equal(numbers, numbers.round()):
        raise CannotFuse(f"{it.layer}: an embedding gets numbers that are not whole")
