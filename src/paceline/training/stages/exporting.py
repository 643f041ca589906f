"""Graphs of models by torch.export, for code that looks at shapes, and containers unfolded into their parts.

The code is run with sizes left open where it does not ask for them. A loop over time steps is unrolled, and the graph
then holds for sequences of that length only (`sizes`). torch.export gives PyTorch's operations one by one. Calls of
PyTorch's own modules are put back, so that pieces have the names that users know, and that dropout draws and batch
normalisation counts as in the model itself. `ExportedGraph` is plain data: workers receive it and export nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map, tree_unflatten

from paceline.errors import JobError
from paceline.training.gradients.replica import reseed

CHECKS = ("_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range_for_size")
HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class CannotExport(Exception):
    """torch.export cannot make the model's graph; the message says why."""


@dataclass(frozen=True)
class ResultOf:
    """Stands for the result of the call of this name."""

    name: str


class ExportedCall(NamedTuple):
    """One node of the graph."""

    name: str
    op: str  # as torch.fx calls it
    target: str
    args: Any  # with `ResultOf` where another call's result is needed
    kwargs: Any
    within: tuple[str, ...]  # the modules that it lies in, the outermost first


@dataclass(frozen=True)
class ExportedGraph:
    """A model's graph as plain data."""

    inputs: tuple[str, ...]
    calls: tuple[ExportedCall, ...]
    result: Any
    sizes: tuple[tuple[int | None, ...], ...]  # of each input; None where any will do


def graph_of(exported: ExportedGraph) -> fx.Graph:
    """Return the graph for torch.fx."""
    graph = fx.Graph()
    results = {name: graph.placeholder(name) for name in exported.inputs}

    def result_of(value: Any) -> Any:
        return results[value.name] if isinstance(value, ResultOf) else value

    for call in exported.calls:
        target = _function(call.target) if call.op == "call_function" else call.target
        args, kwargs = fx.node.map_aggregate(call.args, result_of), fx.node.map_aggregate(call.kwargs, result_of)
        node = graph.create_node(call.op, target, args, kwargs, name=call.name)
        node.meta["nn_module_stack"] = {path: (path, "") for path in call.within}
        results[call.name] = node
    graph.output(fx.node.map_aggregate(exported.result, result_of))
    return graph


def _function(name: str) -> Any:
    owner, _, path = name.partition(":")
    namespace = torch.ops if owner == "torch.ops" else importlib.import_module(owner)
    return reduce(getattr, path.split("."), namespace)


def _name(function: Any) -> str:
    if isinstance(function, torch._ops.OpOverload):
        return f"torch.ops:{function}"
    name = f"{function.__module__}:{function.__qualname__}"
    if _function(name) is not function:
        raise CannotExport(f"its graph has {function}, which has no name")
    return name


def export_graph(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedGraph:
    """Return the graph of this call of the module in training mode. The module is run, so give a copy."""
    leaves = tuple(_leaves(module))
    try:
        named = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        with _quietly():
            program = torch.export.export(
                module,
                args,
                kwargs,
                dynamic_shapes=tree_map(_open, dict(named)),
                strict=False,
                preserve_module_call_signature=leaves,
            )
    except Exception as error:  # the model's own code may raise anything for a proxy
        lines = str(error).splitlines() or [""]  # whose first sentence says why; the others are about torch.export
        raise CannotExport(f"{type(error).__name__}: {lines[0].partition('. ')[0]}") from error
    return _Translation(program, set(leaves)).graph()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the partial graph that torch.export prints where it fails."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def check_sizes(exported: ExportedGraph, tensors: Sequence[Tensor]) -> None:
    """Raise `JobError` for inputs of sizes for which the graph does not hold."""
    for tensor, fixed in zip(tensors, exported.sizes, strict=True):
        if any(size not in (None, actual) for size, actual in zip(fixed, tensor.shape, strict=True)):
            sizes = " x ".join("any" if size is None else str(size) for size in fixed)
            raise JobError(
                f"the model's code depends on sizes, and was cut for inputs of {sizes}; some are "
                f"{' x '.join(map(str, tensor.shape))}. Make all (micro-)batches of one size, or take a plan that does "
                "not cut the model"
            )


def _open(value: Any) -> Any:
    return dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO) if isinstance(value, Tensor) else None


def _fixed(size: Any) -> int | None:
    static_size: int | None = size if isinstance(size, int) else size.node.maybe_as_int()
    return static_size


def _leaves(module: nn.Module, path: str = "") -> Iterator[str]:
    """Yield the paths of PyTorch's own modules, which stay whole, except for containers."""
    for name, part in module.named_children():
        full = f"{path}.{name}" if path else name
        from_torch = type(part).__module__.startswith("torch.nn") and not isinstance(part, HOLDERS)
        if from_torch and (isinstance(part, nn.RNNBase) or type(part) not in UNFOLDED):
            yield full
        else:
            yield from _leaves(part, full)


class _Translation:
    """Turns an exported program into calls, with PyTorch's own modules put back."""

    def __init__(self, program: Any, leaves: set[str]) -> None:
        self.program, self.leaves = program, leaves
        self.signatures = {entry.fqn: entry.signature for entry in program.module_call_graph if entry.fqn}
        #: From torch.export's name of a value to the call that gives it here.
        self.results: dict[str, Any] = {}
        self.calls, self.called = list[ExportedCall](), set[str]()

    def graph(self) -> ExportedGraph:
        inputs, sizes = list[str](), list[tuple[int | None, ...]]()
        nodes = {node.name: node for node in self.program.graph.nodes}
        for spec in self.program.graph_signature.input_specs:
            kind, name = spec.kind.name, spec.arg.name
            if kind in ("PARAMETER", "BUFFER"):
                self.results[name] = ResultOf(name)
                self.calls.append(ExportedCall(name, "get_attr", spec.target, (), {}, ()))
            elif kind != "USER_INPUT":
                raise CannotExport(f"it holds a {kind.lower().replace('_', ' ')}; make it a buffer of the model")
            elif isinstance(nodes[name].meta.get("val"), Tensor):
                self.results[name] = ResultOf(f"input_{len(inputs)}")
                inputs.append(f"input_{len(inputs)}")
                sizes.append(tuple(_fixed(size) for size in nodes[name].meta["val"].shape))
        for node in self.program.graph.nodes:
            if node.op not in ("placeholder", "output"):
                self._note(node)
        flat = [self._value(spec.arg) for spec in self.program.graph_signature.output_specs]
        result = tree_unflatten(flat, self.program.call_spec.out_spec)
        if isinstance(result, dict) and type(result) is not dict:  # torch.fx would make a plain one of it
            self.calls.append(ExportedCall("returned", "call_function", _name(type(result)), (), dict(result), ()))
            result = ResultOf("returned")
        return ExportedGraph(tuple(inputs), tuple(self._used(result)), result, tuple(sizes))

    def _note(self, node: fx.Node) -> None:
        stack = node.meta.get("nn_module_stack") or {}
        within = tuple(str(path) for path, _ in stack.values())
        call = next(
            (
                path + at + turn
                for key, (path, _) in stack.items()
                if path in self.leaves
                for _, at, turn in [key.partition("@")]
            ),
            None,
        )
        if call is not None:
            if call not in self.called:
                self._call(call, within)
            return
        if node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CannotExport(f"its graph has {node.target}, a region of its own (under no_grad or autocast?)")
        if str(getattr(node.target, "overloadpacket", "")).rpartition(".")[2] in CHECKS:
            return
        changed = node.args[0] if getattr(getattr(node.target, "_schema", None), "is_mutable", False) else None
        if isinstance(changed, fx.Node) and changed.op == "placeholder":
            raise CannotExport(f"it changes {changed} outside of PyTorch's own modules")
        self.results[node.name] = ResultOf(node.name)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: self._of(each.name))
        self.calls.append(ExportedCall(node.name, "call_function", _name(node.target), args, kwargs, within))

    def _call(self, call: str, within: tuple[str, ...]) -> None:
        """Add the call of one of PyTorch's own modules."""
        self.called.add(call)
        signature, path = self.signatures[call], call.partition("@")[0]
        args, kwargs = tree_unflatten([self._value(each) for each in signature.inputs], signature.in_spec)
        name = call.replace(".", "_").replace("@", "_")
        self.calls.append(ExportedCall(name, "call_module", path, args, kwargs, within))
        self._results(name, tree_unflatten(list(signature.outputs), signature.out_spec), within)

    def _results(self, name: str, result: Any, within: tuple[str, ...]) -> None:
        if isinstance(result, tuple | list):
            for place, part in enumerate(result):
                one = f"{name}_{place}"
                self.calls.append(
                    ExportedCall(one, "call_function", _name(operator.getitem), (ResultOf(name), place), {}, within)
                )
                self._results(one, part, within)
        elif type(result).__name__ == "TensorArgument":
            self.results.setdefault(result.name, ResultOf(name))

    def _value(self, argument: Any) -> Any:
        if type(argument).__name__ == "ConstantArgument":
            return argument.value
        return self._of(argument.name)

    def _of(self, name: str) -> Any:
        if name not in self.results:
            raise CannotExport(f"{name} is made inside one of PyTorch's own modules and used outside")
        return self.results[name]

    def _used(self, result: Any) -> list[ExportedCall]:
        """Return the calls without those that are not used and change nothing: of parameters and parts of results."""
        needed, used = set[str](), list[ExportedCall]()

        def want(value: Any) -> Any:
            if isinstance(value, ResultOf):
                needed.add(value.name)
            return value

        fx.node.map_aggregate(result, want)
        for call in reversed(self.calls):
            idle = call.op == "get_attr" or call.target in (_name(operator.getitem), "torch.ops:aten.sym_size.int")
            if call.name in needed or not idle:
                used.append(call)
                fx.node.map_aggregate((call.args, call.kwargs), want)
        return used[::-1]


# PyTorch's own containers as their parts, where torch.fx does not look into them, or cannot.
#
#     nn.TransformerEncoder, nn.TransformerEncoderLayer    their layers; attention, norms, linear layers
#     nn.LSTM, nn.GRU, nn.RNN of several layers            one layer after the other, dropout in between
#
# A rule is called instead of the module, with proxies, and does the same by parts: the same numbers bit for bit, from
# the same seeds. Parameters stay where they are, under the model's names. A layer of a recurrent net is a piece of
# its own, called as the module with the layer's number: `lstm_l1` is the second one of `lstm`.

Rule = Callable[..., Any]


class _Whole(Exception):
    """The module is called in a way that the rule does not cover."""


def rule_of(module: nn.Module) -> Rule | None:
    """Return the rule that unfolds a module, or None."""
    if isinstance(module, nn.RNNBase) and module.num_layers == 1:
        return None
    return UNFOLDED.get(type(module))


# transformers.


def _encoder(module: nn.TransformerEncoder, src: Any, *rest: Any, **more: Any) -> Any:
    if any(each is not None for each in (*rest, *more.values())):
        raise _Whole("it is given a mask")
    for layer in module.layers:
        src = layer(src)
    return src if module.norm is None else module.norm(src)


def _encoder_layer(module: nn.TransformerEncoderLayer, src: Any, *rest: Any, **more: Any) -> Any:
    if any(each is not None and each is not False for each in (*rest, *more.values())):
        raise _Whole("it is given a mask")

    def attend(x: Any) -> Any:
        return module.dropout1(module.self_attn(x, x, x, need_weights=False)[0])

    def feed(x: Any) -> Any:
        return module.dropout2(module.linear2(module.dropout(module.activation(module.linear1(x)))))

    if module.norm_first:
        src = src + attend(module.norm1(src))
        return src + feed(module.norm2(src))
    src = module.norm1(src + attend(src))
    return module.norm2(src + feed(src))


# recurrent nets.


def _recurrent(module: nn.RNNBase, x: Any, hx: Any = None) -> Any:
    tracer, each = x.tracer, 2 if module.bidirectional else 1
    name = tracer.path_of_module(module).replace(".", "_")
    long, drop, states = module.mode == "LSTM", _between(module), []
    for layer in range(module.num_layers):
        mine = slice(layer * each, (layer + 1) * each)
        if layer and module.dropout and module.training:
            x = tracer.create_proxy("call_function", drop, (x, layer == 1), {}, f"{name}_dropout_l{layer}")
        before = None if hx is None else tuple(part[mine] for part in (hx if long else (hx,)))
        weights = tuple(weight for direction in module.all_weights[mine] for weight in direction)
        options = (module.mode, module.bias, module.training, module.bidirectional, module.batch_first)
        outputs = tracer.create_proxy(
            "call_function", one_layer, (x, before, weights, *options), {}, f"{name}_l{layer}"
        )
        x = outputs[0]
        states.append((outputs[1], outputs[2]) if long else (outputs[1],))
    after = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    return x, after if long else after[0]


KERNELS: dict[str, Rule] = {
    "LSTM": torch._VF.lstm,
    "GRU": torch._VF.gru,
    "RNN_TANH": torch._VF.rnn_tanh,
    "RNN_RELU": torch._VF.rnn_relu,
}


def one_layer(
    x: Tensor,
    before: tuple[Tensor, ...] | None,
    weights: tuple[Tensor, ...],
    mode: str,
    bias: bool,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Run one layer of a recurrent module; return the outputs and the state after the last step."""
    where, alone = 0 if batch_first else 1, x.dim() == 2  # a single sample, without a batch
    x = x.unsqueeze(where) if alone else x
    if before is None:
        sizes = _sizes(mode, weights)
        before = tuple(x.new_zeros(2 if bidirectional else 1, x.shape[where], size) for size in sizes)
    elif alone:
        before = tuple(part.unsqueeze(1) for part in before)
    state = list(before) if mode == "LSTM" else before[0]
    outputs = KERNELS[mode](x, state, list(weights), bias, 1, 0.0, training, bidirectional, batch_first)
    return (outputs[0].squeeze(where), *(part.squeeze(1) for part in outputs[1:])) if alone else outputs


def _sizes(mode: str, weights: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Return the sizes of the state: of the output, and of an LSTM's cell."""
    hidden = weights[1].shape[1]  # with proj_size smaller than the cell
    return (hidden, weights[1].shape[0] // 4) if mode == "LSTM" else (hidden,)


def _between(module: nn.RNNBase) -> Rule:
    """Return the dropout between two layers; the first one in a call seeds the module."""

    def between(x: Tensor, first: bool) -> Tensor:
        if first:
            reseed(module, (x,))
        return F.dropout(x, module.dropout)

    between.draws = True  # type: ignore[attr-defined]
    return between


UNFOLDED: dict[type, Rule] = {
    nn.TransformerEncoder: _encoder,
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.LSTM: _recurrent,
    nn.GRU: _recurrent,
    nn.RNN: _recurrent,
}
