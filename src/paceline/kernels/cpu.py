"""Generated kernels on a CPU: a shared library, whose functions threads call as one team."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import paceline.kernels.machine as machine
from paceline.kernels.build import compiler, library
from paceline.kernels.compiled import Compiled, CompiledCall
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.measure.peak import peak
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import CHUNKS, Plan
from paceline.kernels.printers.cpp import text
from paceline.kernels.processor import how_made

FEW = 2  # samples that are quicker one by one


def vector_target(real: str, batch_size: int) -> Target:
    """Samples side by side; where a batch has too few, the neighbouring numbers of one sample."""
    return replace(machine.target(real), pixels=batch_size <= FEW)


def replica_target(real: str, batch_size: int) -> Target:
    """Copies of the model side by side."""
    return replace(machine.target(real), replicas=True)


class Library:
    """A text as a shared library: `run` makes a call's updates, `apply` the optimizer's step alone."""

    def __init__(self, functions: ctypes.CDLL, file: Path, cached: bool) -> None:
        self.functions, self.file, self.cached = functions, file, cached
        self.run, self.apply = functions.paceline_run, functions.paceline_apply
        for entry in (self.run, self.apply):
            entry.argtypes, entry.restype = [ctypes.c_void_p], None


def load(source: str) -> Library:
    """Compiles a text with the compiler at hand, or finds it in the cache."""
    return Library(*library(source))


@dataclass(frozen=True)
class Form:
    """The form that a plan's text has: for which vectors it is, how it is printed, how it becomes a library."""

    target: Callable[[str, int], Target] = vector_target
    text: Callable[[Plan, Rule], str] = text
    load: Callable[[str], Library] = load


class Cpu:
    """The cores that this process may use, `threads` of them at most."""

    where = torch.device("cpu")
    chunks = CHUNKS

    def __init__(self, threads: int, form: Form | None = None) -> None:
        self.threads = max(1, min(threads, machine.cores()))
        self.form = form or Form()

    def target(self, real: str, batch_size: int) -> Target:
        return self.form.target(real, batch_size)

    def text(self, plan: Plan, rule: Rule) -> str:
        return self.form.text(plan, rule)

    def load(self, text: str) -> Library:
        return self.form.load(text)

    def arenas(self, plan: Plan, batch: int) -> int:
        """One per thread; where samples wait for all others of the batch, one per group."""
        groups = batch if plan.target.replicas else -(-batch // plan.target.lanes)
        return groups if len(plan.phases) > 1 else self.threads

    def run(self, compiled: Compiled, call: CompiledCall) -> None:
        compiled.program.run(ctypes.byref(call))

    def apply(self, compiled: Compiled, call: CompiledCall) -> None:
        compiled.program.apply(ctypes.byref(call))

    def check_places(self, *tensors: Tensor) -> None:
        if any(tensor.device.type != "cpu" for tensor in tensors):
            x, y, *_ = tensors
            raise CannotFuse(
                f"x on {x.device}, y on {y.device}, and the module on the CPU: its kernels are for the CPU"
            )

    def explain(self, compiled: Compiled) -> list[str]:
        target = compiled.plan.target
        return [
            f"path: generated C++, {how_made(compiled)}, by {compiler()}",
            f"text: {compiled.program.file.with_suffix('.cpp')}",
            f"lanes: {target.lanes} samples side by side, in vectors of {target.bytes} bytes; "
            f"{self.threads} thread{'s' * (self.threads > 1)}, at most {CHUNKS} chunks a batch",
        ]

    def share(self, gflops: float) -> str:
        share = gflops / peak(1).gflops / self.threads
        cores = f"{self.threads} core{'s' * (self.threads > 1)}"
        return f", {share:.0%} of the multiply-adds that {cores} could do at most"
