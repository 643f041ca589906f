"""Layers that work number by number: activations, dropout, expressions of several operands; and other names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline.kernels import functions
from paceline.kernels.functions import applied, named, power
from paceline.kernels.ir import FORBIDDEN, Apply, Expression, FunctionCall, Loop, Number, Op, Program, Ref, at
from paceline.kernels.layers.base import (
    BATCH,
    CallSite,
    CannotFuse,
    HeldTensor,
    Layer,
    LayerSpec,
    Shape,
    dropped,
    everywhere,
    trains,
)


def function(name: str) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for an activation of this name."""
    return lambda part, seen: ("activation", seen.shapes[0], {"function": name}, ())


def formula(name: str, *words: str) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for an activation of this name, whose numbers are attributes of the module."""

    def row(part: Any, site: CallSite) -> LayerSpec:
        numbers = (getattr(part, word) for word in words)
        return "activation", site.shapes[0], {"function": functions.named(name, *numbers)}, ()

    return row


def gelu(part: nn.GELU, site: CallSite) -> LayerSpec:
    """The exact GELU, or its approximation by tanh."""
    return "activation", site.shapes[0], {"function": "gelu" if part.approximate == "none" else "gelu_tanh"}, ()


def same(part: nn.Module, site: CallSite) -> LayerSpec:
    """A layer that does nothing."""
    return "same", site.shapes[0], {}, ()


def dropout(part: nn.Dropout, site: CallSite) -> LayerSpec:
    """Dropout, or nothing if its rate is 0."""
    if part.p == 0:
        return same(part, site)
    trains(part, site)
    return "dropout", site.shapes[0], {"rate": part.p}, ()


def dropout_of_channels(part: Any, site: CallSite) -> LayerSpec:
    """Dropout of whole channels."""
    kind, shape, options, weights = dropout(part, site)
    return kind, shape, {**options, "channels": True} if kind == "dropout" else options, weights


def no_dropout(part: Any, site: CallSite) -> LayerSpec:
    """A layer of dropout that has a kernel only where it drops nothing."""
    if part.p:
        raise CannotFuse(f"{site.what} has no kernel; nn.Dropout has")
    return same(part, site)


def flatten(part: nn.Flatten, site: CallSite) -> LayerSpec:
    """A reshape."""
    return "reshape", flat(site, part.start_dim, part.end_dim), {}, ()


def flat(site: CallSite, start_dim: int = 0, end_dim: int = -1) -> Shape:
    """The shape that results when dimensions `start_dim` to `end_dim` become one."""
    shape = site.shapes[0]
    if site.axis != 0:
        raise CannotFuse(f"{site.what} flattens numbers whose samples are not the first dimension; transpose them")
    last = end_dim if end_dim >= 0 else len(shape) + 1 + end_dim
    if start_dim < 1:
        raise CannotFuse(f"{site.what} mixes samples; flatten from dimension 1 on")
    return (*shape[: start_dim - 1], prod(shape[start_dim - 1 : last]), *shape[last:])


def operation(sign: str, args: list[Any], site: CallSite) -> LayerSpec | None:
    """A sum, difference or product of two branches of one shape, or of a branch and a number; None if it is another."""
    if site.given or len(args) != 2:
        return None
    shape, has_parameter = site.shapes[0], any(isinstance(arg, HeldTensor) for arg in args)
    number = next((arg for arg in args if isinstance(arg, int | float)), None)
    if number is not None and not has_parameter and not (sign == "/" and args[0] is number):
        first, value = args[0] is number, float(number)
        factor, shift = {
            "+": (1.0, value),
            "-": (-1.0, value) if first else (1.0, -value),
            "*": (value, 0.0),
            "/": (1 / value if value else 0.0, 0.0),
        }[sign]
        return "scale", shape, {"factor": factor, "shift": shift}, ()
    if sign == "/" or has_parameter or len(site.shapes) != 2 or shape != site.shapes[1]:
        return None
    return {"+": "add", "-": "difference", "*": "product"}[sign], shape, {}, ()


def dropout_function(site: CallSite, p: float = 0.5, training: bool = True, inplace: bool = False) -> LayerSpec:
    """F.dropout, as a module would do it."""
    return dropout(nn.Dropout(p), site) if training else same(nn.Identity(), site)


def unflatten(part: nn.Unflatten, site: CallSite) -> LayerSpec:
    """A reshape."""
    if not isinstance(part.dim, int):
        raise CannotFuse(f"{site.what}: named dimensions have no kernel")
    return unflattened(site, part.dim, part.unflattened_size)


def unflattened(site: CallSite, dim: int, sizes: Any) -> LayerSpec:
    """One dimension as several."""
    shape, d, sizes = site.shapes[0], site.dimension(dim), list(sizes)
    if any(not isinstance(n, int) for n in sizes):
        raise CannotFuse(f"{site.what} asks for a size that is not known")
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[d] // -prod(sizes)
    return (
        "reshape",
        (*shape[:d], *sizes, *shape[d + 1 :]),
        {"axis": site.axis and site.axis + (d < site.axis) * (len(sizes) - 1)},
        (),
    )


def lower_activation(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A function at every place."""
    loops, place = everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), place.index)
    program.forward.append(Apply(loops, target, functions.applied(layer.options["function"], place), layer=layer.name))
    return layer.name


def lower_pair(sign: str) -> Callable[[Program, Layer, list[str], int], str]:
    """Two branches, number by number."""

    def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
        loops, one = everywhere(program, sources[0])
        target = Ref(program.new(layer.name, layer.shape), one.index)
        both = Op(sign, one, Ref(sources[-1], one.index))
        program.forward.append(Apply(loops, target, both, layer=layer.name))
        return layer.name

    return lower


def lower_scale(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A number times each, and a number added."""
    loops, place = everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), place.index)
    value = Op("+", Op("*", place, Number(layer.options["factor"])), Number(layer.options["shift"]))
    program.forward.append(Apply(loops, target, value, layer=layer.name))
    return layer.name


def lower_reshape(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Another view of the same memory."""
    return program.view(layer.name, sources[0], layer.shape)


def lower_step(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A view of one step."""
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    place = at(*(loop.name for loop in loops))
    target = Ref(program.new(layer.name, layer.shape), place)
    source = Ref(sources[0], (*at(layer.options["step"]), *place))
    program.forward.append(Apply(loops, target, source, layer=layer.name))
    return layer.name


def lower_dropout(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A product with a mask that every update draws."""
    return dropped(program, layer, sources[0], layer.name, number)


# Expressions of several operands, number by number: sums and products, masks, roots, comparisons.
#
# An operand is what a layer gives, a parameter, or a number; where it has one number for a dimension, all places get
# it.

ONE = Number(1.0)


def _less(left: Expression, right: Expression) -> Expression:
    return FunctionCall("step", Op("-", right, left))


def _not(value: Expression) -> Expression:
    return Op("-", ONE, value)


def _equal(left: Expression, right: Expression) -> Expression:
    return Op("*", _not(_less(left, right)), _not(_less(right, left)))


def _either(left: Expression, right: Expression) -> Expression:
    return _not(Op("*", _not(left), _not(right)))


def _quotient(left: Expression, right: Expression) -> Expression:
    if isinstance(right, Number):
        return Op("*", left, Number(1 / right.value))
    return Op("*", left, FunctionCall("reciprocal", right))


def _larger(left: Expression, right: Expression) -> Expression:
    return Op("+", right, FunctionCall("relu", Op("-", left, right)))


def _smaller(left: Expression, right: Expression) -> Expression:
    return Op("-", left, FunctionCall("relu", Op("-", left, right)))


def _where(mask: Expression, one: Expression, other: Expression) -> Expression:
    return Op("+", Op("*", mask, one), Op("*", _not(mask), other))


def _filled(value: Expression, mask: Expression, number: Expression) -> Expression:
    if number == Number(-torch.inf):  # times nothing it would be no number
        number = Number(FORBIDDEN)
    return _where(mask, number, value)


def _clamped(value: Expression, *bounds: Number | None, **named: Number | None) -> Expression:
    """torch.clamp: its bounds are called min and max."""
    least, most = (named.get(word, bound) for word, bound in zip(("min", "max"), (*bounds, None, None), strict=False))
    value = value if least is None else _larger(value, least)
    return value if most is None else _smaller(value, most)


def _sum(sign: str) -> Callable[..., Expression]:
    """A sum or difference, the second operand times `alpha`."""

    def row(left: Expression, right: Expression, alpha: Number = ONE) -> Expression:
        return Op(sign, left, right if alpha == ONE else Op("*", right, alpha))

    return row


def _function(name: str) -> Callable[..., Expression]:
    """A function of one operand."""
    return lambda x: applied(name, x)


#: What each function is as an expression of its operands, a row each; numbers among them are of type `Number`.
EXPRESSIONS: dict[Any, Callable[..., Expression]] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), _sum("+")),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), _sum("-")),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul", "mul_"), lambda x, y: Op("*", x, y)),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, "div", "div_"), _quotient),
    **dict.fromkeys((operator.neg, torch.neg, "neg"), lambda x: Op("*", Number(-1.0), x)),
    **dict.fromkeys((operator.pow, torch.pow, "pow"), lambda x, y: power(x, y.value)),
    **dict.fromkeys((torch.square, "square"), lambda x: power(x, 2.0)),
    **dict.fromkeys((torch.maximum, "maximum"), _larger),
    **dict.fromkeys((torch.minimum, "minimum"), _smaller),
    **dict.fromkeys((torch.clamp, "clamp", "clip"), _clamped),
    **dict.fromkeys((torch.where,), _where),
    **dict.fromkeys((torch.masked_fill, "masked_fill", "masked_fill_"), _filled),
    **dict.fromkeys((operator.gt, torch.gt, "gt"), lambda x, y: _less(y, x)),
    **dict.fromkeys((operator.lt, torch.lt, "lt"), _less),
    **dict.fromkeys((operator.ge, torch.ge, "ge"), lambda x, y: _not(_less(x, y))),
    **dict.fromkeys((operator.le, torch.le, "le"), lambda x, y: _not(_less(y, x))),
    **dict.fromkeys((operator.eq, torch.eq, "eq"), _equal),
    **dict.fromkeys((operator.ne, torch.ne, "ne"), lambda x, y: _not(_equal(x, y))),
    **dict.fromkeys((operator.invert, torch.logical_not, "logical_not"), _not),
    **dict.fromkeys((operator.and_, torch.logical_and, "logical_and"), lambda x, y: Op("*", x, y)),
    **dict.fromkeys((operator.or_, torch.logical_or, "logical_or"), _either),
    **dict.fromkeys((operator.abs, torch.abs, "abs"), _function("abs")),
    **dict.fromkeys((torch.exp, "exp"), _function("exp")),
    **dict.fromkeys((torch.log, "log"), _function("log")),
    **dict.fromkeys((torch.log1p, "log1p"), lambda x: FunctionCall("log", Op("+", ONE, x))),
    **dict.fromkeys((torch.sqrt, "sqrt"), _function("root")),
    **dict.fromkeys((torch.rsqrt, "rsqrt"), _function("reciprocal_root")),
    **dict.fromkeys((torch.reciprocal, "reciprocal"), _function("reciprocal")),
    **dict.fromkeys((torch.sin, "sin"), _function("sin")),
    **dict.fromkeys((torch.cos, "cos"), _function("cos")),
    **dict.fromkeys((F.softplus,), lambda x, beta=ONE, threshold=ONE: applied(named("softplus", beta.value), x)),
    F.mish: _function("mish"),
    F.logsigmoid: _function("log_sigmoid"),
    F.softsign: _function("softsign"),
    F.tanhshrink: _function("tanhshrink"),
    F.prelu: lambda x, slope: prelu(x, slope),
}


def prelu(x: Expression, slope: Expression) -> Expression:
    """A slope of its own below zero."""
    return Op("+", FunctionCall("relu", x), Op("*", slope, Op("-", x, FunctionCall("relu", x))))


def prelu_module(part: nn.PReLU, site: CallSite) -> LayerSpec:
    """A slope of its own below zero, for each channel or for all."""
    count = len(site.shapes[0])
    shape = (part.num_parameters, *(1,) * (count - 1)) if part.num_parameters > 1 else (1,)
    slope = HeldTensor(f"{site.path}.weight", shape, part.weight, view=shape)
    return combined(prelu(Ref("0", ()), Ref("1", ())), [site.inputs[0], slope], site)


def expressed(make: Callable[..., Expression], args: Sequence[Any], site: CallSite, **kwargs: Any) -> LayerSpec | None:
    """The expression that `make` gives of these operands, or None if one of them is none."""
    operands: list[str | HeldTensor] = []
    kwargs = {word: value for word, value in kwargs.items() if word not in ("inplace", "out")}

    def word(value: Any) -> Any:
        if isinstance(value, bool | int | float):
            return Number(float(value))
        operands.append(value)
        return Ref(str(len(operands) - 1), ())

    if not all(isinstance(arg, str | HeldTensor | int | float) or arg is None for arg in (*args, *kwargs.values())):
        return None
    try:
        value = make(*(arg if arg is None else word(arg) for arg in args), **{k: word(v) for k, v in kwargs.items()})
    except (TypeError, AttributeError):  # another form of this function, such as a power with a tensor as exponent
        return None
    return combined(value, operands, site)


def combined(value: Expression, operands: Sequence[str | HeldTensor], site: CallSite) -> LayerSpec:
    """An expression whose reference "k" is operand k."""
    shapes = dict(zip(site.inputs, site.shapes, strict=True))
    ndim = max((len(shapes[o]) for o in operands if isinstance(o, str)), default=0)
    operand_shapes = [shapes[o] if isinstance(o, str) else _of_sample(o.shape, ndim, site) for o in operands]
    try:
        shape = tuple(torch.broadcast_shapes(*operand_shapes))
    except RuntimeError:
        raise CannotFuse(
            f"{site.what} combines samples of shapes {', '.join(map(str, operand_shapes))}: not of one shape"
        ) from None
    parameters = {str(k): (o, operand_shapes[k]) for k, o in enumerate(operands) if isinstance(o, HeldTensor)}
    options = {
        "value": value,
        "held": parameters,
        "layers": [str(k) for k, o in enumerate(operands) if isinstance(o, str)],
    }
    return "combined", shape, options, {word: o.name for word, (o, _) in parameters.items()}


def _of_sample(shape: Shape, dimensions: int, site: CallSite) -> Shape:
    """A parameter's shape beside samples of so many dimensions: without one for the samples, if it has that."""
    if site.axis is None:
        return shape
    axis = site.axis - (dimensions + 1 - len(shape))  # of the samples, in the parameter
    if axis < 0:
        return shape
    if shape[axis] != 1:
        raise CannotFuse(f"{site.what}: a parameter of shape {shape} has a number for each sample of a batch")
    return (*shape[:axis], *shape[axis + 1 :])


def lower_combined(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """The expression at every place of the result."""
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    places: dict[str, Ref] = {}
    for word, source in zip(layer.options["layers"], sources, strict=True):
        places[word] = Ref(source, spread(program.shape(source), layer.shape))
    for word, (parameter, shape) in layer.options["held"].items():
        places[word] = held_at(program, parameter, layer.weights[word], spread(shape, layer.shape))
    value = _placed(layer.options["value"], places)
    target = Ref(program.new(layer.name, layer.shape), at(*(loop.name for loop in loops)))
    program.forward.append(Apply(loops, target, value, layer=layer.name))
    return layer.name


def spread(shape: Shape, output_shape: Shape) -> tuple[Any, ...]:
    """The place of an operand of this shape, by the loops of the whole."""
    extra = len(output_shape) - len(shape)
    return at(*(0 if n == 1 else f"q{extra + d}" for d, n in enumerate(shape)))


def held_at(program: Program, parameter: HeldTensor, name: str, index: tuple[Any, ...]) -> Ref:
    """The place of a parameter that is given in another shape or order."""
    shape = program.shape(name)
    if parameter.view is not None:
        name = program.view(f"{name}.as{'x'.join(map(str, parameter.view))}", name, parameter.view)
        shape = parameter.view
    index = (*at(*[0] * (len(parameter.shape) - len(index))), *index)
    if parameter.order is not None:
        index = tuple(index[parameter.order.index(d)] for d in range(len(parameter.order)))
    return Ref(name, (*at(*[0] * (len(shape) - len(index))), *index))


def materialised(parameter: HeldTensor) -> LayerSpec:
    """A parameter as a layer gives it."""
    value = {"value": Ref("0", ()), "held": {"0": (parameter, parameter.shape)}, "layers": []}
    return "combined", parameter.shape, value, {"0": parameter.name}


def expanded(site: CallSite, sizes: Sequence[Any]) -> LayerSpec:
    """A dimension of one number as several: x.expand(-1, 5, -1)."""
    shape, axis = site.shapes[0], site.axis
    sizes = list(sizes)
    if axis is not None:
        batch_dim = axis + len(sizes) - len(shape) - 1
        if sizes[batch_dim] is not BATCH and sizes[batch_dim] != -1:
            raise CannotFuse(f"{site.what} asks for a number of samples")
        del sizes[batch_dim]
    padded_shape = (*[1] * (len(sizes) - len(shape)), *shape)
    expanded_shape = tuple(n if size == -1 else size for size, n in zip(sizes, padded_shape, strict=True))
    if any(not isinstance(n, int) for n in expanded_shape):
        raise CannotFuse(f"{site.what} makes another row of each sample")
    return "combined", expanded_shape, {"value": Ref("0", ()), "held": {}, "layers": ["0"]}, ()


def _placed(value: Expression, places: dict[str, Ref]) -> Expression:
    match value:
        case Ref(name):
            return places[name]
        case Op(sign, left, right):
            return Op(sign, _placed(left, places), _placed(right, places))
        case FunctionCall(function, argument):
            return FunctionCall(function, _placed(argument, places))
    return value
