"""The nodes of a module, by torch.fx: down to the layers that have a kernel, what is made of others written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline.kernels.ir import FORBIDDEN
from paceline.kernels.layers import MODULES
from paceline.kernels.layers.base import BATCH, CannotFuse, HeldTensor, is_hooked, kind_of
from paceline.kernels.layers.expansions import FORWARDS, FUNCTIONS

# --- Arguments of traced functions: names of layers, parameters, and values that do not depend on the samples ---------

WORDS = ("cpu", "cuda", "none", "tanh", "sum", "mean")  # among arguments, that are no layers' names


@dataclass(frozen=True)
class States:
    """The last states of a recurrent layer: one for each of its layers and directions."""

    source: str
    layers: int
    directions: int
    hidden: int


def flat(values: Any) -> list[Any]:
    """All arguments, those in lists among them."""
    if isinstance(values, dict):
        values = list(values.values())
    return [v for each in values for v in flat(each)] if isinstance(values, tuple | list) else [values]


def without_samples(values: Any) -> Any:
    """Arguments, with 1 in place of the number of samples and buffers as the tensors that they are."""
    if isinstance(values, tuple | list):
        return type(values)(map(without_samples, values))
    if isinstance(values, dict):
        return {key: without_samples(value) for key, value in values.items()}
    return 1 if values is BATCH else values.tensor if isinstance(values, HeldTensor) else values


def is_whole(args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a conversion makes whole numbers."""
    types = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
    return any(not t.is_floating_point for t in types)


def finite(values: Tensor) -> Tensor:
    """Numbers, a finite one in place of minus infinity: what is added to scores that do not count."""
    return torch.where(values == -torch.inf, FORBIDDEN, values)


def as_numbers(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords of an attention, a mask of truth values among them as what is added to scores."""
    return {
        key: torch.where(value, FORBIDDEN, 0.0) if isinstance(value, Tensor) and value.dtype == torch.bool else value
        for key, value in kwargs.items()
    }


def called(target: Any) -> str:
    """What a traced function is called."""
    return str(getattr(target, "__name__", target))


def depends(argument: Any, *besides: Any) -> bool:
    """Whether anything in these arguments depends on the samples, on how many there are, or on what is trained."""
    if isinstance(argument, tuple | list):
        return any(depends(each, *besides) for each in argument)
    if isinstance(argument, dict):
        return any(depends(each, *besides) for each in argument.values())
    if isinstance(argument, slice):
        return depends([argument.start, argument.stop, argument.step], *besides)
    if isinstance(argument, HeldTensor):
        return isinstance(argument.tensor, nn.Parameter)
    return (
        (argument is BATCH and BATCH not in besides)
        or isinstance(argument, States)
        or (isinstance(argument, str) and argument not in WORDS)
    )


class _Tracer(fx.Tracer):
    """Follows a module down to the layers that have a row in the table."""

    proxy_buffer_attributes = True

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> fx.Proxy:
        """Some functions are traced as what they are made of."""
        if kind in ("call_function", "call_method") and target in FUNCTIONS:
            proxy: fx.Proxy = FUNCTIONS[target](*args, **kwargs)
            return proxy
        return super().create_proxy(kind, target, args, kwargs, *more, **options)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if kind_of(m, MODULES) is not None:
            return True
        return kind_of(m, FORWARDS) is None and super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What PyTorch's own layers compute is written without branches that cannot be followed."""
        kind = kind_of(m, FORWARDS)
        return super().call_module(m, forward if kind is None else partial(FORWARDS[kind], m), args, kwargs)


INSTEAD = "remove it, or take compute='autograd', which is PyTorch"


class _Root(nn.Module):
    """A module around another, so that a layer can be traced from above."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x)


def traced(module: nn.Module) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The nodes of a module, and the tensors that its forward makes for itself.

    A module that is itself a layer is traced from above.
    """
    root: nn.Module = module if kind_of(module, (*MODULES, *FORWARDS)) is None else _Root(module)
    _check_hooks(module)
    before = set(vars(root))
    try:
        graph = _Tracer().trace(root)
    except CannotFuse:
        raise
    except Exception as error:
        raise CannotFuse(
            f"the model's forward cannot be followed ({type(error).__name__}: {error}); a Sequential, or a forward "
            "without branches on the data, can; compute='autograd' trains any"
        ) from error
    finally:  # tracing leaves them in the module
        constants = {name: vars(root).pop(name) for name in set(vars(root)) - before}
    if root is not module:
        for node in graph.nodes:
            if node.op in ("call_module", "get_attr"):
                node.target = str(node.target).removeprefix("body").removeprefix(".")
    for node in graph.nodes:
        if node.name in WORDS:  # which are no results where they are arguments
            node._rename(f"{node.name}_given")
    return graph, constants


def _check_hooks(module: nn.Module) -> None:
    """Refuses hooks, which may change what a module or a gradient is and are no part of a text."""
    for name, part in module.named_modules():
        if is_hooked(part):
            raise CannotFuse(f"layer {name or 'model'} has a hook, which generated code does not call: {INSTEAD}")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CannotFuse(f"the parameter {name} has a hook, which generated code does not call: {INSTEAD}")
