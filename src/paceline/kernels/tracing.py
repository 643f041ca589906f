"""The nodes of a module, by torch.fx: down to the layers that have a kernel, what is made of others written out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, fx, nn

from paceline.kernels.arguments import WORDS
from paceline.kernels.layers import MODULES
from paceline.kernels.layers.base import CannotFuse, is_hooked, kind_of
from paceline.kernels.layers.expansions import FORWARDS, FUNCTIONS


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
