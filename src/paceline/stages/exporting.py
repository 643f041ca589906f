"""What a model does, written down by torch.export: for code that looks at shapes, which torch.fx cannot follow.

The code is run with sizes left open where it does not ask for them; a loop over time steps is unrolled, and then holds
for sequences of that length only (`sizes`). What torch.export writes down is PyTorch's operations one by one. Calls of
PyTorch's own modules are put back in their places: so pieces have the names that users know, and dropout draws, and
batch normalisation counts, as in the model itself. `Noted` is plain data: workers are sent it, and export nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import logging
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map, tree_unflatten

from paceline.errors import JobError
from paceline.stages.unfolding import UNFOLDED

CHECKS = ("_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range_for_size")
HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class CannotExport(Exception):
    """Why torch.export does not help."""


@dataclass(frozen=True)
class Made:
    """What the step of this name made."""

    name: str


class Step(NamedTuple):
    name: str
    op: str  # as torch.fx calls it
    target: str
    args: Any  # with `Made` where something made is needed
    kwargs: Any
    within: tuple[str, ...]  # the modules that it lies in, the outermost first


@dataclass(frozen=True)
class Noted:
    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    result: Any
    sizes: tuple[tuple[int | None, ...], ...]  # of each input; None where any will do


def graph_of(noted: Noted) -> fx.Graph:
    """The same as a graph."""
    graph = fx.Graph()
    made = {name: graph.placeholder(name) for name in noted.inputs}

    def here(value: Any) -> Any:
        return made[value.name] if isinstance(value, Made) else value

    for step in noted.steps:
        target = _function(step.target) if step.op == "call_function" else step.target
        args, kwargs = fx.node.map_aggregate(step.args, here), fx.node.map_aggregate(step.kwargs, here)
        node = graph.create_node(step.op, target, args, kwargs, name=step.name)
        node.meta["nn_module_stack"] = {path: (path, "") for path in step.within}
        made[step.name] = node
    graph.output(fx.node.map_aggregate(noted.result, here))
    return graph


def _function(name: str) -> Any:
    place, _, path = name.partition(":")
    home = torch.ops if place == "torch.ops" else importlib.import_module(place)
    return reduce(getattr, path.split("."), home)


def _name(function: Any) -> str:
    if isinstance(function, torch._ops.OpOverload):
        return f"torch.ops:{function}"
    name = f"{function.__module__}:{function.__qualname__}"
    if _function(name) is not function:
        raise CannotExport(f"it writes down {function}, which has no name")
    return name


def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Noted:
    """What the module does when it is called so, in training mode. It must be nobody else's: it is run."""
    leaves = tuple(_leaves(module))
    try:
        named = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        with _quietly():
            program = torch.export.export(
                module, args, kwargs, dynamic_shapes=tree_map(_open, dict(named)), strict=False,
                preserve_module_call_signature=leaves,
            )  # fmt: skip
    except Exception as error:  # whatever the model's own code does with a stand-in
        raise CannotExport(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    return _Notes(program, set(leaves)).noted()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Where it fails, it shows all that it has written down so far."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def check_sizes(noted: Noted, tensors: Sequence[Tensor]) -> None:
    """Refuse inputs for which it does not hold."""
    for tensor, fixed in zip(tensors, noted.sizes, strict=True):
        if any(size not in (None, there) for size, there in zip(fixed, tensor.shape, strict=True)):
            told = " x ".join("any" if size is None else str(size) for size in fixed)
            raise JobError(
                f"the model's code depends on sizes, and was cut for inputs of {told}; some are "
                f"{' x '.join(map(str, tensor.shape))}. Make all (micro-)batches of one size, or take a plan that does "
                "not cut the model"
            )


def _open(value: Any) -> Any:
    return dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO) if isinstance(value, Tensor) else None


def _fixed(size: Any) -> int | None:
    found: int | None = size if isinstance(size, int) else size.node.maybe_as_int()
    return found


def _leaves(module: nn.Module, path: str = "") -> Iterator[str]:
    """PyTorch's own modules, which stay what they are; but for those that only hold others."""
    for name, part in module.named_children():
        here = f"{path}.{name}" if path else name
        own = type(part).__module__.startswith("torch.nn") and not isinstance(part, HOLDERS)
        if own and (isinstance(part, nn.RNNBase) or type(part) not in UNFOLDED):
            yield here
        else:
            yield from _leaves(part, here)


class _Notes:
    def __init__(self, program: Any, leaves: set[str]) -> None:
        self.program, self.leaves = program, leaves
        self.calls = {entry.fqn: entry.signature for entry in program.module_call_graph if entry.fqn}
        self.made: dict[str, Any] = {}  # what torch.export calls it: what we do
        self.steps, self.called = list[Step](), set[str]()

    def noted(self) -> Noted:
        inputs, sizes = list[str](), list[tuple[int | None, ...]]()
        nodes = {node.name: node for node in self.program.graph.nodes}
        for spec in self.program.graph_signature.input_specs:
            kind, name = spec.kind.name, spec.arg.name
            if kind in ("PARAMETER", "BUFFER"):
                self.made[name] = Made(name)
                self.steps.append(Step(name, "get_attr", spec.target, (), {}, ()))
            elif kind != "USER_INPUT":
                raise CannotExport(f"it holds a {kind.lower().replace('_', ' ')}; make it a buffer of the model")
            elif isinstance(nodes[name].meta.get("val"), Tensor):
                self.made[name] = Made(f"input_{len(inputs)}")
                inputs.append(f"input_{len(inputs)}")
                sizes.append(tuple(_fixed(size) for size in nodes[name].meta["val"].shape))
        for node in self.program.graph.nodes:
            if node.op not in ("placeholder", "output"):
                self._note(node)
        flat = [self._value(spec.arg) for spec in self.program.graph_signature.output_specs]
        result = tree_unflatten(flat, self.program.call_spec.out_spec)
        return Noted(tuple(inputs), tuple(self._used(result)), result, tuple(sizes))

    def _note(self, node: fx.Node) -> None:
        stack = node.meta.get("nn_module_stack") or {}
        within = tuple(str(path) for path, _ in stack.values())
        call = next((path + at + turn for key, (path, _) in stack.items() if path in self.leaves
                     for _, at, turn in [key.partition("@")]), None)  # fmt: skip
        if call is not None:
            if call not in self.called:
                self._call(call, within)
            return
        if node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CannotExport(f"it writes down {node.target}, a region of its own (under no_grad or autocast?)")
        if str(getattr(node.target, "overloadpacket", "")).rpartition(".")[2] in CHECKS:
            return
        changed = node.args[0] if getattr(getattr(node.target, "_schema", None), "is_mutable", False) else None
        if isinstance(changed, fx.Node) and changed.op == "placeholder":
            raise CannotExport(f"it changes {changed} outside of PyTorch's own modules")
        self.made[node.name] = Made(node.name)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: self._of(each.name))
        self.steps.append(Step(node.name, "call_function", _name(node.target), args, kwargs, within))

    def _call(self, call: str, within: tuple[str, ...]) -> None:
        """One of PyTorch's own modules: as it was called."""
        self.called.add(call)
        signature, path = self.calls[call], call.partition("@")[0]
        args, kwargs = tree_unflatten([self._value(each) for each in signature.inputs], signature.in_spec)
        name = call.replace(".", "_").replace("@", "_")
        self.steps.append(Step(name, "call_module", path, args, kwargs, within))
        self._results(name, tree_unflatten(list(signature.outputs), signature.out_spec), within)

    def _results(self, name: str, result: Any, within: tuple[str, ...]) -> None:
        if isinstance(result, tuple | list):
            for place, part in enumerate(result):
                one = f"{name}_{place}"
                self.steps.append(Step(one, "call_function", _name(operator.getitem), (Made(name), place), {}, within))
                self._results(one, part, within)
        elif type(result).__name__ == "TensorArgument":
            self.made.setdefault(result.name, Made(name))

    def _value(self, argument: Any) -> Any:
        if type(argument).__name__ == "ConstantArgument":
            return argument.value
        return self._of(argument.name)

    def _of(self, name: str) -> Any:
        if name not in self.made:
            raise CannotExport(f"{name} is made inside one of PyTorch's own modules and used outside")
        return self.made[name]

    def _used(self, result: Any) -> list[Step]:
        """Without what nobody uses and changes nothing: parameters that modules hold, parts of results."""
        wanted, kept = set[str](), list[Step]()

        def want(value: Any) -> Any:
            if isinstance(value, Made):
                wanted.add(value.name)
            return value

        fx.node.map_aggregate(result, want)
        for step in reversed(self.steps):
            idle = step.op == "get_attr" or step.target in (_name(operator.getitem), "torch.ops:aten.sym_size.int")
            if step.name in wanted or not idle:
                kept.append(step)
                fx.node.map_aggregate((step.args, step.kwargs), want)
        return kept[::-1]
