"""The slow printer: a program as plain Python loops over NumPy. It is the reference, and shows what a program means.

A number of a sample is an array over all samples of the batch; there are no groups, blocks, lanes or chunks, and every
statement is printed as it stands in the program.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from paceline.kernels.ir import (
    FORBIDDEN,
    Apply,
    BatchSum,
    CausalMask,
    Contract,
    DropoutMask,
    Expression,
    FunctionCall,
    Index,
    Kind,
    Lookup,
    Loops,
    Loss,
    MaxPool,
    MaxPoolGradient,
    Number,
    Op,
    Program,
    Ref,
    Repeat,
    RunningStatistic,
    Scatter,
    Softmax,
    SoftmaxGradient,
    Statement,
    Tokens,
    replaced,
)
from paceline.kernels.losses import SCORE, TARGET

Lines = Iterator[str]
WORD = 0xFFFFFFFF  # of 32 bits


def text(program: Program) -> str:
    """The body of a function of `b`, the buffers by name."""
    lines: list[str] = []
    for statement in (*program.forward, *program.backward):
        lines += _lines(program, statement, "")
    return "\n".join(lines)


def _lines(program: Program, it: Statement, indent: str) -> Lines:
    """A statement as lines of Python."""
    match it:
        case Contract():
            yield from _contract(program, it, indent)
        case Apply():
            deep = yield from _open(it.loops, indent)
            yield f"{deep}{_place(it.target)} {'+=' if it.add else '='} {_value(it.value)}"
        case MaxPool():
            deep = yield from _open(it.loops, indent)
            yield f"{deep}{_place(it.target)} = -inf"
            deep = yield from _window(program, it, deep)
            yield f"{deep}{_place(it.target)} = maximum({_place(it.target)}, {_place(it.source)})"
        case MaxPoolGradient(forward=forward):
            deep = yield from _open(forward.loops, indent)
            yield f"{deep}rest = {_place(it.gradient)}.copy()"
            deep = yield from _window(program, forward, deep)
            yield f"{deep}here = where({_place(forward.source)} == {_place(forward.target)}, rest, 0)"
            yield f"{deep}{_place(it.into)} += here"
            yield f"{deep}rest -= here"
        case Softmax(target=target, source=source):
            deep, row = (yield from _open(it.loops, indent)), f"for {it.along.name} in range({it.along.extent}):"
            yield f"{deep}highest, total = -inf, 0"
            yield f"{deep}{row} highest = maximum(highest, {_place(source)})"
            yield f"{deep}{row} {_place(target)} = exp({_place(source)} - highest)"
            yield f"{deep}{row} total = total + {_place(target)}"
            yield f"{deep}{row} {_place(target)} /= total"
        case SoftmaxGradient(forward=forward, gradient=gradient, into=into):
            deep, along = (yield from _open(forward.loops, indent)), forward.along
            row, share = f"for {along.name} in range({along.extent}):", _place(forward.target)
            yield f"{deep}mean = 0"
            yield f"{deep}{row} mean = mean + {share} * {_place(gradient)}"
            yield f"{deep}{row} {_place(into)} {'+=' if it.add else '='} {share} * ({_place(gradient)} - mean)"
        case Repeat(loop=loop, body=body, backwards=backwards):
            yield f"{indent}for {loop.name} in {'reversed' if backwards else ''}(range({loop.extent})):"
            for inner in body:
                yield from _lines(program, inner, indent + "    ")
        case Lookup(target=target, table=table):
            yield f"{indent}b[{target.buffer!r}][:] = lookup(b[{table!r}], {_rows_named(it.numbers)})"
        case Scatter(gradient=gradient, table=table, padding=padding):
            yield f"{indent}scatter(b[{table!r}], {_rows_named(it.numbers)}, b[{gradient.buffer!r}], {padding})"
        case Tokens(target=target):
            yield f"{indent}b[{target!r}][:] = moveaxis(tokens, 0, -1)"
        case DropoutMask(target=target, rate=rate, number=number):
            yield f"{indent}noise(b[{target!r}], {rate}, {number})"
        case CausalMask(target=target):
            yield f"{indent}causal(b[{target!r}])"
        case BatchSum(target=target, source=source):
            yield f"{indent}b[{target!r}][:] = b[{source!r}].sum(-1, keepdims=True)"
        case RunningStatistic(moving=moving, value=value, momentum=momentum):
            grown = f"(n * {it.places} / (n * {it.places} - 1))" if it.unbiased else "1"
            yield f"{indent}b[{moving!r}] += {momentum} * (b[{value!r}][..., 0] * {grown} - b[{moving!r}])"
        case Loss(loss=loss, scores=scores):
            more = f", {it.places}, {it.weights}, {it.ignored}" if it.labels else ""
            if it.own is not None:
                value, slope = map(_own, it.own)
                loss = f"errors(lambda s, y, _: {value}, lambda s, y, _: 0 * s + {slope})"
            yield f"{indent}loss = {loss}(b[{scores!r}], b[{'d_' + scores!r}], wanted, {it.number!r}{more})"


def _rows_named(numbers: str) -> str:
    """The numbers of a table's rows, a sample in each row."""
    return f"moveaxis(b[{numbers!r}], -1, 0).astype(int)" if numbers else "tokens"


def _own(value: Expression) -> str:
    return (
        _value(replaced(value, {SCORE: Ref("s", ()), TARGET: Ref("y", ())}))
        .replace("b['s'][()]", "s")
        .replace("b['y'][()]", "y")
    )


def _contract(program: Program, it: Contract, indent: str) -> Lines:
    factors = " * ".join(_place(ref) for ref in (it.left, it.right) if ref is not None)
    if program.buffers[it.target.buffer].kind is Kind.GRADIENT:
        deep = yield from _open(it.loops, indent)
        yield f"{deep}{_place(it.target)} += ({factors}).sum()"
        return
    if not it.add:
        deep = yield from _open(it.fixed(), indent)
        yield f"{deep}{_place(it.target)} = {'0' if it.start is None else _place(it.start)}"
    deep = yield from _open(it.loops, indent)
    yield f"{deep}{_place(it.target)} += {factors}"


def _open(loops: Loops, indent: str) -> Generator[str, None, str]:
    for loop in loops:
        yield f"{indent}for {loop.name} in range({loop.extent}):"
        indent += "    "
    return indent


def _window(program: Program, it: MaxPool, indent: str) -> Generator[str, None, str]:
    deep = yield from _open(it.window, indent)
    extents = program.shape(it.source.buffer)
    tests = [f"0 <= {_index(i)} < {n}" for i, n in zip(it.source.index[1:], extents[1:], strict=True)]
    yield f"{deep}if not ({' and '.join(tests) or True}): continue"
    return deep


def _place(ref: Ref) -> str:
    return f"b[{ref.buffer!r}][{', '.join(map(_index, ref.index)) or '()'}]"


def _index(index: Index) -> str:
    terms = [f"{stride} * {name}" for name, stride in index.terms]
    return " + ".join([*terms, str(index.shift)] if index.shift or not terms else terms)


def _value(value: Expression) -> str:
    match value:
        case Number(number):
            return repr(number)
        case Ref():
            return _place(value)
        case Op(sign, left, right):
            return f"({_value(left)} {sign} {_value(right)})"
        case FunctionCall(function, argument):
            return f"{function}({_value(argument)})"
    raise AssertionError(value)


# --- running it -----------------------------------------------------------------------------------------------------


def run(
    program: Program, weights: Mapping[str, Any], x: np.ndarray, y: np.ndarray, seed: int = 0
) -> tuple[float, dict[str, np.ndarray]]:
    """(mean loss, gradients by parameter); moving statistics in `weights` are changed in place."""
    n = len(x)
    b: dict[str, np.ndarray] = {}
    for name, buffer in program.buffers.items():
        if buffer.base:
            continue
        samples = (n,) if buffer.kind is Kind.SAMPLE else ()
        b[name] = weights[name] if buffer.kind is Kind.WEIGHT else np.zeros((*buffer.shape, *samples))
    for name, buffer in program.buffers.items():
        if buffer.base:
            b[name] = b[buffer.base].reshape(*buffer.shape, *((n,) if buffer.kind is Kind.SAMPLE else ()))
    if not program.tokens:
        b["input"][:] = np.moveaxis(x, 0, -1)
    if "share" in b:
        b["share"][:] = 1.0 / n
    words = {**FUNCTIONS, "b": b, "wanted": y, "n": n, "tokens": x, "noise": _noise(n, seed)}
    exec(compile(text(program), "<program>", "exec"), words)
    gradients = {name[2:]: b[name] for name, buffer in program.buffers.items() if buffer.kind is Kind.GRADIENT}
    return float(words["loss"]), gradients


def _cross_entropy(
    scores: np.ndarray,
    gradient: np.ndarray,
    y: np.ndarray,
    smoothing: float,
    places: int,
    weights: tuple[float, ...],
    ignored: int,
) -> float:
    n = scores.shape[-1]
    rows = scores.reshape(places, -1, n)
    classes, labels = rows.shape[1], y.reshape(n, places).T
    powers = np.exp(rows - rows.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    counts = np.where(labels == ignored, 0.0, np.array(weights or [1.0] * classes)[labels % classes])
    targets = np.full(rows.shape, smoothing / classes)
    where = np.arange(places)[:, None], labels % classes, np.arange(n)[None, :]
    targets[where] += 1 - smoothing
    counts = counts[:, None, :] / counts.sum()
    gradient[:] = (counts * (shares - targets)).reshape(gradient.shape)
    return float(-(counts * targets * np.log(shares)).sum())


def _errors(value: Any, slope: Any) -> Any:
    """A loss of each score and its target."""

    def loss(scores: np.ndarray, gradient: np.ndarray, y: np.ndarray, number: float) -> float:
        targets = y.reshape(len(y), -1).T
        gradient[:] = slope(scores, targets, number) / scores.size
        return float(value(scores, targets, number).mean())

    return loss


LOSSES: dict[str, Any] = {
    "cross_entropy": _cross_entropy,
    "squared_error": _errors(lambda s, y, _: (s - y) ** 2, lambda s, y, _: 2 * (s - y)),
    "absolute_error": _errors(lambda s, y, _: abs(s - y), lambda s, y, _: np.sign(s - y)),
    "smooth_error": _errors(
        lambda s, y, k: np.where(abs(s - y) < k, (s - y) ** 2 / (2 * k), abs(s - y) - k / 2),
        lambda s, y, k: np.clip((s - y) / k, -1, 1),
    ),
    "huber_error": _errors(
        lambda s, y, k: np.where(abs(s - y) < k, (s - y) ** 2 / 2, k * (abs(s - y) - k / 2)),
        lambda s, y, k: np.clip(s - y, -k, k),
    ),
    "share_entropy": _errors(
        lambda s, y, _: -(y * np.maximum(np.log(s), -100) + (1 - y) * np.maximum(np.log(1 - s), -100)),
        lambda s, y, _: (s - y) / np.maximum(s * (1 - s), 1e-12),
    ),
    "binary_cross_entropy": _errors(
        lambda s, y, _: np.maximum(s, 0) - s * y + np.log1p(np.exp(-abs(s))), lambda s, y, _: 1 / (1 + np.exp(-s)) - y
    ),
}


def _lookup(table: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.moveaxis(table[tokens], 0, -1)


def _scatter(table: np.ndarray, tokens: np.ndarray, gradient: np.ndarray, padding: int | None) -> None:
    np.add.at(table, tokens, np.moveaxis(gradient, -1, 0))
    if padding is not None:
        table[padding] = 0


def _mixed(h: np.ndarray) -> np.ndarray:
    """The hash of the generated text, on 32 bits."""
    h = h.astype(np.uint64)
    h ^= h >> np.uint64(16)
    h = h * np.uint64(0x7FEB352D) & np.uint64(WORD)
    h ^= h >> np.uint64(15)
    h = h * np.uint64(0x846CA68B) & np.uint64(WORD)
    return h ^ (h >> np.uint64(16))


def _whole(value: int) -> np.ndarray:
    return np.array([value & WORD], np.uint64)


def _noise(samples: int, seed: int) -> Any:
    start = int(_mixed(_whole(seed) ^ _mixed(_whole(seed >> 32)))[0])

    def fill(mask: np.ndarray, rate: float, layer: int) -> None:
        places = np.arange(mask[..., 0].size, dtype=np.uint64).reshape(*mask.shape[:-1], 1)
        salt = _mixed(
            np.uint64(start) ^ _mixed((places + np.uint64(layer * 0x9E3779B9 & 0xFFFFFFFF)) & np.uint64(WORD))
        )
        position = np.arange(samples, dtype=np.uint64) * np.uint64(0x85EBCA6B)
        drawn = _mixed((salt + position) & np.uint64(WORD))
        mask[:] = np.where(drawn < np.uint64(rate * 4294967296.0), 0.0, 1.0 / (1.0 - rate))

    return fill


def _causal(mask: np.ndarray) -> None:
    steps = len(mask)
    mask[:] = np.where(np.arange(steps)[None, :] > np.arange(steps)[:, None], FORBIDDEN, 0.0)[:, :, None]


_erf = np.vectorize(math.erf)


def _gelu_slope(x: np.ndarray) -> np.ndarray:
    slope: np.ndarray = 0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return slope


def _silu_slope(x: np.ndarray) -> np.ndarray:
    s = 1 / (1 + np.exp(-x))
    slope: np.ndarray = s * (1 + x * (1 - s))
    return slope


def _inner(x: np.ndarray) -> np.ndarray:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _gelu_tanh_slope(x: np.ndarray) -> np.ndarray:
    t = np.tanh(_inner(x))
    slope: np.ndarray = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return slope


FUNCTIONS: dict[str, Any] = {
    "inf": np.inf,
    "maximum": np.maximum,
    "where": np.where,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "reciprocal": lambda x: 1 / x,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "silu_slope": _silu_slope,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "root": np.sqrt,
    "causal": _causal,
    "relu": lambda x: np.maximum(x, 0),
    "step": lambda x: (x > 0).astype(float),
    "reciprocal_root": lambda x: 1 / np.sqrt(x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_slope": _gelu_slope,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(_inner(x))),
    "gelu_tanh_slope": _gelu_tanh_slope,
    **LOSSES,
    "errors": _errors,
    "moveaxis": np.moveaxis,
    "lookup": _lookup,
    "scatter": _scatter,
}
