"""Stacked LSTM layers with fused gates, in two orders.

layers       each layer through all of time; the inputs of all steps are one product, threads share the batch
wavefront    layer l of step t as soon as layer l - 1 of step t and layer l of step t - 1 are done

      t ▶  0  1  2  3
layer 0    a  b  c  d          one letter at a time: what has the same letter goes on at once
layer 1       b  c  d  e
layer 2          c  d  e  f
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import JobError
from paceline.kernels.library.convolution import check_numbers, threads_of
from paceline.kernels.library.native import long, native, pointer

ORDERS = ("layers", "wavefront")


class Lstm(nn.Module):
    """An `nn.LSTM` as it stands, with the same parameters: one direction, biases, no projection, no dropout.

    `order=None` takes the wavefront where the batch is too small to be shared among the threads.
    """

    def __init__(self, given: nn.LSTM, order: str | None = None, threads: int | None = None) -> None:
        super().__init__()
        if not isinstance(given, nn.LSTM):
            raise JobError(f"{type(given).__name__} is not for the wavefront, nn.LSTM is; leave it to PyTorch")
        threads_of(threads)
        refused = [
            what
            for what, is_set in {
                "two directions": given.bidirectional,
                "a projection": given.proj_size,
                "dropout": given.dropout,
                "no biases": not given.bias,
            }.items()
            if is_set
        ]
        if refused:
            raise JobError(f"an LSTM with {', '.join(refused)} is not for the wavefront; leave it to nn.LSTM")
        if order not in (None, *ORDERS):
            raise JobError(f"order={order!r} is neither of {', '.join(ORDERS)}")
        self.given, self.order, self.threads = given, order, threads

    def forward(self, x: Tensor) -> Tensor:
        """The top layer's outputs; of x[t, b, i], or [b, t, i] where the LSTM is batch_first."""
        threads = threads_of(self.threads)
        if x.dim() != 3 or x.shape[2] != self.given.input_size or not x.numel():
            raise JobError(
                f"an LSTM of {self.given.input_size} inputs gets x of {tuple(x.shape)}; it takes x[t, b, i], or "
                "[b, t, i] where it is batch_first"
            )
        check_numbers("an LSTM", x, *self.given.parameters())
        first = x.transpose(0, 1) if self.given.batch_first else x
        wave = self.order == "wavefront" if self.order else threads > 1 and first.shape[1] < 2 * threads
        weights = [getattr(self.given, name) for name in self.given._flat_weights_names]
        out: Tensor = _Lstm.apply(first.contiguous(), wave, threads, *weights)  # type: ignore[no-untyped-call]
        return out.transpose(0, 1) if self.given.batch_first else out


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wave: bool, threads: int, *weights: Tensor) -> Tensor:
        ctx.stack = stack = Stack(x, weights)
        ctx.wave, ctx.threads = wave, threads
        native().lstm(stack.sizes(), stack.layers(), pointer(x), long(wave), long(threads))
        ctx.save_for_backward(x)
        return stack.out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x,), dout, stack = ctx.saved_tensors, gradients[0].contiguous(), ctx.stack
        dx, weight_gradients, rooms = stack.way_back()
        native().lstm_back(
            stack.sizes(),
            stack.layers(),
            pointer(x),
            pointer(dout),
            *map(ctypes.c_void_p, rooms),
            long(ctx.wave),
            long(ctx.threads),
        )
        # Both biases are added: each has the gradient of their sum.
        each = [g for into, back, bias in weight_gradients for g in (into, back, bias, bias.clone())]
        return dx, None, None, *each


FIELDS = (
    "in",
    "back",
    "bias_in",
    "bias_back",
    "bias",
    "gates",
    "cell",
    "out",
    "panels",
    "panels_back",
    "dgates",
    "dinput",
    "din",
    "dback",
    "dbias",
)


class Stack:
    """The memory of all layers, as the C++ text reads it: mostly places in one piece, since a tensor of its own costs a
    microsecond, and a small layer's whole pass takes fifty.
    """

    def __init__(self, x: Tensor, weights: Sequence[Tensor]) -> None:
        self.steps, self.batch, self.inputs = x.shape
        self.weights, self.units = [w.contiguous() for w in weights], weights[1].shape[1]
        self.places: list[dict[str, int]] = []  # where each of FIELDS lies, by layer
        rows, four = self.steps * self.batch, 4 * self.units
        sizes: list[dict[str, int]] = []
        for number in range(0, len(weights), 4):
            names = ("in", "back", "bias_in", "bias_back")
            parameters = self.weights[number : number + 4]
            self.places.append({name: w.data_ptr() for name, w in zip(names, parameters, strict=True)})
            sizes.append(
                {
                    "bias": four,
                    "gates": rows * four,
                    "cell": rows * self.units,
                    "out": rows * self.units,
                    "panels": _either(four, parameters[0].shape[1]),
                    "panels_back": _either(four, self.units),
                }
            )
        self.out = torch.empty(self.steps, self.batch, self.units)
        del sizes[-1]["out"]
        self.room = self._laid_out(sizes)
        self.places[-1]["out"] = self.out.data_ptr()

    def _laid_out(self, sizes: list[dict[str, int]]) -> Tensor:
        """One piece of memory with all of them, each on a cache line of its own."""
        room = torch.empty(sum(_lines(size) for layer in sizes for size in layer.values()))
        start = room.data_ptr()
        for layer, places in zip(sizes, self.places, strict=True):
            for name, size in layer.items():
                places[name], start = start, start + 4 * _lines(size)
        return room

    def way_back(self) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]], tuple[int, int, int]]:
        """(the gradient by x, those of each layer's two matrices and its bias, three rooms to work in)"""
        rows, four = self.steps * self.batch, 4 * self.units
        sizes = [{"dgates": rows * four, "dinput": rows * self.units} for _ in self.places]
        dx = torch.empty(self.steps, self.batch, self.inputs)
        del sizes[0]["dinput"]
        size = len(self.places) * self.batch * self.units
        sums = rows * (_panel(max(self.inputs, self.units)) + _panel(self.units))
        sizes[0] |= {"dh": size, "dcell": size, "sums": sums}
        self.room_back = self._laid_out(sizes)
        self.places[0]["dinput"] = dx.data_ptr()
        weight_gradients = []
        for number, places in enumerate(self.places):
            into, back, bias, _ = (torch.empty_like(w) for w in self.weights[4 * number : 4 * number + 4])
            places |= {"din": into.data_ptr(), "dback": back.data_ptr(), "dbias": bias.data_ptr()}
            weight_gradients.append((into, back, bias))
        first = self.places[0]
        return dx, weight_gradients, (first["dh"], first["dcell"], first["sums"])

    def sizes(self) -> ctypes.Array[ctypes.c_long]:
        return (ctypes.c_long * 5)(self.steps, self.batch, self.inputs, self.units, len(self.places))

    def layers(self) -> ctypes.Array[ctypes.c_void_p]:
        pointers = [places.get(name) for places in self.places for name in FIELDS]
        return (ctypes.c_void_p * len(pointers))(*pointers)


def _either(a: int, b: int) -> int:
    """Room for the panels of either way: depth by columns, or columns by depth."""
    return max(a * _panel(b), b * _panel(a))


def _panel(columns: int) -> int:
    wide = 2 * int(native().lanes())
    return -(-columns // wide) * wide


def _lines(count: int) -> int:
    return -(-count // 16) * 16
