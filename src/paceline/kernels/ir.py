"""The words of a program: buffers, affine places in them, and the few statements that training a network needs.

A program is written for *one sample*. Whoever prints it decides how many samples stand side by side in the lanes of a
vector: a buffer of kind SAMPLE has one number per lane and place, a WEIGHT has one number for all of them.

    Contract    target[..] (+)= start[..] + sum of left[..] * right[..]       dense layers, convolution, pooling
    Apply       target[..] (+)= expression                                    activations, gates, normalisation, padding
    Highest     target[..]  = max of source[..] over a window                 max pooling; Route is its way back
    Lookup      target[..]  = table[number[..], ..]                           embedding; Scatter is its way back
    Noise       target[..]  = 0 or 1 / (1 - p), by chance                     dropout
    Meet        target[..]  = sum of source[..] over all samples of the batch batch-norm; its own way back
    Track       moving     += momentum * (value - moving)                     the statistics that batch-norm keeps
    Score       the loss of the sample, and its gradient by the scores
    Repeat      statements, once for each step of a sequence                  LSTM, GRU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod


class Kind(Enum):
    SAMPLE = "sample"  # one number per sample
    WEIGHT = "weight"  # one number for all samples
    GRADIENT = "gradient"  # of a weight, summed over the samples


@dataclass(frozen=True)
class Buffer:
    name: str
    shape: tuple[int, ...]
    kind: Kind = Kind.SAMPLE
    base: str = ""  # another name for the memory of this buffer

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Loop:
    name: str
    extent: int


Loops = tuple[Loop, ...]


@dataclass(frozen=True)
class Index:
    """A place along one dimension: shift + the sum of stride x loop."""

    terms: tuple[tuple[str, int], ...] = ()
    shift: int = 0

    def of(self, loop: str) -> int:
        return sum(stride for name, stride in self.terms if name == loop)


@dataclass(frozen=True)
class Ref:
    buffer: str
    index: tuple[Index, ...]

    def loops(self) -> set[str]:
        return {name for index in self.index for name, _ in index.terms}


def at(*places: str | int | tuple[str | int, ...]) -> tuple[Index, ...]:
    """`at("o", ("y", 2, "ky"), ("x", 1, 3))` is [o][2 * y + ky][x + 3]: a number after a name is its stride, any other
    the shift.
    """
    return tuple(_index(p if isinstance(p, tuple) else (p,)) for p in places)


def _index(words: tuple[str | int, ...]) -> Index:
    terms: list[tuple[str, int]] = []
    shift, rest = 0, list(words)
    while rest:
        word = rest.pop(0)
        if isinstance(word, int):
            shift += word
        elif rest and isinstance(rest[0], int):
            terms.append((word, int(rest.pop(0))))
        else:
            terms.append((word, 1))
    return Index(tuple(terms), shift)


# --- expressions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Op:
    sign: str  # + - * /
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Call:
    function: str  # a row of functions.FUNCTIONS
    argument: Expression


Expression = Number | Ref | Op | Call


def leaves(expression: Expression) -> Iterator[Ref]:
    match expression:
        case Ref():
            yield expression
        case Op(_, left, right):
            yield from leaves(left)
            yield from leaves(right)
        case Call(_, argument):
            yield from leaves(argument)


def replaced(expression: Expression, found: Mapping[Ref, Expression]) -> Expression:
    match expression:
        case Ref():
            return found.get(expression, expression)
        case Op(sign, left, right):
            return Op(sign, replaced(left, found), replaced(right, found))
        case Call(function, argument):
            return Call(function, replaced(argument, found))
    return expression


# --- statements -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Apply:
    loops: Loops
    target: Ref
    value: Expression
    add: bool = False
    layer: str = ""


@dataclass(frozen=True)
class Contract:
    loops: Loops
    target: Ref
    left: Ref | None  # None stands for ones
    right: Ref
    start: Ref | None = None
    add: bool = False
    layer: str = ""
    then: tuple[Apply, ...] = ()  # done with each number while it is still in a register
    keeps: bool = True  # whether the target itself is written, too

    def fixed(self) -> Loops:
        """The loops that name a place in the target; the others are summed over."""
        names = self.target.loops()
        return tuple(loop for loop in self.loops if loop.name in names)

    def summed(self) -> Loops:
        names = self.target.loops()
        return tuple(loop for loop in self.loops if loop.name not in names)


@dataclass(frozen=True)
class Highest:
    loops: Loops
    window: Loops
    target: Ref
    source: Ref
    layer: str = ""


@dataclass(frozen=True)
class Route:
    """The gradient of a maximum goes to the first place that holds it."""

    forward: Highest
    gradient: Ref  # of the target
    into: Ref  # of the source
    layer: str = ""


@dataclass(frozen=True)
class Lookup:
    loops: Loops
    target: Ref
    table: str
    rows: int
    padding: int | None  # the row that gets no gradient
    layer: str = ""


@dataclass(frozen=True)
class Scatter:
    loops: Loops
    gradient: Ref
    table: str
    padding: int | None
    layer: str = ""


@dataclass(frozen=True)
class Noise:
    target: str
    rate: float
    number: int  # of the layer: another one draws other numbers
    layer: str = ""


@dataclass(frozen=True)
class Meet:
    target: str
    source: str
    masked: bool = False  # a lane without a sample gets nothing
    layer: str = ""


@dataclass(frozen=True)
class Track:
    moving: str
    value: str
    momentum: float
    unbiased: bool  # times n / (n - 1), n being samples x `places`
    places: int = 1
    layer: str = ""


@dataclass(frozen=True)
class Score:
    loss: str  # "cross_entropy" or "squared_error"
    scores: str
    layer: str = "loss"


@dataclass(frozen=True)
class Repeat:
    loop: Loop
    body: tuple[Statement, ...]
    backwards: bool = False
    layer: str = ""


Statement = Apply | Contract | Highest | Route | Lookup | Scatter | Noise | Meet | Track | Score | Repeat


@dataclass
class Program:
    """Of one sample: forwards with the loss, then backwards."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    forward: list[Statement] = field(default_factory=list)
    backward: list[Statement] = field(default_factory=list)
    zeroed: list[str] = field(default_factory=list)  # gradients that are added to
    inputs: tuple[int, ...] = ()
    tokens: bool = False  # the input is whole numbers
    outputs: int = 0
    result: tuple[int, ...] = ()  # how the outputs lie
    meets: str = ""  # a layer to which one sample alone says nothing

    def new(self, name: str, shape: tuple[int, ...], kind: Kind = Kind.SAMPLE) -> str:
        self.buffers[name] = Buffer(name, shape, kind)
        return name

    def view(self, name: str, of: str, shape: tuple[int, ...]) -> str:
        """The same memory in another shape."""
        base = self.base(of)
        self.buffers[name] = replace(self.buffers[base], name=name, shape=shape, base=base)
        return name

    def base(self, name: str) -> str:
        return self.buffers[name].base or name

    def shape(self, name: str) -> tuple[int, ...]:
        return self.buffers[name].shape


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def offset(ref: Ref, shape: tuple[int, ...]) -> Index:
    """The place of a reference in flat memory."""
    terms: dict[str, int] = {}
    shift = 0
    for index, step in zip(ref.index, strides(shape), strict=True):
        shift += index.shift * step
        for name, stride in index.terms:
            terms[name] = terms.get(name, 0) + stride * step
    return Index(tuple((n, s) for n, s in terms.items() if s), shift)
