"""The words of a program: buffers, affine places in them, and the few statements that training a network needs.

A program is written for *one sample*. A printer decides how many samples stand side by side in the lanes of a
vector: a buffer of kind SAMPLE has one number per lane and place, a WEIGHT has one number for all of them.

    Contract          target[..] (+)= start[..] + sum of left[..] * right[..]   dense layers, convolution, pooling
    Apply             target[..] (+)= expression                                activations, gates, padding
    MaxPool           target[..]  = max of source[..] over a window             its way back is MaxPoolGradient
    Softmax           target[..]  = e^source[..], divided by its sum over a loop    its way back is SoftmaxGradient
    Lookup            target[..]  = table[number[..], ..]                       embedding; its way back is Scatter
    Tokens            target[..]  = number[..]                                  columns of numbers, masks
    DropoutMask       target[..]  = 0 or 1 / (1 - p), by chance                 dropout
    CausalMask        target[t][s] = 0, or FORBIDDEN where s is after t         attention
    BatchSum          target[..]  = sum of source[..] over the whole batch      batch-norm; its own way back
    RunningStatistic  moving     += momentum * (value - moving)                 what batch-norm keeps
    Loss              the loss of the sample, and its gradient by the scores
    Repeat            statements, once for each step of a sequence              LSTM, GRU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod
from typing import Any, Protocol, TypeVar

from paceline.errors import JobError

# What generated code is not made of, and names that it would mistake.

#: Names of values that every program has, or may have.
RESERVED = ("input", "scores", "rows_of_scores", "share")


class CannotFuse(JobError):
    """A layer, loss or optimizer that has no kernel."""


class Memory(Protocol):
    """A value that may be the memory of another one, `base`, in a shape of its own."""

    @property
    def base(self) -> str: ...


Value = TypeVar("Value", bound=Memory)


class Distinct(dict[str, Value]):
    """Values by names. No name is used twice, but for the same view of the same memory.

    A layer or a parameter may be called as what is computed of others is.
    """

    def __setitem__(self, name: str, value: Value) -> None:
        if name in self and not (value.base and self[name] == value):
            raise mistaken(name)
        super().__setitem__(name, value)


def mistaken(name: str) -> CannotFuse:
    """The error of a name that two values have."""
    return CannotFuse(
        f"generated code has two values called {name!r}: rename the layer or the parameter of this name, or use "
        "compute='autograd'"
    )


class Kind(Enum):
    """What a buffer has one number for."""

    SAMPLE = "sample"  # one number per sample
    WEIGHT = "weight"  # one number for all samples
    GRADIENT = "gradient"  # of a weight, summed over the samples


@dataclass(frozen=True)
class Buffer:
    """An array by name; with `base`, another array's memory in a shape of its own."""

    name: str
    shape: tuple[int, ...]
    kind: Kind = Kind.SAMPLE
    base: str = ""  # another name for the memory of this buffer

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Loop:
    """A loop by name, from 0 on."""

    name: str
    extent: int


Loops = tuple[Loop, ...]


@dataclass(frozen=True)
class Index:
    """A place along one dimension: shift + the sum of stride x loop."""

    terms: tuple[tuple[str, int], ...] = ()
    shift: int = 0

    def of(self, loop: str) -> int:
        """How far one round of a loop moves the index."""
        return sum(stride for name, stride in self.terms if name == loop)


@dataclass(frozen=True)
class Ref:
    """A place in a buffer, which depends on loops."""

    buffer: str
    index: tuple[Index, ...]

    def loops(self) -> set[str]:
        """The names of the loops that move it."""
        return {name for index in self.index for name, _ in index.terms}


def at(*places: str | int | tuple[str | int, ...]) -> tuple[Index, ...]:
    """`at("o", ("y", 2, "ky"), ("x", 1, 3))` is [o][2 * y + ky][x + 3]: a number after a name is its stride, any other
    the shift.
    """
    return tuple(_index(p if isinstance(p, tuple) else (p,)) for p in places)


def _index(words: tuple[str | int, ...]) -> Index:
    """An index from loop names, strides and shifts."""
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


# expressions.


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Op:
    """An operation on two expressions."""

    sign: str  # + - * /
    left: Expression
    right: Expression


@dataclass(frozen=True)
class FunctionCall:
    """A function of an expression."""

    function: str  # a row of functions.FUNCTIONS
    argument: Expression


Expression = Number | Ref | Op | FunctionCall


def leaves(expression: Expression) -> Iterator[Ref]:
    """The references of an expression."""
    match expression:
        case Ref():
            yield expression
        case Op(_, left, right):
            yield from leaves(left)
            yield from leaves(right)
        case FunctionCall(_, argument):
            yield from leaves(argument)


def replaced(expression: Expression, replacements: Mapping[Ref, Expression]) -> Expression:
    """An expression with other expressions in place of some references."""
    match expression:
        case Ref():
            return replacements.get(expression, expression)
        case Op(sign, left, right):
            return Op(sign, replaced(left, replacements), replaced(right, replacements))
        case FunctionCall(function, argument):
            return FunctionCall(function, replaced(argument, replacements))
    return expression


# statements.


@dataclass(frozen=True)
class Apply:
    """An expression at every place."""

    loops: Loops
    target: Ref
    value: Expression
    add: bool = False
    layer: str = ""


@dataclass(frozen=True)
class Contract:
    """A sum of products at every place, and the expressions that follow it number by number."""

    loops: Loops
    target: Ref
    left: Ref | None  # None stands for ones
    right: Ref
    start: Ref | None = None
    add: bool = False
    layer: str = ""
    then: tuple[Apply, ...] = ()  # done with each number while it is still in a register
    keeps: bool = True  # whether the target itself is written, too
    first: bool = False  # a gradient whose sum the first group of a chunk stores, so that it need not begin with zeros

    def fixed(self) -> Loops:
        """The loops that name a place in the target; the others are summed over."""
        names = self.target.loops()
        return tuple(loop for loop in self.loops if loop.name in names)

    def summed(self) -> Loops:
        names = self.target.loops()
        return tuple(loop for loop in self.loops if loop.name not in names)


@dataclass(frozen=True)
class MaxPool:
    """The maximum over a window at every place."""

    loops: Loops
    window: Loops
    target: Ref
    source: Ref
    layer: str = ""
    constant: bool = False  # no gradient passes: softmax does not depend on what is subtracted from its scores


@dataclass(frozen=True)
class MaxPoolGradient:
    """The gradient of a maximum goes to the first place that holds it."""

    forward: MaxPool
    gradient: Ref  # of the target
    into: Ref  # of the source
    layer: str = ""


@dataclass(frozen=True)
class Softmax:
    """How much of the sum of all powers along a loop each score has; target and source have the same places."""

    loops: Loops  # of a row
    along: Loop
    target: Ref
    source: Ref
    layer: str = ""


@dataclass(frozen=True)
class SoftmaxGradient:
    """The gradient of the scores: target * (gradient - sum of target * gradient)."""

    forward: Softmax
    gradient: Ref  # of the target
    into: Ref  # of the source
    add: bool
    layer: str = ""


@dataclass(frozen=True)
class Lookup:
    """Rows of a table that a sample's tokens name."""

    loops: Loops
    target: Ref
    table: str
    rows: int
    padding: int | None  # the row that gets no gradient
    layer: str = ""
    numbers: str = ""  # the buffer of the rows' numbers; where it is empty, these are the sample's tokens
    columns: tuple[int, ...] = ()  # the places of the input that these numbers are


@dataclass(frozen=True)
class Tokens:
    """A sample's tokens as numbers like others."""

    target: str
    layer: str = ""


@dataclass(frozen=True)
class Scatter:
    """Gradients that are added to the rows which a sample's tokens name."""

    loops: Loops
    gradient: Ref
    table: str
    padding: int | None
    layer: str = ""
    numbers: str = ""


@dataclass(frozen=True)
class DropoutMask:
    """The factors of dropout: 0, or what keeps the mean."""

    target: str
    rate: float
    number: int  # of the layer: another one draws other numbers
    layer: str = ""


#: What is added to scores of attention that do not count: softmax makes it 0, and it is finite.
FORBIDDEN = -1e4


@dataclass(frozen=True)
class CausalMask:
    """What is added to scores of attention, so that no step looks at a later one."""

    target: str
    layer: str = ""


@dataclass(frozen=True)
class Transpose:
    """A sample per row: turned[.., lane, q] holds places q * lanes ... of the source's last dimension."""

    source: str
    target: str
    layer: str = ""


@dataclass(frozen=True)
class BatchSum:
    """A sum over all samples of the batch, which ends a phase."""

    target: str
    source: str
    masked: bool = False  # a lane without a sample gets nothing
    layer: str = ""


@dataclass(frozen=True)
class RunningStatistic:
    """A statistic that batch-norm moves towards the batch's value."""

    moving: str
    value: str
    momentum: float
    unbiased: bool  # times n / (n - 1), n being samples x `places`
    places: int = 1
    layer: str = ""


@dataclass(frozen=True)
class Loss:
    """The loss of a sample, and its gradient by the scores."""

    loss: str  # a name of losses.LOSSES
    scores: str
    number: float = 0.0  # the loss's own
    labels: bool = False  # of class numbers, or of a target for each score
    layer: str = "loss"
    places: int = 1  # of a sample, that have a class each
    weights: tuple[float, ...] = ()  # how much each class counts; nothing where all count the same
    ignored: int = -100  # the class that does not count
    own: tuple[Expression, Expression] | None = None  # of a loss that has no name: its value and its slope


@dataclass(frozen=True)
class Repeat:
    """Statements that are done for each step of a sequence."""

    loop: Loop
    body: tuple[Statement, ...]
    backwards: bool = False
    layer: str = ""


Statement = (
    Apply
    | Contract
    | MaxPool
    | MaxPoolGradient
    | Softmax
    | SoftmaxGradient
    | Lookup
    | Tokens
    | Scatter
    | DropoutMask
    | CausalMask
    | BatchSum
    | RunningStatistic
    | Loss
    | Repeat
)


@dataclass
class Program:
    """What is computed for one sample: forwards with the loss, then backwards."""

    buffers: dict[str, Buffer] = field(default_factory=Distinct)
    forward: list[Statement] = field(default_factory=list)
    backward: list[Statement] = field(default_factory=list)
    zeroed: list[str] = field(default_factory=list)  # gradients that are added to
    inputs: tuple[int, ...] = ()
    columns: dict[str, Any] = field(default_factory=dict)  # where in the input the numbers of a buffer lie
    tokens: bool = False  # the input is whole numbers
    outputs: int = 0  # how many targets a sample has, or how many classes
    places: tuple[int, ...] = ()  # of a sample that have a class each
    result: tuple[int, ...] = ()  # how the outputs lie
    numbers: dict[str, Any] = field(default_factory=dict)  # tensors that are neither trained nor the module's, by name
    batch_norm: str = ""  # a layer that needs a batch of at least two samples

    def new(self, name: str, shape: tuple[int, ...], kind: Kind = Kind.SAMPLE) -> str:
        """Adds a buffer."""
        self.buffers[name] = Buffer(name, shape, kind)
        return name

    def view(self, name: str, of: str, shape: tuple[int, ...]) -> str:
        """The same memory in another shape."""
        base = self.base(of)
        self.buffers[name] = replace(self.buffers[base], name=name, shape=shape, base=base)
        return name

    def base(self, name: str) -> str:
        """The name of the buffer whose memory this one is."""
        return self.buffers[name].base or name

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a buffer."""
        return self.buffers[name].shape
