"""Every kind of layer, a row each: how PyTorch's modules and functions are recognised, and what each kind computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.kernels.ir import Program
from paceline.kernels.layers import (
    attention,
    elementwise,
    images,
    norms,
    products,
    recurrent,
    shapes,
)
from paceline.kernels.layers.base import CallSite, HeldTensor, Layer, LayerSpec
from paceline.training.jobs.modules import NarrowAttention, Subsampling

MODULES: dict[type[nn.Module], Callable[[Any, CallSite], LayerSpec | None]] = {
    nn.Conv1d: images.recognise_convolution,
    nn.Conv2d: images.recognise_convolution,
    nn.ConvTranspose1d: images.recognise_transposed,
    nn.ConvTranspose2d: images.recognise_transposed,
    nn.Upsample: images.upsampled,
    nn.Linear: products.recognise_linear,
    nn.MaxPool1d: images.fixed("highest", 1),
    nn.MaxPool2d: images.fixed("highest", 2),
    nn.AvgPool1d: images.fixed("average", 1),
    nn.AvgPool2d: images.fixed("average", 2),
    nn.AdaptiveAvgPool1d: images.adaptive("average", 1),
    nn.AdaptiveAvgPool2d: images.adaptive("average", 2),
    nn.AdaptiveMaxPool1d: images.adaptive("highest", 1),
    nn.AdaptiveMaxPool2d: images.adaptive("highest", 2),
    Subsampling: images.trainable,
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
    nn.Softplus: elementwise.formula("softplus", "beta"),
    nn.Mish: elementwise.formula("mish"),
    nn.LogSigmoid: elementwise.formula("log_sigmoid"),
    nn.Softsign: elementwise.formula("softsign"),
    nn.Tanhshrink: elementwise.formula("tanhshrink"),
    nn.Softshrink: elementwise.formula("softshrink", "lambd"),
    nn.Hardshrink: elementwise.formula("hardshrink", "lambd"),
    nn.Threshold: elementwise.formula("threshold", "threshold", "value"),
    nn.PReLU: elementwise.prelu_module,
    nn.LogSoftmax: lambda part, seen: attention.recognise_softmax("log_softmax", part.dim, seen),
    nn.Softmax: lambda part, seen: attention.recognise_softmax("softmax", part.dim, seen),
    nn.BatchNorm1d: norms.recognise_batch_norm(0),
    nn.BatchNorm2d: norms.recognise_batch_norm(2),
    nn.LayerNorm: norms.recognise_layer_norm,
    nn.RMSNorm: norms.recognise_layer_norm,
    nn.GroupNorm: norms.grouped,
    nn.InstanceNorm1d: norms.instances(1),
    nn.InstanceNorm2d: norms.instances(2),
    nn.Dropout: elementwise.dropout,
    nn.Dropout1d: elementwise.dropout_of_channels,
    nn.Dropout2d: elementwise.dropout_of_channels,
    nn.AlphaDropout: elementwise.no_dropout,
    nn.MultiheadAttention: attention.recognise,
    NarrowAttention: attention.recognise,
    nn.Embedding: products.recognise_embedding,
    nn.LSTM: recurrent.recognise("lstm"),
    nn.GRU: recurrent.recognise("gru"),
    nn.RNN: recurrent.recognise("rnn"),
    nn.Flatten: elementwise.flatten,
    nn.Unflatten: elementwise.unflatten,
    nn.Identity: elementwise.same,
    **dict.fromkeys(
        (nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d),
        lambda part, seen: shapes.padded(seen, part.padding, value=part.value),
    ),
}

NAMED: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    "relu": "relu",
    torch.sigmoid: "sigmoid",
    F.sigmoid: "sigmoid",
    "sigmoid": "sigmoid",
    torch.tanh: "tanh",
    F.tanh: "tanh",
    "tanh": "tanh",
    F.gelu: "gelu",
    F.silu: "silu",
}

#: Functions that have a kind of their own where both operands are what layers give, of one shape.
SIGNS: dict[Any, str] = {
    operator.add: "+",
    operator.iadd: "+",
    torch.add: "+",
    "add": "+",
    "add_": "+",
    operator.sub: "-",
    torch.sub: "-",
    "sub": "-",
    operator.mul: "*",
    torch.mul: "*",
    "mul": "*",
    operator.truediv: "/",
    torch.div: "/",
    "div": "/",
}

#: Functions that give truth values, by name.
COMPARISONS = ("gt", "lt", "ge", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "invert", "and_", "or_")

LOWER: dict[str, Callable[[Program, Layer, list[str], int], str]] = {
    "convolution": images.lower_convolution,
    "transposed_convolution": images.lower_transposed,
    "upsampling": images.lower_upsampled,
    "linear": products.lower_linear,
    "subsampling": images.lower_trainable,
    "average_pooling": images.lower_average,
    "highest_pooling": images.lower_highest,
    "activation": elementwise.lower_activation,
    "add": elementwise.lower_pair("+"),
    "difference": elementwise.lower_pair("-"),
    "product": elementwise.lower_pair("*"),
    "reshape": elementwise.lower_reshape,
    "step": elementwise.lower_step,
    "dropout": elementwise.lower_dropout,
    "batch_norm": norms.lower_batch_norm,
    "embedding": products.lower_embedding,
    "layer_norm": norms.lower_layer_norm,
    "attention": attention.lower,
    "lstm": recurrent.lower(recurrent.lstm),
    "gru": recurrent.lower(recurrent.gru),
    "rnn": recurrent.lower(recurrent.rnn),
    "state": recurrent.lower_state,
    "combined": elementwise.lower_combined,
    "matrix_product": products.lower_product,
    "softmax": attention.lower_softmax,
    "log_softmax": attention.lower_logarithm,
    "mean": shapes.lower_mean,
    "highest": shapes.lower_highest,
    "slice": shapes.lower_sliced,
    "cat": shapes.lower_joined,
    "pad": shapes.lower_padded,
    "turn": shapes.lower_turned,
    "scale": elementwise.lower_scale,
}


#: Kinds of layers that give some of their numbers in another order: where in the input these are.
VIEWS: dict[str, Callable[[Layer, Tensor], Tensor]] = {
    "reshape": lambda layer, places: places.reshape(layer.shape),
    "turn": lambda layer, places: places.permute(layer.options["places"]),
    "step": lambda layer, places: places[layer.options["step"]],
    "slice": shapes.sliced_places,
}


#: Functions that are a layer without parameters, made from their other arguments.
FUNCTIONAL: dict[Any, type[nn.Module]] = {
    F.max_pool1d: nn.MaxPool1d,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool1d: nn.AvgPool1d,
    F.avg_pool2d: nn.AvgPool2d,
    F.interpolate: nn.Upsample,
    F.leaky_relu: nn.LeakyReLU,
    F.elu: nn.ELU,
    F.selu: nn.SELU,
    F.celu: nn.CELU,
    F.relu6: nn.ReLU6,
    F.hardtanh: nn.Hardtanh,
    F.hardswish: nn.Hardswish,
    F.hardsigmoid: nn.Hardsigmoid,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_max_pool1d: nn.AdaptiveMaxPool1d,
    F.adaptive_max_pool2d: nn.AdaptiveMaxPool2d,
}


def of_function(target: Any, args: list[Any], site: CallSite) -> LayerSpec | None:
    """What a traced function of these arguments is, or None if it has no kernel."""
    if target in SIGNS and (spec := elementwise.operation(SIGNS[target], args, site)) is not None:
        return spec
    if target in elementwise.EXPRESSIONS:
        return elementwise.expressed(elementwise.EXPRESSIONS[target], args, site, **site.given)
    if target in ROWS:
        return ROWS[target](args, site)
    kwargs, others = site.given, args[1:]
    if not site.shapes:
        return None
    if target in NAMED:
        name = "gelu_tanh" if kwargs.get("approximate") == "tanh" else NAMED[target]
        return "activation", site.shapes[0], {"function": name}, ()
    if target in FUNCTIONAL:
        kind = FUNCTIONAL[target]
        return MODULES[kind](kind(*others, **kwargs), site)
    return None


def _option(args: list[Any], site: CallSite, word: str, default: Any = None, place: int = 1) -> Any:
    """An argument of a traced function, by its place or its name."""
    return args[place] if len(args) > place else site.given.get(word, default)


def _spread(args: list[Any]) -> list[Any]:
    """The arguments after the first, which may stand in a tuple: x.view(2, 3), x.view((2, 3))."""
    others = args[1:]
    return list(others[0]) if len(others) == 1 and isinstance(others[0], tuple | list) else others


def _reduced(average: bool) -> Callable[[list[Any], CallSite], LayerSpec | None]:
    return lambda args, seen: shapes.reduced(
        seen, _option(args, seen, "dim"), bool(_option(args, seen, "keepdim", False, 2)), average
    )


def _highest(args: list[Any], site: CallSite) -> LayerSpec | None:
    if len(args) == 2 and isinstance(args[1], str | HeldTensor):
        return elementwise.expressed(elementwise.EXPRESSIONS[torch.maximum], args, site)
    return shapes.highest(site, _option(args, site, "dim"), bool(_option(args, site, "keepdim", False, 2)))


def _flattened(args: list[Any], site: CallSite) -> LayerSpec | None:
    first, last = _option(args, site, "start_dim", 0), _option(args, site, "end_dim", -1, 2)
    return "reshape", elementwise.flat(site, first, last), {}, ()


def _narrowed(args: list[Any], site: CallSite) -> LayerSpec | None:
    dim, start, length = (_option(args, site, word, None, k + 1) for k, word in enumerate(("dim", "start", "length")))
    ndim = len(site.shapes[0]) + (site.axis is not None)
    return shapes.sliced(site, (*[slice(None)] * (dim % ndim), slice(start, start + length)))


def _chosen(args: list[Any], site: CallSite) -> LayerSpec | None:
    dim, index = _option(args, site, "dim"), _option(args, site, "index", None, 2)
    ndim = len(site.shapes[0]) + (site.axis is not None)
    return shapes.sliced(site, (*[slice(None)] * (dim % ndim), index))


def _joined(args: list[Any], site: CallSite) -> LayerSpec | None:
    return shapes.joined(site, _option(args, site, "dim", 0)) if isinstance(args[0], tuple | list) else None


def _padded(args: list[Any], site: CallSite) -> LayerSpec | None:
    mode, value = _option(args, site, "mode", "constant", 2), _option(args, site, "value", None, 3)
    return shapes.padded(site, _option(args, site, "pad"), mode, value)


def _same(args: list[Any], site: CallSite) -> LayerSpec | None:
    return "same", site.shapes[0], {}, ()


def _row(make: Callable[[list[Any], CallSite], LayerSpec | None], *targets: Any) -> dict[Any, Any]:
    """A function for all of these names."""
    return dict.fromkeys(targets, make)


#: Functions that are neither an expression nor a layer, a row each.
ROWS: dict[Any, Callable[[list[Any], CallSite], LayerSpec | None]] = {
    **_row(lambda args, seen: elementwise.dropout_function(seen, *args[1:], **seen.given), F.dropout, "dropout"),
    **_row(
        lambda args, seen: attention.recognise_softmax("softmax", _option(args, seen, "dim"), seen),
        F.softmax,
        torch.softmax,
        "softmax",
    ),
    **_row(
        lambda args, seen: attention.recognise_softmax("log_softmax", _option(args, seen, "dim"), seen),
        F.log_softmax,
        torch.log_softmax,
        "log_softmax",
    ),
    **_row(products.product, operator.matmul, torch.matmul, "matmul", torch.bmm, "bmm", torch.mm, "mm"),
    **_row(products.linear, F.linear),
    **_row(norms.layer_norm_function, F.layer_norm, F.rms_norm),
    **_row(images.convolution_function, F.conv1d, F.conv2d),
    **_row(_flattened, torch.flatten, "flatten"),
    **_row(lambda args, seen: shapes.squeezed(seen, _option(args, seen, "dim")), "squeeze", torch.squeeze),
    **_row(lambda args, seen: shapes.unsqueezed(seen, _option(args, seen, "dim")), "unsqueeze", torch.unsqueeze),
    **_row(lambda args, seen: shapes.reshaped(seen, _spread(args)), "view", "reshape", torch.reshape),
    **_row(lambda args, seen: elementwise.unflattened(seen, args[1], args[2]), "unflatten", torch.unflatten),
    **_row(lambda args, seen: shapes.turned(seen, args[1:3], ()), "transpose", torch.transpose, "swapaxes"),
    **_row(lambda args, seen: shapes.turned(seen, None, _spread(args)), "permute", torch.permute),
    **_row(lambda args, seen: shapes.turned(seen, (-2, -1), ()), "t", "mT"),
    **_row(_reduced(True), torch.mean, "mean"),
    **_row(_reduced(False), torch.sum, "sum"),
    **_row(_joined, torch.cat, torch.concat),
    **_row(_narrowed, torch.narrow, "narrow"),
    **_row(_chosen, torch.select, "select"),
    **_row(_padded, F.pad),
    **_row(lambda args, seen: elementwise.expanded(seen, _spread(args)), "expand"),
    **_row(_same, "contiguous", "float", "double", "to", "type", "type_as", "clone", torch.clone, "long", "int"),
    **_row(_highest, torch.amax, "amax", torch.max, "max"),
    operator.getitem: lambda args, seen: shapes.sliced(seen, args[1]),
}
