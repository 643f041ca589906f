"""Which kind of operation a piece of a traced model is, for `algorithms.splits.placements` and the ways to split."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from paceline.training.jobs.experts import Experts, capacity_of
from paceline.training.stages.tracing import Traced

Facts = dict[str, object]

POINTWISE = {
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Hardtanh, nn.Identity,
    nn.ReLU6, nn.Hardswish, nn.Mish, nn.LogSigmoid, nn.Softsign, nn.SELU, nn.CELU, nn.Hardsigmoid, nn.Threshold,
}  # fmt: skip
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
    F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, torch.mean, torch.sum, torch.amax, torch.amin,
    torch.logsumexp, torch.cumsum, "softmax", "log_softmax", "mean", "sum", "amax", "amin", "logsumexp", "cumsum",
}  # fmt: skip
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
