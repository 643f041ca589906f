"""Records the first training step of a script in each of its processes, and ends the process after it.

    first forward pass of the outermost module    parameters and buffers; the output's type at every module; its samples
    backward pass                                 the gradient of each parameter as this process has computed it
    first step of an optimizer                    the gradient that is applied, the optimizer's settings
    after it                                      parameters

`interfaces.api.comparing.first_step` compares what the processes have recorded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves


class FirstStep:
    """What one process records."""

    def __init__(self) -> None:
        self.module: nn.Module | None = None
        self.recorded: dict[str, Any] = {"local": {}, "types": {}}
        self.names: dict[int, str] = {}

    def forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Take the outermost module that is trained, in its first forward pass."""
        if self.module is not None or not module.training or not any(p.requires_grad for p in module.parameters()):
            return
        self.module = module
        inner = getattr(module, "module", module) if type(module).__name__ == "DistributedDataParallel" else module
        leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
        parameters, recorded = dict(inner.named_parameters()), self.recorded
        recorded["samples"] = len(leaves[0]) if leaves else 1
        recorded["parameters"] = {name: p.detach().clone() for name, p in parameters.items()}
        recorded["buffers"] = {name: b.detach().clone() for name, b in inner.named_buffers()}
        for name, parameter in parameters.items():
            self.names[id(parameter)] = name
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient, name=name: self._backward(name, gradient))
        for name, part in inner.named_modules():
            part.register_forward_hook(lambda part, inputs, output, name=name: self._output(name, output))

    def _backward(self, name: str, gradient: Tensor) -> None:
        local = self.recorded["local"]
        local[name] = local[name] + gradient.detach() if name in local else gradient.detach().clone()

    def _output(self, name: str, output: Any) -> None:
        kinds = sorted({str(leaf.dtype) for leaf in tree_leaves(output) if isinstance(leaf, Tensor)})
        self.recorded["types"].setdefault(name, kinds)

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Take the gradients that are applied."""
        if self.module is None:
            return
        pairs = [(self.names.get(id(p)), p) for group in optimizer.param_groups for p in group["params"]]
        self.recorded["gradients"] = {name: p.grad.detach().clone() for name, p in pairs if name and p.grad is not None}
        self.recorded["settings"] = [
            {key: value for key, value in group.items() if isinstance(value, int | float | str | bool)}
            for group in optimizer.param_groups
        ]

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Write what was recorded, and end the process: no other step is needed."""
        if self.module is None or "gradients" not in self.recorded:
            return
        pairs = [(self.names.get(id(p)), p) for group in optimizer.param_groups for p in group["params"]]
        self.recorded["after"] = {name: p.detach().clone() for name, p in pairs if name}
        rank = os.environ.get("RANK", "0")
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_initialized():
            rank = str(distributed.get_rank())
        folder = Path(os.environ["PACELINE_FIRST_STEP"])
        draft = folder / f"{rank}.draft"
        torch.save(self.recorded, draft)
        draft.rename(folder / f"{rank}.pt")
        sys.stdout.flush()
        os._exit(0)


def record() -> None:
    """Record the first step from here on."""
    first = FirstStep()
    nn.modules.module.register_module_forward_pre_hook(first.forward)
    register_optimizer_step_pre_hook(first.before_step)
    register_optimizer_step_post_hook(first.after_step)
