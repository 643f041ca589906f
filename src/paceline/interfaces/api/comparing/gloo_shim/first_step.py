"""Records the first training step of a script in each of its processes, and ends the process after it.

    first forward pass of the outermost module    parameters and buffers; the output's type at every module; its samples
    backward pass                                 the gradient of each parameter as this process has computed it
    what clips or unscales gradients, or a step   the gradient that is applied, before it is clipped or unscaled
    first step of an optimizer                    the optimizer's settings
    after it                                      parameters

`interfaces.api.comparing.first_step` compares what the processes have recorded.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
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
        self.watched: dict[int, nn.Parameter] = {}

    def forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Take the outermost module that is trained, in its first forward pass."""
        if self.module is not None or not module.training or not any(p.requires_grad for p in module.parameters()):
            return
        if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
            raise RuntimeError("paceline verify compares what fully_shard has sharded, not FullyShardedDataParallel")
        self.module = module
        inner = getattr(module, "module", module) if type(module).__name__ == "DistributedDataParallel" else module
        leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
        parameters, recorded = dict(inner.named_parameters()), self.recorded
        recorded["samples"] = len(leaves[0]) if leaves else 1
        recorded["parameters"] = {name: _whole(p) for name, p in parameters.items()}
        recorded["buffers"] = {name: _whole(b) for name, b in inner.named_buffers()}
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self._watch(parameters)
        for name, part in inner.named_modules():
            part.register_forward_pre_hook(
                lambda part, inputs, name=name: self._enter(f"{name}." if name else "", part)
            )
            part.register_forward_hook(lambda part, inputs, output, name=name: self._output(name, output))

    def _enter(self, prefix: str, part: nn.Module) -> None:
        """Watch what `fully_shard` has put together for a module, after its own hook has."""
        self._watch({prefix + name: parameter for name, parameter in part.named_parameters(recurse=False)})

    def _watch(self, parameters: dict[str, nn.Parameter]) -> None:
        """Take the gradients of parameters that are whole, each under its first name."""
        for name, parameter in parameters.items():
            if parameter.requires_grad and not _is_sharded(parameter) and id(parameter) not in self.watched:
                self.watched[id(parameter)] = parameter
                parameter.register_hook(lambda gradient, name=name: self._backward(name, gradient))

    def _backward(self, name: str, gradient: Tensor) -> None:
        local = self.recorded["local"]
        local[name] = local[name] + gradient.detach() if name in local else gradient.detach().clone()

    def _output(self, name: str, output: Any) -> None:
        kinds = sorted({str(leaf.dtype) for leaf in tree_leaves(output) if isinstance(leaf, Tensor)})
        self.recorded["types"].setdefault(name, kinds)

    def take_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Take the gradients that are applied, the first time that something changes or applies them."""
        if self.module is None:
            return
        applied = self.recorded.setdefault("gradients", {})
        for parameter in parameters:
            if (name := self.names.get(id(parameter))) and parameter.grad is not None:
                applied.setdefault(name, _whole(parameter.grad))

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Take the gradients that are applied, and the settings."""
        if self.module is None:
            return
        self.take_gradients(_trained(optimizer))
        self.recorded["settings"] = [
            {key: value for key, value in group.items() if isinstance(value, int | float | str | bool)}
            for group in optimizer.param_groups
        ]

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Write what was recorded, and end the process: no other step is needed."""
        if self.module is None or "gradients" not in self.recorded:
            return
        pairs = [(self.names.get(id(parameter)), parameter) for parameter in _trained(optimizer)]
        self.recorded["after"] = {name: _whole(parameter) for name, parameter in pairs if name}
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


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def _whole(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor, put together from all processes if it is sharded; all of them ask at once."""
    whole: Tensor = getattr(tensor, "full_tensor", lambda: tensor)()
    return whole.detach().clone()


def _trained(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def record() -> None:
    """Record the first step from here on."""
    first = FirstStep()

    def clipping(clip: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)  # perhaps a generator
            first.take_gradients(parameters)
            return clip(parameters, *args, **kwargs)

        return functools.wraps(clip)(wrapped)

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrapper = clipping(getattr(nn.utils, name))
        setattr(nn.utils, name, wrapper)
        setattr(nn.utils.clip_grad, name, wrapper)
    unscale = torch.amp.GradScaler.unscale_

    def unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        first.take_gradients(_trained(optimizer))
        unscale(scaler, optimizer)

    torch.amp.GradScaler.unscale_ = unscaled  # type: ignore[assignment, method-assign]
    nn.modules.module.register_module_forward_pre_hook(first.forward)
    register_optimizer_step_pre_hook(first.before_step)
    register_optimizer_step_post_hook(first.after_step)
