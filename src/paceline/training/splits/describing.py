"""The operations of a traced model as nodes of `algorithms.splits`: their kinds, and the shapes of one chunk.

The model is run once, operation by operation. A size that the model's code asks for (`x.shape[0]`) is that of the whole
value, as this run found it: every worker computes with the same sizes, whatever part of the value it has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from paceline.algorithms.splits import Held, Shape, SplitNode
from paceline.algorithms.splits.derivation import PARAMETER
from paceline.training.jobs.modules import Experts, capacity_of
from paceline.training.parameters.layout import trainable
from paceline.training.stages.refusals import tensors_of
from paceline.training.stages.tracing import Traced, attribute


@dataclass
class Description:
    """A model's operations for chunks of one size."""

    nodes: list[SplitNode] = field(default_factory=list)
    inputs: dict[str, Shape] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    #: Values that need a gradient; parameters with `PARAMETER` before their names.
    needs: set[str] = field(default_factory=set)


def describe(traced: Traced, tensors: Sequence[Tensor]) -> Description:
    """Describe a model for inputs like these. It is run, so give a copy."""
    description = Description(needs={PARAMETER + name for name in trainable(traced.module)})
    names = names_of(traced.module)
    results: dict[fx.Node, Any] = dict(zip(traced.placeholders, tensors, strict=True))
    inputs = list(zip(traced.placeholders, tensors, strict=True))
    description.inputs = {node.name: tuple(tensor.shape) for node, tensor in inputs}
    description.needs |= {node.name for node, tensor in inputs if tensor.requires_grad}

    def add(node: fx.Node, args: Any, kwargs: Any) -> Any:
        versions = [(tensor, tensor._version) for tensor in tensors_of(args, kwargs)]
        result = traced.call_piece(node, args, kwargs)
        results[node] = result
        changes = any(tensor._version != version for tensor, version in versions)
        description.nodes.append(_node(traced, node, results, args, kwargs, changes, names))
        if any(tensor.requires_grad for tensor in tensors_of(result)):
            description.needs.add(node.name)
        return result

    for node in traced.graph.nodes:
        if node.op == "get_attr":
            results[node] = attribute(traced.module, str(node.target))
    with torch.enable_grad():
        traced.run(tensors, add)
    first = [_parameter(node, results[node], names) for node in traced.graph.nodes if node.op == "get_attr"]
    description.nodes = [*first, *description.nodes]
    description.needs |= {n.name for n in first if n.held and PARAMETER + n.held[0].name in description.needs}
    outputs: list[str] = []
    fx.node.map_arg(traced.output.args[0], lambda node: outputs.append(node.name))
    description.outputs = tuple(dict.fromkeys(outputs))
    return description


def names_of(module: nn.Module) -> dict[int, str]:
    """Return the names of parameters and buffers by identity; what is tied has one."""
    return {id(t): name for name, t in (*module.named_buffers(), *module.named_parameters())}


def _parameter(node: fx.Node, value: Any, names: dict[int, str]) -> SplitNode:
    """Describe what reads a parameter or a buffer by name: it is used whole."""
    shape = tuple(value.shape) if isinstance(value, Tensor) else None
    parameters = (
        (Held("value", names[id(value)], tuple(value.shape), value.requires_grad),) if id(value) in names else ()
    )
    return SplitNode(node.name, "read", shape=shape, held=parameters)


def _node(
    traced: Traced,
    node: fx.Node,
    results: dict[fx.Node, Any],
    args: Any,
    kwargs: Any,
    changes: bool,
    names: dict[int, str],
) -> SplitNode:
    result = results[node]
    if _is_size(node, results, result):
        return SplitNode(node.name, "size", facts={"value": result})
    kind, facts = kind_of(traced, node, args, kwargs, result)
    takes = [each for each in node.all_input_nodes if not _is_constant(each, results)]
    shapes = tuple(tuple(results[each].shape) if isinstance(results[each], Tensor) else None for each in takes)
    shape = tuple(result.shape) if isinstance(result, Tensor) else None
    parameters: tuple[Held, ...] = ()
    if node.op == "call_module":
        parameters = _held(traced.module.get_submodule(str(node.target)), kind, names)
    layer = str(node.target) if node.op == "call_module" else ""
    if kind == "dropout":
        facts["drawn"] = memory_order(args[0])  # dropout draws in the order in which its input lies in memory
    if isinstance(result, Tensor) and (order := memory_order(result)) != tuple(range(result.dim())):
        facts["lies"] = order
    facts["changes"] = changes
    return SplitNode(node.name, kind, tuple(each.name for each in takes), shapes, shape, parameters, layer, facts)


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor from the slowest in memory to the fastest."""
    strides = tensor.stride()
    return tuple(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))


def _held(module: nn.Module, kind: str, names: dict[int, str]) -> tuple[Held, ...]:
    parameters = []
    for role, tensor in (*module.named_parameters(), *module.named_buffers()):
        shape = tuple(tensor.shape)
        if kind == "attention" and role.startswith("in_proj"):
            shape = (3, shape[0] // 3, *shape[1:])  # queries, keys and values are split alike
        parameters.append(Held(role, names[id(tensor)], shape, tensor.requires_grad))
    return tuple(parameters)


def _is_size(node: fx.Node, results: dict[fx.Node, Any], result: Any) -> bool:
    """Whether a piece finds out a size, or counts with sizes."""
    if isinstance(result, torch.Size | torch.dtype | torch.device):
        return True
    if tensors_of(result) or not isinstance(result, int | float | bool | tuple):
        return False
    if node.target in SIZES or (node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")):
        return True
    return node.target in ARITHMETIC and all(_is_constant(each, results) for each in node.all_input_nodes)


def _is_constant(node: fx.Node, results: dict[fx.Node, Any]) -> bool:
    value = results[node]
    return isinstance(value, int | float | bool | torch.Size | torch.dtype | torch.device)


# Which kind of operation a piece of a traced model is, for `algorithms.splits.placements` and the ways to split.

Facts = dict[str, object]

POINTWISE = {
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Hardtanh,
    nn.Identity,
    nn.ReLU6,
    nn.Hardswish,
    nn.Mish,
    nn.LogSigmoid,
    nn.Softsign,
    nn.SELU,
    nn.CELU,
    nn.Hardsigmoid,
    nn.Threshold,
}
POOLING = {
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.Upsample,
    nn.ZeroPad2d,
}
PER_SAMPLE = {nn.GroupNorm, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.LocalResponseNorm}
ELEMENTWISE: set[object] = {
    torch.relu, F.relu, torch.tanh, F.tanh, torch.sigmoid, F.sigmoid, F.gelu, F.silu, F.elu, F.leaky_relu, F.softplus,
    F.relu6, F.hardtanh, F.mish, operator.add, operator.sub, operator.mul, operator.truediv, operator.neg,
    operator.pow, operator.iadd, operator.isub, operator.imul, torch.add, torch.sub, torch.mul, torch.div, torch.neg,
    torch.pow, torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.abs, torch.square, torch.clamp, torch.maximum,
    torch.minimum, torch.where, torch.sin, torch.cos, torch.erf,
    "relu", "relu_", "tanh", "sigmoid", "add", "add_", "sub", "mul", "mul_", "div", "neg", "pow", "exp", "log", "sqrt",
    "rsqrt", "abs", "square", "clamp", "contiguous", "clone", "float", "double", "gelu", "silu", "elu", "leaky_relu",
    "softplus", "hardtanh", "mish", "sin", "cos", "erf", "where",
}  # fmt: skip
RESHAPING: set[object] = {
    torch.flatten,
    torch.reshape,
    torch.unsqueeze,
    torch.squeeze,
    "flatten",
    "view",
    "reshape",
    "unsqueeze",
    "squeeze",
    "unflatten",
}
ALONG: set[object] = {
    F.softmax,
    F.log_softmax,
    torch.softmax,
    torch.log_softmax,
    torch.mean,
    torch.sum,
    torch.amax,
    torch.amin,
    torch.logsumexp,
    torch.cumsum,
    "softmax",
    "log_softmax",
    "mean",
    "sum",
    "amax",
    "amin",
    "logsumexp",
    "cumsum",
}
MATMUL: set[object] = {torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm"}
SIZES: set[object] = {"size", "dim", "numel", len}
ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.getitem, getattr}


def kind_of(traced: Traced, node: fx.Node, args: Any, kwargs: Any, result: Any) -> tuple[str, Facts]:
    """Return the kind of a piece that made this result from these arguments, and what its kind needs to know."""
    if node.op == "call_module":
        return _module(traced.module.get_submodule(str(node.target)), node, args, kwargs)
    if node.target is operator.getitem:
        return _getitem(args, result)
    if not isinstance(result, Tensor) or not args or not isinstance(args[0], Tensor | int | float):
        return "any", {}
    target = _spelled(node.target)
    if target in ELEMENTWISE:
        return ("elementwise", {}) if not _alone_in_place(target, args) else ("any", {})
    if not isinstance(args[0], Tensor):
        return "any", {}
    if target in RESHAPING:
        return "reshape", {}
    for targets, find in FUNCTIONS:
        if target in targets and (facts := find(args, kwargs, result)) is not None:
            return facts
    return "any", {}


def _spelled(target: object) -> object:
    """Return how a model's own code would call a function that torch.export has in its graph: as a tensor's method."""
    return target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else target


def _alone_in_place(target: object, args: Any) -> bool:
    """Whether an operation in place would have to stretch what it changes."""
    changes = str(target).endswith("_") or target in (operator.iadd, operator.isub, operator.imul)
    return changes and not isinstance(args[0], Tensor)


def _module(module: nn.Module, node: fx.Node, args: Any, kwargs: Any) -> tuple[str, Facts]:
    """Return the kind of a module, if it is PyTorch's own and is given one tensor."""
    kind = type(module)
    if kind is nn.MultiheadAttention:
        return _attention(module, node, args, kwargs)  # type: ignore[arg-type]
    if isinstance(module, Experts):
        return _experts(module, args, kwargs)
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or hasattr(module, "parametrizations"):
        return "any", {}
    if any(module._parameters.get(n) is not getattr(module, n) for n in module._parameters) or _hooked(module):
        return "any", {}
    dims = args[0].dim()
    if kind is nn.Linear:
        return "linear", {}
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        alone = dims != len(module.kernel_size) + 2  # one sample, without a batch
        grouped = module.groups > 1 or module.padding_mode != "zeros"
        words = isinstance(module.padding, str) or module.padding_mode != "zeros"
        facts: Facts = {} if alone or words else {"rows": _rows(module)}
        return ("any" if alone else "convolution_groups" if grouped else "convolution"), facts
    if kind is nn.Embedding and module.max_norm is None and not module.sparse and not module.scale_grad_by_freq:
        return "embedding", {}
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        return "batch_norm", {}
    if isinstance(module, nn.LayerNorm) and kind is nn.LayerNorm:
        return "layer_norm", {"normalised": (len(module.normalized_shape),)}
    if isinstance(module, nn.Dropout) and kind is nn.Dropout:
        return ("any" if module.inplace else "dropout" if module.p > 0 else "elementwise"), {}
    if isinstance(module, nn.Softmax | nn.LogSoftmax) and module.dim is not None:
        return "along", {"along": (module.dim % dims,)}
    batched = kind in POOLING and dims > 2 and not getattr(module, "return_indices", False)
    if batched and dims == _pooled_dims(kind.__name__):
        return "channelwise", _pooled_rows(module)
    if kind in (nn.Flatten, nn.Unflatten):
        return "reshape", {}
    return ("elementwise" if kind in POINTWISE else "per_sample" if kind in PER_SAMPLE else "any"), {}


def _pooled_rows(module: nn.Module) -> Facts:
    """Return which rows a pooling layer looks at, where it is given no padding."""
    if not isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.AvgPool1d | nn.AvgPool2d):
        return {}
    return {} if module.ceil_mode or _first(module.padding) else {"rows": _rows(module)}


def _rows(module: Any) -> tuple[int, ...]:
    """Return kernel, stride, padding and dilation of a layer along the rows of an image."""
    sizes = module.kernel_size, module.stride, module.padding, getattr(module, "dilation", 1)
    return tuple(_first(size) for size in sizes)


def _first(size: int | tuple[int, ...]) -> int:
    return size[0] if isinstance(size, tuple) else size


def _pooled_dims(name: str) -> int:
    """Return the dimensions of a batch that this layer pools."""
    return next((n + 2 for n in (1, 2, 3) if f"{n}d" in name), 4)


def _hooked(module: nn.Module) -> bool:
    """Whether code of the user's own runs before or after the module; a hook of Paceline's seeds it."""
    ours = all("Chance" in getattr(hook, "__qualname__", "") for hook in module._forward_pre_hooks.values())
    return bool(module._forward_hooks or module._backward_hooks) or not ours


MASKS = ("attn_mask", "key_padding_mask")


def _attention(module: nn.MultiheadAttention, node: fx.Node, args: Any, kwargs: Any) -> tuple[str, Facts]:
    plain = module._qkv_same_embed_dim and module.bias_k is None and not module.add_zero_attn
    rest = [key for key, value in kwargs.items() if value is not None and value is not False and key != "need_weights"]
    first = all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    tensors = len(args) == 3 and all(isinstance(each, Tensor) and each.dim() == 3 for each in args)
    alike = all(kwargs[key].dim() == 2 for key in rest if key in MASKS)  # one mask for all heads
    weights = kwargs.get("need_weights", True) and not first  # which no worker has
    if not plain or not tensors or not alike or weights or {*rest} - {*MASKS, "is_causal"} or _hooked(module):
        return "any", {}
    return "attention", {"heads": (module.num_heads,)}


def _experts(module: Experts, args: Any, kwargs: Any) -> tuple[str, Facts]:
    if len(args) != 2 or kwargs or _hooked(module):
        return "any", {}
    capacity = capacity_of(tuple(args[1].shape), module.groups, module.capacity_factor)
    return "experts", {"slots": (module.experts, module.groups, capacity, module.width)}


def _getitem(args: Any, result: Any) -> tuple[str, Facts]:
    value, index = args
    if isinstance(value, tuple | list):
        return ("first", {"picked": (index,)}) if isinstance(index, int) else ("any", {})
    words = index if isinstance(index, tuple) else (index,)
    if not isinstance(value, Tensor) or not all(isinstance(word, int | slice) for word in words):
        return "any", {}
    touched = [(dim, isinstance(w, int)) for dim, w in enumerate(words) if w != slice(None)]
    if len({removes for _, removes in touched}) > 1:
        return "any", {}
    return "along", {"along": tuple(dim for dim, _ in touched)}


Found = tuple[str, Facts] | None


def _along(args: Any, kwargs: Any, result: Tensor) -> Found:
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = (dim,) if isinstance(dim, int) and not isinstance(dim, bool) else dim
    if not isinstance(dims, tuple | list) or not dims:
        return None
    return "along", {"along": tuple(sorted(each % args[0].dim() for each in dims))}


def _transpose(args: Any, kwargs: Any, result: Tensor) -> Found:
    order = list(range(args[0].dim()))
    if kwargs or len(args) != 3:
        return None
    one, other = args[1] % len(order), args[2] % len(order)
    order[one], order[other] = other, one
    return "permute", {"order": tuple(order)}


def _permute(args: Any, kwargs: Any, result: Tensor) -> Found:
    dims = args[1] if len(args) == 2 and isinstance(args[1], tuple | list) else args[1:]
    return ("permute", {"order": tuple(dim % args[0].dim() for dim in dims)}) if dims and not kwargs else None


def _batched(args: Any, kwargs: Any, result: Tensor) -> Found:
    return ("batched", {}) if not kwargs and len(args) == 2 and args[0].dim() > 2 else None


def _attends(args: Any, kwargs: Any, result: Tensor) -> Found:
    """Scaled dot products without dropout."""
    dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    return ("batched", {}) if dropout == 0.0 and args[0].dim() > 2 and not kwargs.get("enable_gqa") else None


FUNCTIONS: list[tuple[set[object], Callable[[Any, Any, Tensor], Found]]] = [
    (ALONG, _along),
    ({torch.transpose, "transpose", torch.swapaxes}, _transpose),
    ({torch.permute, "permute"}, _permute),
    (MATMUL, _batched),
    ({F.scaled_dot_product_attention, "scaled_dot_product_attention"}, _attends),
]
