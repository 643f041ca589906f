"""What compiles a plan for one kind of hardware, and runs it there."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from paceline.kernels.compiled import Compiled, CompiledCall
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan


class CompiledText(Protocol):
    """A text, compiled."""

    file: Path
    #: Whether it was found in the cache.
    cached: bool


class Processor(Protocol):
    """A CPU or a GPU, for which texts are printed and compiled, and on which their calls run."""

    #: The device that all numbers of a call lie on.
    where: torch.device
    #: The gradients of a batch that are summed apart, at most, for any number of threads.
    chunks: int
    threads: int

    def target(self, real: str, batch_size: int) -> Target:
        """What a text for batches of so many samples is for; `real` is float or double."""
        ...

    def text(self, plan: Plan, rule: Rule) -> str:
        """The whole text of a plan and of the optimizer's rule."""
        ...

    def load(self, text: str) -> CompiledText:
        """Compiles a text, or finds it in the cache."""
        ...

    def arenas(self, plan: Plan, batch: int) -> int:
        """The number of groups of samples that need memory at once."""
        ...

    def run(self, compiled: Compiled, call: CompiledCall) -> None:
        """The call's updates; or, where its update is negative, the gradients of one batch."""
        ...

    def apply(self, compiled: Compiled, call: CompiledCall) -> None:
        """The optimizer's step alone, by the gradient of the first chunk."""
        ...

    def check_places(self, *tensors: Tensor) -> None:
        """Refuses tensors that lie where this processor does not take them from."""
        ...

    def explain(self, compiled: Compiled) -> list[str]:
        """Say which compiler made the code, where its text lies, and how samples are shared out."""
        ...

    def share(self, gflops: float) -> str:
        """How much of the hardware's peak a speed is, in words; empty if the peak is unknown."""
        ...


def how_made(compiled: Compiled) -> str:
    """Whether a program was compiled, in words."""
    return "from the cache" if compiled.program.cached else f"compiled in {compiled.seconds:.2f} s"
