"""The fused network: what `fuse` gives back.

The module's own parameters are copied into padded memory before a call and back after it; within a call, which may be a
whole epoch, nothing else leaves the generated text.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels.build import compiler, library
from paceline.kernels.checks import check_batches, check_kinds, check_samples, device_of
from paceline.kernels.compiled import Call, Compiled, canonical, plan_of, tensors_of, view_of
from paceline.kernels.graph import describe
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.measure.peak import peak
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule, Segment, numbers, rule_of
from paceline.kernels.plan import CHUNKS, Plan, table
from paceline.kernels.printers.cpp import text, weights_of

TEAM = 16  # numbers of the row of work: two, on a cache line each
MOST = 2 << 30  # bytes of numbers
FEW = 2  # samples that are quicker one by one
REALS = {torch.float32: "float", torch.float64: "double"}


def fuse(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Callable[..., torch.optim.Optimizer] | None,
    batch_size: int,
    *,
    threads: int | None = None,
    l1: float = 0.0,
) -> Fused:
    """`model` as one piece of machine code, made when the first samples show their shape: for the CPU, or for the GPU
    that its parameters lie on.

    loss       nn.CrossEntropyLoss() of class numbers, or nn.MSELoss()
    optimizer  a function of the parameters that makes a torch optimizer; None where only gradients are wanted
    threads    of the CPU, at most so many; default: the cores this process may use
    l1         weight of the sum of all weights' sizes, added to the loss
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise CannotFuse(f"batch_size={batch_size} is not a whole number of at least 1")
    if (where := device_of(model)).type == "cuda":
        from paceline.kernels.cuda.network import on_device

        return on_device(model, loss_kind(loss), optimizer, batch_size, where.index or 0, l1)
    return Fused(model, loss_kind(loss), optimizer, batch_size, threads or machine.cores(), l1)


def loss_kind(loss: Callable[..., Any]) -> str:
    """What the loss is called in the text."""
    for kind, name, plain in (
        (nn.CrossEntropyLoss, "cross_entropy", {"weight": None, "ignore_index": -100, "label_smoothing": 0.0}),
        (nn.MSELoss, "squared_error", {}),
    ):
        if isinstance(loss, kind) or loss is getattr(nn.functional, _snake(kind.__name__), None):
            changed = [f"{k}={getattr(loss, k)}" for k, v in plain.items() if getattr(loss, k, v) != v]
            if (reduction := getattr(loss, "reduction", "mean")) != "mean":
                changed.append(f"reduction={reduction!r}")
            if changed:
                raise CannotFuse(
                    f"{kind.__name__} with {', '.join(changed)} has no kernel, only the plain mean has; "
                    "compute='autograd' takes any loss"
                )
            return name
    raise CannotFuse(
        f"the loss {getattr(loss, '__name__', loss)} has no kernel; nn.CrossEntropyLoss() and nn.MSELoss() have; "
        "compute='autograd' takes any loss"
    )


def _snake(name: str) -> str:
    return {"CrossEntropyLoss": "cross_entropy", "MSELoss": "mse_loss"}[name]


class Fused:
    where = torch.device("cpu")  # its numbers lie
    chunks = CHUNKS

    def __init__(
        self,
        model: nn.Module,
        loss: str,
        optimizer: Callable[..., torch.optim.Optimizer] | None,
        batch_size: int,
        threads: int,
        l1: float,
    ) -> None:
        self.model, self.loss, self.batch_size, self.l1 = model, loss, batch_size, l1
        self.threads = max(1, min(threads, machine.cores()))
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        dtypes = {p.dtype for p in self.named.values()}
        if len(dtypes) != 1 or not dtypes <= set(REALS):
            raise CannotFuse(
                f"parameters of type {', '.join(map(str, dtypes)) or 'none'}; one of {list(REALS)} is fused"
            )
        self.dtype = dtypes.pop()
        self.optimizer = optimizer(list(self.named.values())) if optimizer is not None else None
        self.updates = 0
        self.timed: tuple[int, float] | None = None  # samples and seconds of the last epoch
        self._compiled: dict[tuple[Any, ...], Compiled] = {}

    # --- what users call ---

    @torch.no_grad()
    def train_epoch(self, x: Tensor, y: Tensor, order: Tensor, seed: int = 0) -> float:
        """One pass over the samples named by `order`, in batches; the mean loss as it was on the way."""
        if self.optimizer is None:
            raise CannotFuse("fuse(...) was given no optimizer: there is nothing to train by")
        if self._compiled and tuple(x.shape[1:]) not in {shape for shape, _ in self._compiled}:
            raise CannotFuse(f"samples of shape {tuple(x.shape[1:])}: what the optimizer remembers is of another shape")
        made = self._for(x)
        torch._foreach_copy_(made.weights, made.tensors)
        settings = self._settings(made)
        begin = time.perf_counter()
        samples = order.shape[-1]
        updates = -(-samples // self.batch_size)
        total = self._call(made, x, y, order, self.batch_size, updates, self.updates, settings, seed)
        self.timed = samples, time.perf_counter() - begin
        self.updates += updates
        torch._foreach_copy_(made.tensors, made.weights)
        self._count_batches(updates)
        return total / updates

    @torch.no_grad()
    def loss_and_gradients(self, x: Tensor, y: Tensor, seed: int = 0) -> tuple[float, dict[str, Tensor]]:
        """The mean loss of these samples, and its gradient by parameter, in memory that the next call writes again."""
        made = self._for(x)
        torch._foreach_copy_(made.weights, made.tensors)
        order = torch.arange(len(x))
        loss = self._call(made, x, y, order, len(x), 1, -1, torch.zeros(1, dtype=torch.float64), seed)
        self._take_moving(made)
        return loss, made.gradients

    def explain(self) -> str:
        """Which path was taken, the plan, and how fast the last epoch was."""
        if not self._compiled:
            return "not compiled yet: the first samples show the shape"
        return "\n\n".join(self._explained(made) for made in self._compiled.values())

    # --- compiling ---

    def prepare(self, x: Tensor) -> None:
        """Compile for samples such as these, or find it compiled."""
        self._for(x)

    def _for(self, x: Tensor) -> Compiled:
        if not x.dim():
            raise CannotFuse("x is one number: its first dimension is the samples'")
        tokens = not x.is_floating_point()
        key = (tuple(x.shape[1:]), tokens)
        if key not in self._compiled:
            self._compiled[key] = self._compile(key[0], tokens)
        return self._compiled[key]

    def _compile(self, shape: tuple[int, ...], tokens: bool) -> Compiled:
        begin = time.perf_counter()
        graph = canonical(describe(self.model, shape, tokens), self.model)
        tensors = tensors_of(graph, self.model)
        plan = plan_of(graph, tensors, set(self.named), self.loss, self._target())
        rule = self._rule(plan)
        source = self._text(plan, rule)
        run, apply, file, cached = self._load(source)
        memory = self._memory(plan, rule)
        weights, mine = self._copied(plan, memory["weights"], tensors)
        gradients = {
            name: view_of(memory["gradients"], plan, name, p.shape)
            for name, p in self.named.items()
            if name in plan.places and f"d_{name}" in plan.places
        }
        seconds = time.perf_counter() - begin
        return Compiled(plan, source, run, apply, file, cached, seconds, memory, weights, mine, gradients)

    def _load(self, source: str) -> tuple[Any, Any, Any, bool]:
        """(what trains by a call, what makes the optimizer's step alone, the file, whether it was in the cache)"""
        loaded, file, cached = library(source)
        for entry in (loaded.paceline_run, loaded.paceline_apply):
            entry.argtypes, entry.restype = [ctypes.c_void_p], None
        return loaded.paceline_run, loaded.paceline_apply, file, cached

    def _copied(self, plan: Plan, memory: Tensor, tensors: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """(views of the padded memory, the module's tensors that they are copies of)"""
        names = weights_of(plan)
        return [view_of(memory, plan, name, tensors[name].shape) for name in names], [tensors[name] for name in names]

    def _target(self) -> Target:
        """Samples side by side; where a batch has too few, the neighbouring numbers of one sample."""
        target = machine.target(REALS[self.dtype])
        return replace(target, pixels=self.batch_size <= FEW)

    def _text(self, plan: Plan, rule: Rule) -> str:
        return text(plan, rule)

    def _rule(self, plan: Plan) -> Rule:
        if self.optimizer is None:
            return Rule()
        found = rule_of(self.optimizer, self.l1)
        groups = {id(p): number for number, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        segments = []
        for name, parameter in self.named.items():
            if name in plan.places and f"d_{name}" in plan.places:
                place = plan.places[name]
                segments.append(Segment(place.start, place.start + prod(place.shape), groups[id(parameter)]))
        return replace(found, segments=tuple(segments))

    def _memory(self, plan: Plan, rule: Rule) -> dict[str, Tensor]:
        lanes, sizes = plan.target.lanes, plan.sizes
        wide = lanes if plan.target.replicas else 1
        arenas = self._arenas(plan, self.batch_size)
        needed = (
            sizes["weights"] * wide * (1 + rule.states + self.chunks)
            + sizes["lanes"] * lanes * self.chunks
            + sizes["arena"] * lanes * arenas
        )
        if needed * self.dtype.itemsize > MOST:
            raise CannotFuse(
                f"this network needs {needed * self.dtype.itemsize / 1e9:.1f} GB side by side; kernels are for small "
                "networks, and gain nothing on large ones: compute='autograd' trains it"
            )

        def zeros(count: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.zeros(max(count, 1), dtype=dtype, device=self.where)

        return {
            "weights": zeros(sizes["weights"] * wide),
            "gradients": zeros(sizes["gradient"] * wide * self.chunks),
            "lane_gradients": zeros(sizes["lanes"] * lanes * self.chunks),
            "state": zeros(sizes["weights"] * wide * rule.states),
            "arenas": zeros(sizes["arena"] * lanes * arenas),
            "losses": zeros((self.chunks + 1) * lanes, torch.float64),
            "team": zeros(TEAM, torch.int64),
        }

    def _arenas(self, plan: Plan, batch: int) -> int:
        """Where all samples of a batch meet, each group has an arena of its own."""
        groups = batch if plan.target.replicas else -(-batch // plan.target.lanes)
        return groups if len(plan.phases) > 1 else self.threads

    # --- running ---

    def compiled(self, x: Tensor) -> Compiled:
        """What was made for samples such as these."""
        return self._for(x)

    def _settings(self, made: Compiled) -> Tensor:
        assert self.optimizer is not None
        words = rule_of(self.optimizer, self.l1).settings
        return torch.tensor(
            [numbers(group, words, self.l1) for group in self.optimizer.param_groups], dtype=torch.float64
        )

    def _call(
        self,
        made: Compiled,
        x: Tensor,
        y: Tensor,
        order: Tensor,
        batch: int,
        updates: int,
        update: int,
        settings: Tensor,
        seed: int,
    ) -> float:
        check_batches(made.plan, order.shape[-1], batch)
        call, given = self._prepared(made, x, y, order, settings)
        call.batch, call.updates, call.update, call.seed = batch, updates, update, seed
        self._room(made, batch)
        call.arenas = made.memory["arenas"].data_ptr()
        self._meet()
        if self.leads:
            made.memory["losses"].zero_()
        self._run(made, call)
        del given  # was needed until now
        return float(made.memory["losses"][self.chunks * made.plan.target.lanes :].sum())

    @property
    def leads(self) -> bool:
        """Whether this process clears what several share."""
        return True

    def _meet(self) -> None:
        """Wait for all that share the memory."""

    def _run(self, made: Compiled, call: Call) -> None:
        if self.leads:
            made.memory["team"].zero_()
        self._meet()
        self._work(made, call)
        self._meet()

    def _work(self, made: Compiled, call: Call) -> None:
        made.run(ctypes.byref(call))

    def call_for(self, made: Compiled, x: Tensor, y: Tensor) -> tuple[Call, list[Tensor]]:
        """What the library's functions are called with, for measuring; and what has to live until then."""
        return self._prepared(made, x, y, torch.arange(len(x)), torch.zeros(1, dtype=torch.float64))

    def _prepared(
        self, made: Compiled, x: Tensor, y: Tensor, order: Tensor, settings: Tensor
    ) -> tuple[Call, list[Tensor]]:
        plan = made.plan
        tokens, labels = plan.program.tokens, self.loss == "cross_entropy"
        self._check_places(x, y, order)
        check_kinds(plan, labels, y, order)
        x = x.to(self.where, torch.long if tokens else self.dtype).contiguous()
        y = y.to(self.where, torch.long if labels else self.dtype).contiguous()
        order, settings = order.to(self.where, torch.long).contiguous(), settings.to(self.where)
        check_samples(plan, labels, x, y, order)
        pointers = {name: tensor.data_ptr() for name, tensor in made.memory.items()}
        call = Call(
            **pointers,
            **{"tokens" if tokens else "x": x.data_ptr(), "labels" if labels else "targets": y.data_ptr()},
            order=order.data_ptr(), settings=settings.data_ptr(), samples=order.shape[-1], threads=self.threads,
        )  # fmt: skip
        return call, [x, y, order, settings]

    def _room(self, made: Compiled, batch: int) -> None:
        plan = made.plan
        needed = plan.sizes["arena"] * plan.target.lanes * self._arenas(plan, batch)
        if made.memory["arenas"].numel() < needed:
            made.memory["arenas"] = torch.zeros(needed, dtype=self.dtype, device=self.where)

    def _check_places(self, x: Tensor, y: Tensor, order: Tensor) -> None:
        if {x.device.type, y.device.type, order.device.type} != {"cpu"}:
            raise CannotFuse(
                f"x on {x.device}, y on {y.device}, and the module on the CPU: its kernels are for the CPU"
            )

    def _take_moving(self, made: Compiled) -> None:
        """Batch-norm's statistics go back into the module; its parameters did not change."""
        moving = [
            (tensor, view)
            for tensor, view in zip(made.tensors, made.weights, strict=True)
            if not isinstance(tensor, nn.Parameter)
        ]
        if moving:
            torch._foreach_copy_([tensor for tensor, _ in moving], [view for _, view in moving])
            self._count_batches(1)

    def _count_batches(self, batches: int) -> None:
        self._count(self.model, batches)

    @staticmethod
    def _count(model: nn.Module, batches: int) -> None:
        for part in model.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.num_batches_tracked is not None:
                part.num_batches_tracked += batches

    # --- telling ---

    def _explained(self, made: Compiled) -> str:
        plan = made.plan
        lines = [
            *self._path(made),
            f"arithmetic: {plan.flops / 1e3:,.1f} kFLOP a sample; one group of samples uses "
            f"{plan.sizes['arena'] * plan.target.lanes * self.dtype.itemsize / 1024:,.0f} KiB",
        ]
        if self.timed is not None:
            samples, seconds = self.timed
            speed = plan.flops * samples / seconds / 1e9
            lines.append(
                f"last epoch: {seconds:.3f} s, {samples / seconds:,.0f} samples/s, {speed:.1f} GFLOP/s"
                + self._share(speed)
            )
        return "\n".join([*lines, "", table(plan)])

    def _path(self, made: Compiled) -> list[str]:
        plan = made.plan
        return [
            f"path: generated C++, {how_made(made)}, by {compiler()}",
            f"text: {made.file.with_suffix('.cpp')}",
            f"lanes: {plan.target.lanes} samples side by side, in vectors of {plan.target.bytes} bytes; "
            f"{self.threads} thread{'s' * (self.threads > 1)}, at most {CHUNKS} chunks a batch",
        ]

    def _share(self, speed: float) -> str:
        share = speed / peak(1).gflops / self.threads
        cores = f"{self.threads} core{'s' * (self.threads > 1)}"
        return f", {share:.0%} of the multiply-adds that {cores} could do at most"


def how_made(made: Compiled) -> str:
    return "from the cache" if made.cached else f"compiled in {made.seconds:.2f} s"
