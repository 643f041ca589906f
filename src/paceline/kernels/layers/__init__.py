"""Every kind of layer, a row each: how PyTorch's modules and functions are recognised, and what each kind computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline.jobs.modules import NarrowAttention, Subsampling
from paceline.kernels.ir import Program
from paceline.kernels.layers import (
    attention,
    convolution,
    dense,
    elementwise,
    embedding,
    layer_norm,
    normalisation,
    pooling,
    recurrent,
    shapes,
)
from paceline.kernels.layers.base import Found, Layer, Seen

MODULES: dict[type[nn.Module], Callable[[Any, Seen], Found | None]] = {
    nn.Conv1d: convolution.recognise,
    nn.Conv2d: convolution.recognise,
    nn.Linear: dense.recognise,
    nn.MaxPool1d: pooling.fixed("highest", 1),
    nn.MaxPool2d: pooling.fixed("highest", 2),
    nn.AvgPool1d: pooling.fixed("average", 1),
    nn.AvgPool2d: pooling.fixed("average", 2),
    nn.AdaptiveAvgPool1d: pooling.adaptive("average", 1),
    nn.AdaptiveAvgPool2d: pooling.adaptive("average", 2),
    nn.AdaptiveMaxPool1d: pooling.adaptive("highest", 1),
    nn.AdaptiveMaxPool2d: pooling.adaptive("highest", 2),
    Subsampling: pooling.trainable,
    nn.Sigmoid: elementwise.function("sigmoid"),
    nn.Tanh: elementwise.function("tanh"),
    nn.ReLU: elementwise.function("relu"),
    nn.GELU: elementwise.gelu,
    nn.SiLU: elementwise.function("silu"),
    nn.LeakyReLU: elementwise.formula("leaky_relu", "negative_slope"),
    nn.ELU: elementwise.formula("elu", "alpha"),
    nn.SELU: elementwise.formula("selu"),
    nn.CELU: elementwise.formula("celu", "alpha"),
    nn.ReLU6: elementwise.formula("hardtanh", "min_val", "max_val"),
    nn.Hardtanh: elementwise.formula("hardtanh", "min_val", "max_val"),
    nn.Hardswish: elementwise.formula("hardswish"),
    nn.Hardsigmoid: elementwise.formula("hardsigmoid"),
    nn.LogSoftmax: lambda part, seen: elementwise.end("log_softmax", seen, part.dim),
    nn.Softmax: lambda part, seen: elementwise.end("softmax", seen, part.dim),
    nn.BatchNorm1d: normalisation.recognise(0),
    nn.BatchNorm2d: normalisation.recognise(2),
    nn.LayerNorm: layer_norm.recognise,
    nn.RMSNorm: layer_norm.recognise,
    nn.Dropout: elementwise.dropout,
    nn.MultiheadAttention: attention.recognise,
    NarrowAttention: attention.recognise,
    nn.Embedding: embedding.recognise,
    nn.LSTM: recurrent.recognise("lstm"),
    nn.GRU: recurrent.recognise("gru"),
    nn.Flatten: elementwise.flatten,
    nn.Unflatten: elementwise.unflatten,
    nn.Identity: elementwise.same,
}

NAMED: dict[Any, str] = {
    F.relu: "relu", torch.relu: "relu", "relu": "relu",
    torch.sigmoid: "sigmoid", F.sigmoid: "sigmoid", "sigmoid": "sigmoid",
    torch.tanh: "tanh", F.tanh: "tanh", "tanh": "tanh",
    F.gelu: "gelu", F.silu: "silu",
}  # fmt: skip

ENDS: dict[Any, str] = {
    F.log_softmax: "log_softmax", torch.log_softmax: "log_softmax", "log_softmax": "log_softmax",
    F.softmax: "softmax", torch.softmax: "softmax", "softmax": "softmax",
}  # fmt: skip

SIGNS: dict[Any, str] = {
    operator.add: "+", operator.iadd: "+", torch.add: "+", "add": "+", "add_": "+",
    operator.sub: "-", torch.sub: "-", "sub": "-",
    operator.mul: "*", torch.mul: "*", "mul": "*", operator.truediv: "/", torch.div: "/", "div": "/",
}  # fmt: skip

LOWER: dict[str, Callable[[Program, Layer, list[str], int], str]] = {
    "convolution": convolution.lower,
    "linear": dense.lower,
    "subsampling": pooling.lower_trainable,
    "average_pooling": pooling.lower_average,
    "highest_pooling": pooling.lower_highest,
    "activation": elementwise.lower_activation,
    "add": elementwise.lower_pair("+"),
    "difference": elementwise.lower_pair("-"),
    "product": elementwise.lower_pair("*"),
    "reshape": elementwise.lower_reshape,
    "step": elementwise.lower_step,
    "dropout": elementwise.lower_dropout,
    "batch_norm": normalisation.lower,
    "embedding": embedding.lower,
    "layer_norm": layer_norm.lower,
    "attention": attention.lower,
    "lstm": recurrent.lower(recurrent.lstm),
    "gru": recurrent.lower(recurrent.gru),
    "state": recurrent.lower_state,
    "shift": shapes.lower_shift,
    "mean": shapes.lower_mean,
    "cat": shapes.lower_joined,
    "turn": shapes.lower_turned,
    "scale": elementwise.lower_scale,
}


#: Functions that are a layer without parameters, made from their other arguments.
FUNCTIONAL: dict[Any, type[nn.Module]] = {
    F.max_pool1d: nn.MaxPool1d, F.max_pool2d: nn.MaxPool2d, F.avg_pool1d: nn.AvgPool1d, F.avg_pool2d: nn.AvgPool2d,
    F.leaky_relu: nn.LeakyReLU, F.elu: nn.ELU, F.selu: nn.SELU, F.celu: nn.CELU, F.relu6: nn.ReLU6,
    F.hardtanh: nn.Hardtanh, F.hardswish: nn.Hardswish, F.hardsigmoid: nn.Hardsigmoid,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_max_pool1d: nn.AdaptiveMaxPool1d, F.adaptive_max_pool2d: nn.AdaptiveMaxPool2d,
}  # fmt: skip


def of_function(target: Any, args: list[Any], seen: Seen) -> Found | None:
    """What a traced function of these arguments is, or None if it has no kernel."""
    if not seen.shapes:
        return None
    given, others = seen.given, args[1:]
    if target in NAMED:
        name = "gelu_tanh" if given.get("approximate") == "tanh" else NAMED[target]
        return "activation", seen.shapes[0], {"function": name}, ()
    if target in FUNCTIONAL:
        kind = FUNCTIONAL[target]
        return MODULES[kind](kind(*others, **given), seen)
    if target in (F.dropout, "dropout"):
        return elementwise.dropout_function(seen, *others, **given)
    if target in ENDS:
        return elementwise.end(ENDS[target], seen, others[0] if others else given.get("dim"))
    if target in SIGNS:
        return elementwise.operation(SIGNS[target], args, seen)
    if target in (torch.flatten, "flatten"):
        return "reshape", elementwise.flat(seen, *others, **{"start_dim": 0, **given} if not others else given), {}, ()
    if target in ("squeeze", torch.squeeze):
        return shapes.squeezed(seen, others[0] if others else given.get("dim"))
    if target in ("view", "reshape", torch.reshape):
        return shapes.reshaped(seen, others[0] if isinstance(others[0], tuple | list) else others)
    if target in ("transpose", torch.transpose, "permute", torch.permute):
        return shapes.turned(seen, others if target in ("transpose", torch.transpose) else None, others)
    if target in (torch.mean, "mean"):
        return shapes.mean(seen, others[0] if others else given.get("dim"), bool(given.get("keepdim", False)))
    if target in (torch.cat, torch.concat) and isinstance(args[0], tuple | list):
        return shapes.joined(seen, others[0] if others else given.get("dim", 0))
    if target in ("contiguous", "float"):
        return "same", seen.shapes[0], {}, ()
    if target is operator.getitem:
        return elementwise.step(args[1], seen)
    return None
