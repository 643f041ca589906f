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
from paceline.kernels.library.native import long, native, pointer

ORDERS = ("layers", "wavefront")


class Lstm(nn.Module):
    """An `nn.LSTM` as it stands, with the same parameters: one direction, biases, no projection, no dropout.

    `order=None` takes the wavefront where the batch is too small to be shared among the threads.
    """

    def __init__(self, given: nn.LSTM, order: str | None = None, threads: int | None = None) -> None:
        super().__init__()
        refused = [
            what
            for what, there in {
                "two directions": given.bidirectional,
                "a projection": given.proj_size,
                "dropout": given.dropout,
                "no biases": not given.bias,
            }.items()
            if there
        ]
        if refused:
            raise JobError(f"an LSTM with {', '.join(refused)} is not for the wavefront; leave it to nn.LSTM")
        if order not in (None, *ORDERS):
            raise JobError(f"order={order!r} is neither of {', '.join(ORDERS)}")
        self.given, self.order, self.threads = given, order, threads

    def forward(self, x: Tensor) -> Tensor:
        """The top layer's outputs; of x[t, b, i], or [b, t, i] where the LSTM is batch_first."""
        threads = self.threads or torch.get_num_threads()
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
        return stack.rooms[-1]["out"].view(*x.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x,), dout, stack = ctx.saved_tensors, gradients[0].contiguous(), ctx.stack
        stack.make_way_back()
        dh, dcell, room = stack.space_back()
        native().lstm_back(
            stack.sizes(), stack.layers(), pointer(x), pointer(dout), pointer(dh), pointer(dcell), pointer(room),
            long(ctx.wave), long(ctx.threads),
        )  # fmt: skip
        # Both biases are added: each has the gradient of their sum.
        each = [g for room in stack.rooms for g in (room["din"], room["dback"], room["dbias"], room["dbias"].clone())]
        shapes = [g.view(w.shape) for g, w in zip(each, stack.weights, strict=True)]
        return stack.rooms[0]["dinput"].view(x.shape), None, None, *shapes


FIELDS = (
    "in", "back", "bias", "gates", "cell", "out", "panels", "panels_back", "dgates", "dinput", "din", "dback", "dbias",
)  # fmt: skip


class Stack:
    """The memory of all layers, as the C++ text reads it."""

    def __init__(self, x: Tensor, weights: Sequence[Tensor]) -> None:
        self.steps, self.batch, self.inputs = x.shape
        self.weights, self.units = weights, weights[1].shape[1]
        rows = self.steps * self.batch
        self.rooms: list[dict[str, Tensor]] = []
        for number in range(0, len(weights), 4):
            into, back, bias, other = (w.detach().contiguous() for w in weights[number : number + 4])
            room = {"in": into, "back": back, "bias": bias + other}
            room |= {"gates": torch.empty(rows * 4 * self.units)}
            room |= {name: torch.empty(rows * self.units) for name in ("cell", "out")}
            self.rooms.append(room | self._panels(4 * self.units, into.shape[1], self.units))

    def make_way_back(self) -> None:
        rows = self.steps * self.batch
        for room in self.rooms:
            wide = room["in"].shape[1]
            room |= {"dgates": torch.empty(rows * 4 * self.units), "dinput": torch.empty(rows * wide)}
            room |= {"din": torch.empty_like(room["in"]), "dback": torch.zeros_like(room["back"])}
            room |= {"dbias": torch.empty_like(room["bias"])}

    def space_back(self) -> tuple[Tensor, Tensor, Tensor]:
        size, rows = len(self.rooms) * self.batch * self.units, self.steps * self.batch
        widest = max(room["in"].shape[1] for room in self.rooms)
        return torch.empty(size), torch.empty(size), torch.empty(rows * (_panel(widest) + _panel(self.units)))

    def _panels(self, four: int, wide: int, units: int) -> dict[str, Tensor]:
        """Room for either way: depth by columns, or columns by depth."""
        sizes = {"panels": (wide, four), "panels_back": (units, four)}
        return {name: torch.empty(max(a * _panel(b), b * _panel(a))) for name, (a, b) in sizes.items()}

    def sizes(self) -> ctypes.Array[ctypes.c_long]:
        return (ctypes.c_long * 5)(self.steps, self.batch, self.inputs, self.units, len(self.rooms))

    def layers(self) -> ctypes.Array[ctypes.c_void_p]:
        pointers = [room[name].data_ptr() if name in room else None for room in self.rooms for name in FIELDS]
        return (ctypes.c_void_p * len(pointers))(*pointers)


def _panel(columns: int) -> int:
    wide = 2 * int(native().lanes())
    return -(-columns // wide) * wide
