"""What every kind of layer is made with: how a module is seen, what is found in it, how its statements are written.

A file here is a kind of layer: how it is recognised in a module, and what it computes, once, forwards. Its row stands
in the table of `__init__`. The way back is derived (adjoint.py). What has one dimension is an image one pixel high.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from paceline.kernels.ir import Apply, DropoutMask, Index, Loop, Loops, Op, Program, Ref, at
from paceline.kernels.ir import CannotFuse as CannotFuse

Shape = tuple[int, ...]


#: How many samples there are, where a forward asks.
BATCH = object()


@dataclass(frozen=True)
class Layer:
    """A layer as data."""

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
    """All layers of a module, and what goes in and comes out."""

    layers: tuple[Layer, ...]
    inputs: Shape
    tokens: bool  # the input is whole numbers
    result: str
    numbers: Mapping[str, Tensor] = field(default_factory=dict)  # constants, as layers' weights name them

    def __str__(self) -> str:
        return "\n".join([f"input: {'x'.join(map(str, self.inputs))}", *map(str, self.layers)])


@dataclass(frozen=True)
class HeldTensor:
    """A parameter, buffer or constant that a function is given: all of it or its first rows, in some shape and order.

    Its dimension d is dimension `order[d]` of the tensor in the shape `view`.
    """

    name: str
    shape: Shape
    tensor: Tensor = field(compare=False)
    view: Shape | None = None
    order: tuple[int, ...] | None = None

    @property
    def whole(self) -> bool:
        """Whether it is the tensor as it is."""
        return self.view is None and self.order is None and self.shape == tuple(self.tensor.shape)


@dataclass(frozen=True)
class CallSite:
    """A module or function as a row of the tables sees it."""

    name: str
    what: str  # as a message names it
    path: str  # of the module's parameters
    shapes: tuple[Shape, ...]
    inputs: tuple[str, ...] = ()  # the layers that they come from
    given: Mapping[str, Any] = field(default_factory=dict)  # by keyword
    axis: int | None = 0  # the dimension of the samples in a batch; None where there is none: a function of parameters

    def dimension(self, number: Any, count: int | None = None) -> int:
        """A dimension of a batch as one of its samples; that of the samples is refused."""
        count = len(self.shapes[0]) if count is None else count
        axis = count if self.axis is None else self.axis
        ndim = count + (self.axis is not None)
        if not isinstance(number, int) or not -ndim <= number < ndim or number % ndim == axis:
            raise CannotFuse(
                f"{self.what} goes over dimension {number}, the samples': kernels know one sample at a time"
            )
        return number % ndim - (number % ndim > axis)

    def without(self, dimensions: set[int]) -> int | None:
        """The samples' dimension where these dimensions of a sample are gone."""
        return None if self.axis is None else self.axis - sum(d < self.axis for d in dimensions)


def trains(part: nn.Module, site: CallSite) -> None:
    """Refuses layers in evaluation mode that compute something else then: kernels are for training."""
    if not part.training:
        raise CannotFuse(f"{site.what} is in evaluation mode, and kernels are for training: call model.train() before")


#: A layer's kind, shape and options, and the words of its parameters, or their names by word.
LayerSpec = tuple[str, Shape, dict[str, Any], tuple[str, ...] | dict[str, str]]


# recognising.


def pair(value: Any, count: int) -> tuple[int, ...]:
    """A value for each dimension."""
    return tuple(value) if isinstance(value, tuple | list) else (value,) * count


def image_shape(site: CallSite, dimensions: int) -> tuple[int, ...]:
    """The shape of the samples, which need to be images of so many dimensions."""
    shape = site.shapes[0]
    if len(shape) != dimensions + 1:
        raise CannotFuse(f"{site.what} gets samples of shape {shape}; it wants {dimensions + 1} dimensions")
    return shape


def windows(site: CallSite, sizes: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Shape:
    """The sizes of the images that result where a window moves over images of `sizes`."""
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    for size, span, pad in zip(sizes, reach, padding, strict=True):
        if span > size + 2 * pad:
            raise CannotFuse(
                f"{site.what} has a kernel that spans {'x'.join(map(str, reach))}, and gets images of "
                f"{'x'.join(map(str, sizes))} with padding {'x'.join(map(str, padding))}: the kernel is larger"
            )
    return tuple((n + 2 * p - r) // s + 1 for n, p, r, s in zip(sizes, padding, reach, stride, strict=True))


def weights_of(part: nn.Module, *words: str) -> tuple[str, ...]:
    """The words for which the module has a parameter."""
    return tuple(word for word in words if getattr(part, word, None) is not None)


#: Methods that say what a layer computes.
COMPUTING = ("forward", "__call__", "_conv_forward", "_sa_block", "_mha_block", "_ff_block")

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(part: nn.Module) -> bool:
    """Whether calling a module calls more than its forward."""
    return any(vars(part).get(word) for word in HOOKS)


def kind_of(part: nn.Module, kinds: Iterable[type[nn.Module]]) -> type[nn.Module] | None:
    """The kind of layer that a module is; None for a subclass or an instance that computes something else."""

    def computes_as(kind: type[nn.Module], word: str) -> bool:
        return word not in vars(part) and getattr(type(part), word, None) is getattr(kind, word, None)

    return next(
        (kind for kind in kinds if isinstance(part, kind) and all(computes_as(kind, word) for word in COMPUTING)), None
    )


# lowering.


def loops_of(names: str, extents: Shape) -> Loops:
    """Loops by name."""
    return tuple(Loop(name, extent) for name, extent in zip(names.split(), extents, strict=True))


def everywhere(program: Program, name: str) -> tuple[Loops, Ref]:
    """Loops over all of a buffer, and the place that they name."""
    shape = program.shape(name)
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(shape))
    return loops, Ref(name, at(*(loop.name for loop in loops)))


def dropped(program: Program, layer: Layer, source: str, target: str, number: int) -> str:
    """What dropout leaves of a buffer, in another one: a product with a mask that every update draws."""
    loops, place = everywhere(program, source)
    count = 1 if layer.options.get("channels") else len(loops)
    mask = Ref(program.new(f"{target}.mask", program.shape(source)[:count]), place.index[:count])
    program.forward.append(DropoutMask(mask.buffer, layer.options["rate"], number, layer.name))
    masked = Ref(program.new(target, program.shape(source)), place.index)
    program.forward.append(Apply(loops, masked, Op("*", place, mask), layer=layer.name))
    return target


def start_of(layer: Layer, word: str, *place: str | tuple[str | int, ...]) -> Ref | None:
    """The place that sums begin with, if the layer has such a parameter."""
    return Ref(layer.weights[word], at(*place)) if word in layer.weights else None


def as_images(program: Program, layer: Layer, source: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """The source as images of two dimensions, with a margin of zeros where the layer asks for one; its options, too."""
    flat = len(layer.options["kernel"]) == 1
    words = {
        word: ((neutral, *layer.options[word]) if flat else layer.options[word])
        for word, neutral in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
        if word in layer.options
    }
    channels, *sizes = program.shape(source)
    if flat:
        source = program.view(f"{layer.name}.image", source, (channels, 1, *sizes))
    top, left = words.get("padding", (0, 0))
    if (top or left) and layer.kind != "highest_pooling":
        channels, height, width = program.shape(source)
        padded = program.new(f"{layer.name}.padded", (channels, height + 2 * top, width + 2 * left))
        loops = loops_of("c y x", (channels, height, width))
        target = Ref(padded, at("c", ("y", 1, top), ("x", 1, left)))
        program.forward.append(Apply(loops, target, Ref(source, at("c", "y", "x")), layer=layer.name))
        source = padded
    return source, words


def maps(layer: Layer) -> tuple[Shape, Callable[..., tuple[Index, ...]]]:
    """The extents of the result as images, and how a place in it is written."""
    channels, *sizes = layer.shape
    if len(sizes) == 2:
        return layer.shape, lambda c: at(c, "y", "x")
    return (channels, 1, *sizes), lambda c: at(c, "x")
