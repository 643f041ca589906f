"""PyTorch's own containers as their parts, where torch.fx does not look into them, or cannot.

    nn.TransformerEncoder, nn.TransformerEncoderLayer    their layers; attention, norms, linear layers
    nn.LSTM, nn.GRU, nn.RNN of several layers            one layer after the other, dropout in between

A rule is called instead of the module, with proxies, and does the same by parts: the same numbers bit for bit, from the
same seeds. Parameters stay where they are, under the model's names. A layer of a recurrent net is a piece of its own,
called as the module with the layer's number: `lstm_l1` is the second one of `lstm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.training.gradients.randomness import reseed

Rule = Callable[..., Any]


class _Whole(Exception):
    """The module is called in a way that the rule does not cover."""


def rule_of(module: nn.Module) -> Rule | None:
    """Return the rule that unfolds a module, or None."""
    if isinstance(module, nn.RNNBase) and module.num_layers == 1:
        return None
    return UNFOLDED.get(type(module))


# --- transformers ---------------------------------------------------------------------------------------------------


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


# --- recurrent nets -------------------------------------------------------------------------------------------------


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
