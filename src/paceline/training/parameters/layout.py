"""The layout of parameters in flat memory.

    shard 0                                   shard 1
    | weight ---- | bias - | moving buffers | | weight -------- | bias |
    ^             ^                           every tensor starts at a multiple of 64 bytes

Whole parameters go to shards, balanced by size. Alignment makes the vectorised kernels fast and, as it is the same
in every process, their bits the same. Buffers that training changes (batch-norm statistics) are at the end of shard 0:
the server owns them, and the last push wins. Integers are kept as floating-point numbers and rounded on the way back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import JobError

ALIGN = 64


@dataclass(frozen=True)
class ParameterSpan:
    """The span of one parameter or buffer in a shard's flat memory."""

    name: str
    shape: tuple[int, ...]
    start: int  # in elements of the shard
    size: int


class FlatViews(list[Tensor]):
    """The parameters of a shard, or their gradients, as views of one vector."""

    def __init__(self, views: Sequence[Tensor], flat: Tensor) -> None:
        super().__init__(views)
        #: The vector as far as parameters reach, with the gaps between them.
        self.flat = flat
        #: Where each of the views lies. The vector stays where it is.
        self.addresses = np.array([view.data_ptr() for view in views], np.int64)


@dataclass(frozen=True)
class ShardLayout:
    """The layout of one shard."""

    parameters: tuple[ParameterSpan, ...]
    buffers: tuple[ParameterSpan, ...]
    length: int  # elements

    def parameter_views(self, flat: Tensor) -> list[Tensor]:
        return [flat[p.start : p.start + p.size].view(p.shape) for p in self.parameters]

    def flat_views(self, flat: Tensor) -> FlatViews:
        stop = max((p.start + p.size for p in self.parameters), default=0)
        return FlatViews(self.parameter_views(flat), flat[:stop])

    def buffer_views(self, flat: Tensor) -> list[Tensor]:
        return [flat[p.start : p.start + p.size].view(p.shape) for p in self.buffers]


@dataclass(frozen=True)
class Layout:
    """The layout of the whole model."""

    dtype: torch.dtype
    shards: tuple[ShardLayout, ...]

    @property
    def buffers(self) -> tuple[ParameterSpan, ...]:
        return self.shards[0].buffers

    @property
    def bytes_per_number(self) -> int:
        return self.dtype.itemsize

    @property
    def numbers(self) -> int:
        return sum(shard.length for shard in self.shards)

    @property
    def bytes(self) -> int:
        return self.numbers * self.bytes_per_number

    def in_shards(self, count: int) -> Layout:
        """Return the parameters of a layout in one shard in `count` shards, balanced by size."""
        (shard,) = self.shards
        spans, moved = {p.name: p for p in shard.parameters}, [(b.name, b.shape) for b in shard.buffers]
        groups = _balance({name: p.size for name, p in spans.items()}, count)
        shapes = ([(name, spans[name].shape) for name in group] for group in groups)
        return Layout(self.dtype, tuple(_shard(s, [] if n else moved, self.dtype) for n, s in enumerate(shapes)))

    def collect(self, flats: Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
        """Return the named parameters and buffers as views of the shards' flat memory."""
        named = {}
        for shard, flat in zip(self.shards, flats, strict=True):
            views = [*shard.parameter_views(flat), *shard.buffer_views(flat)]
            named.update({p.name: v for p, v in zip((*shard.parameters, *shard.buffers), views, strict=True)})
        return [named[name] for name in names]


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training may change, each once (tied weights share one)."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def not_trained(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that a model may change itself: buffers, and parameters that require no gradient."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    return frozen | dict(module.named_buffers())


def check_trainable(module: nn.Module) -> torch.dtype:
    """Return the parameters' type. Raise `JobError` for a module without any to train, or with several types."""
    parameters = trainable(module)
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise JobError(
                f"{path or 'the model'} is a module of TorchScript, of which every copy has parameters that cannot be "
                "trained; give the nn.Module that it was made of, or compile_options={} for torch.compile"
            )
    if not parameters:
        raise JobError(f"{type(module).__name__} has no parameter that requires a gradient: nothing to train")
    lazy = [name for name, p in parameters.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise JobError(
            f"parameter {lazy[0]} has no shape yet (a lazy module): run one batch through the model in model="
        )
    if bare := [name for name, tensor in module.state_dict().items() if tensor.is_meta]:
        raise JobError(
            f"{bare[0]} is on the meta device and has no values; let model= fill it, as by "
            "module.to_empty(device='cpu') and load_state_dict"
        )
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                raise JobError(
                    f"{path or type(module).__name__} holds {name}, a tensor computed from others, so the model "
                    "cannot be copied; compute it in forward, or by a parametrization of torch.nn.utils.parametrize"
                )
    if complex_one := next((name for name, p in parameters.items() if p.is_complex()), None):
        raise JobError(
            f"parameter {complex_one} is complex, and parameters are kept as real numbers; make it "
            "nn.Parameter(torch.view_as_real(values)), and use torch.view_as_complex of it in forward"
        )
    dtypes = {p.dtype for p in parameters.values()}
    if len(dtypes) > 1:
        raise JobError(
            f"the model's parameters are of {len(dtypes)} types ({', '.join(sorted(map(str, dtypes)))}); "
            "make them one, as in model.float()"
        )
    return dtypes.pop()


def lay_out(module: nn.Module, shards: int, moving: Sequence[str]) -> Layout:
    """Lay out a module's parameters in at most `shards` shards, with the buffers that training changes."""
    dtype, parameters = check_trainable(module), trainable(module)
    buffers = not_trained(module)
    moved = [(name, tuple(buffers[name].shape)) for name in moving]
    groups = _balance({name: p.numel() for name, p in parameters.items()}, min(shards, len(parameters)))
    layouts = [
        _shard([(name, tuple(parameters[name].shape)) for name in group], moved if number == 0 else [], dtype)
        for number, group in enumerate(groups)
    ]
    return Layout(dtype, tuple(layouts))


def lay_out_tensors(parameters: Sequence[tuple[str, Tensor]], moving: Sequence[tuple[str, Tensor]]) -> Layout:
    """Lay out these parameters and buffers in one shard."""
    dtype = parameters[0][1].dtype if parameters else torch.get_default_dtype()
    shapes, moved = ([(name, tuple(t.shape)) for name, t in each] for each in (parameters, moving))
    return Layout(dtype, (_shard(shapes, moved, dtype),))


def _shard(
    parameters: list[tuple[str, tuple[int, ...]]],
    buffers: list[tuple[str, tuple[int, ...]]],
    dtype: torch.dtype,
) -> ShardLayout:
    step, start = ALIGN // dtype.itemsize, 0
    spans: list[ParameterSpan] = []
    for name, shape in [*parameters, *buffers]:
        spans.append(ParameterSpan(name, shape, start, prod(shape)))
        start += -(-prod(shape) // step) * step
    return ShardLayout(tuple(spans[: len(parameters)]), tuple(spans[len(parameters) :]), start)


def _balance(sizes: dict[str, int], count: int) -> list[list[str]]:
    """Put the largest first into the lightest group; keep the model's own order within each."""
    groups: list[list[str]] = [[] for _ in range(count)]
    weights = [0] * count
    for name in sorted(sizes, key=lambda n: -sizes[n]):
        lightest = min(range(count), key=lambda g: weights[g])
        groups[lightest].append(name)
        weights[lightest] += sizes[name]
    order = {name: number for number, name in enumerate(sizes)}
    return [sorted(group, key=order.__getitem__) for group in groups]


def state_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer that a module saves, by name."""
    return {name: value for name, value in sorted(module.state_dict().items()) if isinstance(value, Tensor)}


def sha256(module: nn.Module) -> str:
    """Return the SHA-256 of every parameter and buffer, by name."""
    digest = hashlib.sha256()
    for name, tensor in state_tensors(module).items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        raw = tensor.detach().cpu().contiguous().flatten()
        digest.update(raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b"")
    return digest.hexdigest()


# --- The parameters of a layout in fragments that are exchanged one after another, as Streaming DiLoCo does -----------
# A fragment is some whole tensors. The moving buffers travel with the first one.

T = TypeVar("T")


@dataclass(frozen=True)
class Fragments:
    """The fragments of a layout in one shard; of any other layout there is one, which is the layout itself."""

    #: The whole, with a shard for each fragment.
    layout: Layout
    #: The layout of each fragment alone.
    each: tuple[Layout, ...]
    #: The numbers of the parameters of each fragment.
    numbers: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(layout: Layout, count: int) -> Fragments:
        names = {span.name: number for shard in layout.shards for number, span in enumerate(shard.parameters)}
        if count == 1:
            return Fragments(layout, (layout,), (tuple(range(len(names))),))
        sharded = layout.in_shards(count)
        numbers = tuple(tuple(names[span.name] for span in shard.parameters) for shard in sharded.shards)
        return Fragments(sharded, tuple(Layout(sharded.dtype, (shard,)) for shard in sharded.shards), numbers)

    def of_number(self, number: int, each: Sequence[T]) -> T:
        """Return what belongs to the fragment of the exchange of this number."""
        return each[number % len(self.each)]

    def __len__(self) -> int:
        return len(self.each)
