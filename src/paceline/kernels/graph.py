"""The layers of a network as data: what `fuse` understood of a module, before anything is planned.

A layer's `options` are plain numbers and words, its `weights` names of parameters in the module. Shapes are those of
one sample. `describe` walks the module with torch.fx, so that residual additions and the usual functions are seen too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from paceline.errors import JobError
from paceline.modules import Subsampling

Shape = tuple[int, ...]


class CannotFuse(JobError):
    """A layer, loss or optimizer that has no kernel."""


@dataclass(frozen=True)
class Layer:
    name: str
    kind: str  # a row of lower.LOWER
    inputs: tuple[str, ...]
    shape: Shape
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)  # its own word for a parameter -> the module's name

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}: {self.kind}({options}) -> {'x'.join(map(str, self.shape))}"


@dataclass(frozen=True)
class Graph:
    layers: tuple[Layer, ...]
    inputs: Shape
    tokens: bool  # the input is whole numbers
    result: str

    def __str__(self) -> str:
        return "\n".join([f"input: {'x'.join(map(str, self.inputs))}", *map(str, self.layers)])


@dataclass(frozen=True)
class Seen:
    """What a row of the tables below has to go by."""

    name: str
    what: str  # as a message names it
    path: str  # of the module's parameters
    shapes: tuple[Shape, ...]


Found = tuple[str, Shape, dict[str, Any], tuple[str, ...]]  # kind, shape, options, parameters


def describe(module: nn.Module, inputs: Shape, tokens: bool = False) -> Graph:
    """The graph of a module for samples of this shape; what has no kernel is refused by name."""
    layers: dict[str, Layer] = {}
    made: dict[fx.Node, Any] = {}  # the name of what a node gives, or names
    shapes: dict[str, Shape] = {"input": inputs}
    parts = dict(module.named_modules())
    for node in _traced(module).nodes:
        if node.op == "placeholder":
            if made:
                raise CannotFuse("the model takes more than one input; compute='autograd' trains it")
            made[node] = "input"
        elif node.op == "output":
            result = made[node.args[0]] if isinstance(node.args[0], fx.Node) else None
            if not isinstance(result, str):
                raise CannotFuse("the model gives back more than one tensor; compute='autograd' trains it")
            return Graph(tuple(layers.values()), inputs, tokens, result)
        else:
            _add(node, parts, made, shapes, layers)
    raise AssertionError("a traced graph ends in its output")


def _add(
    node: fx.Node,
    parts: dict[str, nn.Module],
    made: dict[fx.Node, Any],
    shapes: dict[str, Shape],
    layers: dict[str, Layer],
) -> None:
    given = [made[a] for a in node.args if isinstance(a, fx.Node) and a in made]
    if None in given:
        raise CannotFuse(f"{node} uses the last state of a recurrent layer; only its outputs are kept: take x[:, -1]")
    sources = tuple(g for g in given if isinstance(g, str))
    name = str(node.target) or "model" if node.op == "call_module" else node.name
    if node.op == "call_module":
        part = parts[str(node.target)]
        seen = Seen(name, f"layer {name} ({part})", str(node.target), tuple(shapes[s] for s in sources))
        row = next((row for kind, row in MODULES.items() if isinstance(part, kind)), None)
        found = row(part, seen) if row is not None else None
    else:
        if node.target in (operator.getitem, "getitem") and given and isinstance(given[0], tuple):
            made[node] = given[0][int(str(node.args[1]))]  # the first of what a recurrent layer gives
            return
        seen = Seen(name, f"{node.op} {node.target}", "", tuple(shapes[s] for s in sources))
        found = _function(node, seen)
    if found is None:
        raise CannotFuse(
            f"{seen.what} has no kernel; compute='autograd' (PyTorch) trains it. Kernels exist of: "
            + ", ".join(kind.__name__ for kind in MODULES)
        )
    kind, shape, options, weights = found
    while name in layers:
        name += "_"
    if kind == "same":
        made[node] = sources[0]
        return
    if min(shape, default=1) < 1:
        raise CannotFuse(f"{seen.what} makes {'x'.join(map(str, shape))} of {seen.shapes[0]}: there is nothing in it")
    dotted = {word: f"{seen.path}.{word}" for word in weights}
    layers[name] = Layer(name, kind, sources, shape, options, dotted)
    shapes[name] = shape
    made[node] = (name, None) if kind in ("lstm", "gru") else name


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, tuple(MODULES)) or super().is_leaf_module(m, module_qualified_name)


class _Root(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x)


def _traced(module: nn.Module) -> fx.Graph:
    """A module that is itself a leaf is traced from above."""
    try:
        if isinstance(module, tuple(MODULES)):
            graph = _Tracer().trace(_Root(module))
            for node in graph.nodes:
                if node.op == "call_module":
                    node.target = ""
            return graph
        return _Tracer().trace(module)
    except CannotFuse:
        raise
    except Exception as error:
        raise CannotFuse(
            f"the model's forward cannot be followed ({type(error).__name__}: {error}); a Sequential, or a forward "
            "without branches on the data, can; compute='autograd' trains any"
        ) from error


# --- a row per module -----------------------------------------------------------------------------------------------


def _pair(value: Any, count: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * count


def _images(seen: Seen, dimensions: int) -> tuple[int, ...]:
    shape = seen.shapes[0]
    if len(shape) != dimensions + 1:
        raise CannotFuse(f"{seen.what} gets samples of shape {shape}; it wants {dimensions + 1} dimensions")
    return shape


def _windows(seen: Seen, sizes: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Shape:
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    for size, span, pad in zip(sizes, reach, padding, strict=True):
        if span > size + 2 * pad:
            raise CannotFuse(
                f"{seen.what} has a kernel that spans {'x'.join(map(str, reach))}, and gets images of "
                f"{'x'.join(map(str, sizes))} with padding {'x'.join(map(str, padding))}: the kernel is larger"
            )
    return tuple((n + 2 * p - r) // s + 1 for n, p, r, s in zip(sizes, padding, reach, stride, strict=True))


def _padding(part: Any, kernel: Shape, dilation: Shape) -> Shape:
    if part.padding == "valid":
        return (0,) * len(kernel)
    if part.padding == "same":
        if any(d * (k - 1) % 2 for k, d in zip(kernel, dilation, strict=True)):
            raise CannotFuse(f"{part}: padding='same' with an even kernel pads one side more; pad by a number")
        return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    return _pair(part.padding, len(kernel))


def _convolution(part: Any, seen: Seen) -> Found:
    count = len(part.kernel_size)
    channels, *sizes = _images(seen, count)
    if part.padding_mode != "zeros":
        raise CannotFuse(f"{seen.what}: padding_mode={part.padding_mode!r} has no kernel; zeros has")
    if min(part.weight.shape) < 1:
        raise CannotFuse(f"{seen.what} has no channels: its weight is {tuple(part.weight.shape)}")
    if channels != part.in_channels:
        raise CannotFuse(f"{seen.what} gets {channels} channels, and wants {part.in_channels}")
    padding = _padding(part, part.kernel_size, part.dilation)
    shape = _windows(seen, tuple(sizes), part.kernel_size, part.stride, padding, part.dilation)
    options = {
        "kernel": part.kernel_size, "stride": part.stride, "padding": padding, "dilation": part.dilation,
        "groups": part.groups,
    }  # fmt: skip
    return "convolution", (part.out_channels, *shape), options, _weights(part, "weight", "bias")


def _weights(part: nn.Module, *words: str) -> tuple[str, ...]:
    return tuple(word for word in words if getattr(part, word, None) is not None)


def _linear(part: nn.Linear, seen: Seen) -> Found:
    *rest, size = seen.shapes[0]
    if size != part.in_features:
        raise CannotFuse(f"{seen.what} gets {size} features, and wants {part.in_features}")
    if min(part.weight.shape) < 1:
        raise CannotFuse(f"{seen.what} has no features: its weight is {tuple(part.weight.shape)}")
    return "linear", (*rest, part.out_features), {}, _weights(part, "weight", "bias")


def _pooling(kind: str, count: int) -> Callable[[Any, Seen], Found]:
    def row(part: Any, seen: Seen) -> Found:
        channels, *sizes = _images(seen, count)
        kernel = _pair(part.kernel_size, count)
        stride, padding = _pair(part.stride, count), _pair(part.padding, count)
        dilation = _pair(getattr(part, "dilation", 1), count)
        if part.ceil_mode or getattr(part, "return_indices", False) or getattr(part, "divisor_override", None):
            raise CannotFuse(f"{seen.what}: ceil_mode, return_indices and divisor_override have no kernel")
        if kind == "average" and any(padding) and not part.count_include_pad:
            raise CannotFuse(f"{seen.what}: count_include_pad=False with padding has no kernel")
        shape = _windows(seen, tuple(sizes), kernel, stride, padding, dilation)
        options = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
        return f"{kind}_pooling", (channels, *shape), options, ()

    return row


def _adaptive(count: int) -> Callable[[Any, Seen], Found]:
    def row(part: Any, seen: Seen) -> Found:
        channels, *sizes = _images(seen, count)
        wanted = [o or n for o, n in zip(_pair(part.output_size, count), sizes, strict=True)]
        if any(n % o for n, o in zip(sizes, wanted, strict=True)):
            raise CannotFuse(f"{seen.what}: {sizes} cannot be cut into {wanted} windows of one size")
        kernel = tuple(n // o for n, o in zip(sizes, wanted, strict=True))
        options = {"kernel": kernel, "stride": kernel, "padding": (0,) * count, "dilation": (1,) * count}
        return "average_pooling", (channels, *wanted), options, ()

    return row


def _subsampling(part: Subsampling, seen: Seen) -> Found:
    channels, *sizes = _images(seen, 2)
    kernel = tuple(part.weight.shape[2:])
    shape = _windows(seen, tuple(sizes), kernel, kernel, (0, 0), (1, 1))
    return "subsampling", (channels, *shape), {"kernel": kernel}, ("weight", "bias")


def _function_of(name: str) -> Callable[[Any, Seen], Found]:
    return lambda part, seen: ("activation", seen.shapes[0], {"function": name}, ())


def _gelu(part: nn.GELU, seen: Seen) -> Found:
    return "activation", seen.shapes[0], {"function": "gelu" if part.approximate == "none" else "gelu_tanh"}, ()


def _batch_norm(count: int) -> Callable[[Any, Seen], Found]:
    def row(part: Any, seen: Seen) -> Found:
        shape = seen.shapes[0]
        if count and len(shape) != count + 1:
            raise CannotFuse(f"{seen.what} gets samples of shape {shape}; it wants {count + 1} dimensions")
        if part.momentum is None:
            raise CannotFuse(f"{seen.what}: momentum=None (a plain average) has no kernel")
        if shape[0] != part.num_features:
            raise CannotFuse(f"{seen.what} gets {shape[0]} channels, and wants {part.num_features}")
        options = {"epsilon": part.eps, "momentum": part.momentum, "tracks": part.track_running_stats}
        tracked = ("running_mean", "running_var") if part.track_running_stats else ()
        return "batch_norm", shape, options, (*_weights(part, "weight", "bias"), *tracked)

    return row


def _dropout(part: nn.Dropout, seen: Seen) -> Found:
    return ("dropout", seen.shapes[0], {"rate": part.p}, ()) if part.p > 0 else ("same", seen.shapes[0], {}, ())


def _embedding(part: nn.Embedding, seen: Seen) -> Found:
    if part.max_norm is not None or part.scale_grad_by_freq or part.sparse:
        raise CannotFuse(f"{seen.what}: max_norm, scale_grad_by_freq and sparse have no kernel")
    options = {"rows": part.num_embeddings, "padding": part.padding_idx}
    return "embedding", (*seen.shapes[0], part.embedding_dim), options, ("weight",)


def _recurrent(kind: str) -> Callable[[Any, Seen], Found]:
    def row(part: Any, seen: Seen) -> Found:
        if part.bidirectional or part.num_layers > 1 or getattr(part, "proj_size", 0) or not part.batch_first:
            raise CannotFuse(
                f"{seen.what}: there is a kernel of one layer in one direction, with batch_first=True; stack several"
            )
        if len(seen.shapes[0]) != 2 or seen.shapes[0][1] != part.input_size:
            raise CannotFuse(f"{seen.what} gets samples of shape {seen.shapes[0]}, and wants steps x {part.input_size}")
        weights = _weights(part, "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        return kind, (seen.shapes[0][0], part.hidden_size), {}, weights

    return row


def _flatten(part: nn.Flatten, seen: Seen) -> Found:
    return "reshape", _flat(seen, part.start_dim, part.end_dim), {}, ()


def _flat(seen: Seen, start: int, end: int) -> Shape:
    shape = seen.shapes[0]
    last = end if end >= 0 else len(shape) + 1 + end
    if start < 1:
        raise CannotFuse(f"{seen.what} mixes samples; flatten from dimension 1 on")
    return (*shape[: start - 1], prod(shape[start - 1 : last]), *shape[last:])


def _unflatten(part: nn.Unflatten, seen: Seen) -> Found:
    shape, dimension = seen.shapes[0], part.dim if part.dim >= 0 else len(seen.shapes[0]) + 1 + part.dim
    if not isinstance(dimension, int) or dimension < 1:
        raise CannotFuse(f"{seen.what}: the first dimension is the samples'")
    sizes = list(part.unflattened_size)
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[dimension - 1] // -prod(sizes)
    return "reshape", (*shape[: dimension - 1], *sizes, *shape[dimension:]), {}, ()


MODULES: dict[type[nn.Module], Callable[[Any, Seen], Found | None]] = {
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.MaxPool1d: _pooling("highest", 1),
    nn.MaxPool2d: _pooling("highest", 2),
    nn.AvgPool1d: _pooling("average", 1),
    nn.AvgPool2d: _pooling("average", 2),
    nn.AdaptiveAvgPool1d: _adaptive(1),
    nn.AdaptiveAvgPool2d: _adaptive(2),
    Subsampling: _subsampling,
    nn.Sigmoid: _function_of("sigmoid"),
    nn.Tanh: _function_of("tanh"),
    nn.ReLU: _function_of("relu"),
    nn.GELU: _gelu,
    nn.BatchNorm1d: _batch_norm(0),
    nn.BatchNorm2d: _batch_norm(2),
    nn.Dropout: _dropout,
    nn.Embedding: _embedding,
    nn.LSTM: _recurrent("lstm"),
    nn.GRU: _recurrent("gru"),
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.Identity: lambda part, seen: ("same", seen.shapes[0], {}, ()),
}

# --- functions ------------------------------------------------------------------------------------------------------

NAMED: dict[Any, str] = {
    F.relu: "relu", torch.relu: "relu", "relu": "relu",
    torch.sigmoid: "sigmoid", F.sigmoid: "sigmoid", "sigmoid": "sigmoid",
    torch.tanh: "tanh", F.tanh: "tanh", "tanh": "tanh",
    F.gelu: "gelu",
}  # fmt: skip


def _function(node: fx.Node, seen: Seen) -> Found | None:
    target = node.target
    if target in NAMED:
        name = "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else NAMED[target]
        return "activation", seen.shapes[0], {"function": name}, ()
    if target in (operator.add, operator.iadd, torch.add, "add") and len(seen.shapes) == 2 and not node.kwargs:
        if seen.shapes[0] != seen.shapes[1]:
            raise CannotFuse(f"{seen.what} adds samples of {seen.shapes[0]} and {seen.shapes[1]}: not of one shape")
        return "add", seen.shapes[0], {}, ()
    if target in (torch.flatten, "flatten"):
        start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
        end = node.args[2] if len(node.args) > 2 else node.kwargs.get("end_dim", -1)
        return "reshape", _flat(seen, int(start), int(end)), {}, ()  # type: ignore[arg-type]
    if target is operator.getitem:
        return _step(node.args[1], seen)
    return None


def _step(place: Any, seen: Seen) -> Found | None:
    """One step of a sequence: x[:, -1]."""
    shape = seen.shapes[0]
    place = place[:2] if isinstance(place, tuple) and all(p == slice(None) for p in place[2:]) else place
    if not isinstance(place, tuple) or len(place) != 2 or place[0] != slice(None) or not isinstance(place[1], int):
        return None
    return "step", shape[1:], {"step": place[1] % shape[0]}, ()
