"""Every kind of layer, a row each: how PyTorch's modules and functions are recognised, and what each kind computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from paceline.jobs.modules import Subsampling
from paceline.kernels.ir import Program
from paceline.kernels.layers import convolution, dense, elementwise, embedding, normalisation, pooling, recurrent
from paceline.kernels.layers.base import CannotFuse, Found, Layer, Seen

MODULES: dict[type[nn.Module], Callable[[Any, Seen], Found | None]] = {
    nn.Conv1d: convolution.recognise,
    nn.Conv2d: convolution.recognise,
    nn.Linear: dense.recognise,
    nn.MaxPool1d: pooling.fixed("highest", 1),
    nn.MaxPool2d: pooling.fixed("highest", 2),
    nn.AvgPool1d: pooling.fixed("average", 1),
    nn.AvgPool2d: pooling.fixed("average", 2),
    nn.AdaptiveAvgPool1d: pooling.adaptive(1),
    nn.AdaptiveAvgPool2d: pooling.adaptive(2),
    Subsampling: pooling.trainable,
    nn.Sigmoid: elementwise.function("sigmoid"),
    nn.Tanh: elementwise.function("tanh"),
    nn.ReLU: elementwise.function("relu"),
    nn.GELU: elementwise.gelu,
    nn.BatchNorm1d: normalisation.recognise(0),
    nn.BatchNorm2d: normalisation.recognise(2),
    nn.Dropout: elementwise.dropout,
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
    F.gelu: "gelu",
}  # fmt: skip

LOWER: dict[str, Callable[[Program, Layer, list[str], int], str]] = {
    "convolution": convolution.lower,
    "linear": dense.lower,
    "subsampling": pooling.lower_trainable,
    "average_pooling": pooling.lower_average,
    "highest_pooling": pooling.lower_highest,
    "activation": elementwise.lower_activation,
    "add": elementwise.lower_add,
    "reshape": elementwise.lower_reshape,
    "step": elementwise.lower_step,
    "dropout": elementwise.lower_dropout,
    "batch_norm": normalisation.lower,
    "embedding": embedding.lower,
    "lstm": recurrent.lower_lstm,
    "gru": recurrent.lower_gru,
}


def of_function(node: fx.Node, seen: Seen) -> Found | None:
    """What a traced function is, or None if it has no kernel."""
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
        return "reshape", elementwise.flat(seen, int(start), int(end)), {}, ()  # type: ignore[arg-type]
    if target is operator.getitem:
        return elementwise.step(node.args[1], seen)
    return None
