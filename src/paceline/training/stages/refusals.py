"""What a pipeline cannot cut, refused with the reason and the line, and guards of what torch.fx cannot see."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd import Function
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointFunction

from paceline.errors import JobError, PacelineError, users_place

UNCUT = "a plan that does not cut the model, such as ring or downpour"


class Called(Exception):
    """The model was called, so its arguments are known."""


@contextlib.contextmanager
def step_alone() -> Iterator[None]:
    """Raise what `step` raises without the whole model as an error that says so."""
    with _refused("step= fails where it has only what model(...) returns", "take no gradients in step=, or "):
        yield


@contextlib.contextmanager
def in_pieces() -> Iterator[None]:
    """Raise what a model raises whose pieces are run one by one as an error that says so."""
    with _refused("the model fails where its pieces are run one by one", ""):
        yield


@contextlib.contextmanager
def _refused(where: str, remedy: str) -> Iterator[None]:
    levels = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    except (PacelineError, Called):
        raise
    except Exception as fault:
        # A traced model enters and leaves torch.func's transforms as nodes of its graph, and has not left them now.
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(levels)
        reason = f"{type(fault).__name__}: {fault}".splitlines()[0].rstrip(".")
        raise JobError(f"{where}, as under a pipeline: {reason}{users_place(fault)}; {remedy}use {UNCUT}") from fault


def not_whole(name: str) -> JobError:
    return JobError(
        f"step= uses model.{name}, and under a pipeline no worker has the whole model; use only what model(...) "
        "returns, or a plan that does not cut the model"
    )


def autocast() -> list[bool]:
    """Return for which devices torch.autocast is on."""
    return [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]


def refuse_autocast(before: list[bool]) -> None:
    """Raise if `step` has entered torch.autocast where it calls the model."""
    if autocast() != before:
        raise JobError(
            "step= calls the model under torch.autocast, which the stages of a pipeline do not see; leave it out of "
            f"step= and give precision='bf16-mixed', or use {UNCUT}"
        )


def cannot_follow(module: nn.Module, why: str, error: Exception) -> JobError:
    return JobError(
        f"the forward of {type(module).__name__} cannot be followed: {why}{users_place(error)}; move that part into a "
        f"module of its own, which then stays whole, or use {UNCUT}"
    )


# Guards what torch.fx cannot see in a trace: changes of a module to itself, regions without gradients, and autograd
# functions of the user's, of which it would trace the forward alone.


class CannotTrace(JobError):
    """A module's code cannot be traced; the message says why."""


def region() -> bool:
    """Return whether gradients are off at this point of the traced code."""
    if torch.is_autocast_enabled("cpu"):
        raise CannotTrace("it chooses its precision itself, by torch.autocast")
    if torch.is_inference_mode_enabled():
        raise CannotTrace("it uses torch.inference_mode")
    return not torch.is_grad_enabled()


# what a module changes about itself.


class ModuleSnapshot:
    """A snapshot of a model before its code is traced."""

    def __init__(self, model: nn.Module) -> None:
        self.parts = {id(part): _Part(part) for part in model.modules()}

    def check(self, module: nn.Module) -> None:
        """Raise for changes that a graph would make only once. Attributes that are only left behind do no harm."""
        for part in module.modules():
            self.parts[id(part)].check()

    def restore(self, module: nn.Module) -> None:
        """Undo the changes to the module and its parts."""
        for part in module.modules():
            self.parts[id(part)].restore()


class _Part:
    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.attributes = {name: value for name, value in vars(module).items() if name not in ("_buffers", "_modules")}
        self.buffers = dict(module._buffers)
        self.kept = [(b, b.clone()) for b in module._buffers.values() if b is not None]
        self.versions = [b._version for b, _ in self.kept]

    def check(self) -> None:
        moved = [b for (b, _), version in zip(self.kept, self.versions, strict=True) if b._version != version]
        for name, value in self.module._buffers.items():
            if value is not self.buffers.get(name) or any(value is each for each in moved):
                raise CannotTrace(f"it changes its buffer {name}")
        for name, value in vars(self.module).items():
            usual = self.attributes.get(name, getattr(type(self.module), name, value))
            if name not in ("_buffers", "_modules") and value is not usual and not _holds_proxy(value):
                raise CannotTrace(f"it changes its own {name}")

    def restore(self) -> None:
        attributes = vars(self.module)
        for name in [name for name in attributes if name not in (*self.attributes, "_buffers", "_modules")]:
            if hasattr(type(self.module), name) or _holds_proxy(attributes[name]):
                del attributes[name]
        attributes.update(self.attributes)
        self.module._buffers.clear()
        self.module._buffers.update(self.buffers)
        with torch.no_grad():
            for (buffer, value), version in zip(self.kept, self.versions, strict=True):
                if buffer._version != version:
                    buffer.copy_(value)
        self.versions = [b._version for b, _ in self.kept]


def _holds_proxy(value: Any) -> bool:
    return any(isinstance(leaf, fx.Proxy) for leaf in tree_leaves(value))


# autograd functions.


@contextlib.contextmanager
def functions_whole() -> Iterator[None]:
    """Trace an autograd function that is applied to proxies as one piece, instead of its forward's operations."""
    usual = Function.__dict__["apply"]

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        tracer = next((leaf.tracer for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, fx.Proxy)), None)
        if tracer is None:
            return usual.__get__(None, cls)(*args, **kwargs)
        if cls is CheckpointFunction:
            run, _, *rest = args
            return run(*rest)
        return tracer.create_proxy("call_function", _applied(cls), args, kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Function.apply = usual  # type: ignore[method-assign]


@cache
def _applied(cls: type[Function]) -> Callable[..., Any]:
    def applied(*args: Any, **kwargs: Any) -> Any:
        return cls.apply(*args, **kwargs)

    applied.__name__, applied.__qualname__, applied.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    applied.draws = True  # type: ignore[attr-defined]  # it may draw random numbers
    return applied


# what is changed in place.


def tensors_of(*values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def memory_of(value: Any) -> set[int]:
    """Return the addresses of the storages of all tensors in a value."""
    dense = [t for t in tensors_of(value) if t.layout == torch.strided]
    return {t.untyped_storage().data_ptr() for t in dense} - {0}
