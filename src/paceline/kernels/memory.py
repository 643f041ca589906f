"""Where every number lies, and which gradients are made by rows.

    arena     of one group of samples: a vector per place, one sample per lane
    weights   one number per place, rows padded to whole vectors where a gradient is made by rows
    gradient  of one chunk of the batch, laid out as the weights
    lanes     gradients that are summed in the lanes first, and across them at the chunk's end

The gradient of a dense layer's weights is made by rows: `turned` is the layer's input with a row per sample, so that
lanes are neighbouring inputs and the samples are summed over one by one. A convolution's is made in the lanes, since it
sums over many pixels before its lanes have to be summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from paceline.kernels.adjoint import covers, touches
from paceline.kernels.blocks import collide
from paceline.kernels.ir import (
    Apply,
    BatchSum,
    Buffer,
    CausalMask,
    Contract,
    DropoutMask,
    Index,
    Kind,
    Lookup,
    Loop,
    Loops,
    Loss,
    MaxPool,
    Program,
    Ref,
    Repeat,
    RunningStatistic,
    Scatter,
    Softmax,
    SoftmaxGradient,
    Statement,
    Tokens,
    Transpose,
    at,
)

# --- Which numbers of a sample may lie in the same memory: those that are never needed at once ------------------------
# A network remembers much on the way forward, but a gradient is needed only until it has been passed on. In memory that
# is used again, what is written next is in the cache.


@dataclass(frozen=True)
class Lifetime:
    """The statements from the first that writes a buffer to the last that reads it."""

    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both buffers hold something at the same time."""
        return self.first <= other.last and other.first <= self.last


def lives(
    program: Program, touched: Sequence[set[str]], statements: Sequence[Statement | Transpose]
) -> dict[str, Lifetime]:
    """The life of each buffer whose memory may be used by others; `touched` are the buffers of each statement.

    Others keep their memory: places without a writer, as the margin of an image, are zero for that reason; and
    what is summed over a batch, other groups of samples read.
    """
    lifetimes: dict[str, Lifetime] = {}
    pinned: set[str] = set()
    for number, (names, statement) in enumerate(zip(touched, statements, strict=True)):
        for name in {program.base(name) for name in names}:
            if name not in lifetimes and name != "input" and not _writes_all(program, statement, name):
                pinned.add(name)
            lifetimes[name] = Lifetime(lifetimes[name].first if name in lifetimes else number, number)
        if isinstance(statement, BatchSum):
            pinned.add(program.base(statement.source))
        if isinstance(statement, Lookup) and statement.numbers:  # a row that does not exist would be read out of bounds
            pinned.add(program.base(statement.numbers))
    if "input" in lifetimes:
        lifetimes["input"] = Lifetime(-1, lifetimes["input"].last)
    return {name: life for name, life in lifetimes.items() if name not in pinned}


def _writes_all(program: Program, statement: Statement | Transpose, name: str) -> bool:
    """Whether a statement writes every number of a buffer, and reads none of them."""

    def is_whole(target: Ref, loops: Loops) -> bool:
        return program.base(target.buffer) == name and covers(target, loops, program.shape(target.buffer))

    match statement:
        case Apply(target=target, loops=loops, add=False):
            return is_whole(target, loops)
        case Contract(target=target, add=False, then=then, keeps=keeps):
            return (keeps and is_whole(target, statement.fixed())) or any(
                not a.add and is_whole(a.target, a.loops) for a in then
            )
        case MaxPool(target=target, loops=loops) | Lookup(target=target, loops=loops):
            return is_whole(target, loops)
        case Softmax(target=target, loops=loops, along=along):
            return is_whole(target, (*loops, along))
        case SoftmaxGradient(forward=forward, into=into, add=False):
            return is_whole(into, (*forward.loops, forward.along))
        case (
            DropoutMask(target=target)
            | CausalMask(target=target)
            | Tokens(target=target)
            | BatchSum(target=target)
            | Transpose(target=target)
        ):
            return program.base(target) == name
        case Loss(scores=scores):
            return program.base(f"d_{scores}") == name
    return False


def places(sizes: Mapping[str, int], life: Mapping[str, Lifetime]) -> tuple[dict[str, int], int]:
    """(where each buffer begins, how much memory all take): the largest first, each at the first place that is free."""
    begin: dict[str, int] = {}
    end = 0
    for name in sorted(sizes, key=lambda name: (-sizes[name], life[name].first, name)):
        at = 0
        for other in sorted((o for o in begin if life[o].meets(life[name])), key=begin.__getitem__):
            if begin[other] - at >= sizes[name]:
                break
            at = max(at, begin[other] + sizes[other])
        begin[name] = at
        end = max(end, at + sizes[name])
    return begin, end


LONG = 24  # sums over so many places may be made in the lanes, shorter ones by rows


@dataclass(frozen=True)
class Target:
    """The hardware, and the form of the text, that a plan is for."""

    bytes: int = 64  # of a vector
    real: str = "float"
    registers: int = 32
    replicas: bool = False  # lanes hold copies of the model instead of samples
    scalar: bool = False  # one sample at a time
    apart: bool = False  # nothing is fused: every layer is computed alone
    pixels: bool = False  # one sample at a time, vectors of its neighbouring numbers
    shares: bool = False  # numbers that are not read any more leave their memory to others

    @property
    def lanes(self) -> int:
        """Samples, or copies of the model, side by side."""
        return 1 if self.scalar or self.pixels else self.wide

    @property
    def wide(self) -> int:
        """How many numbers a vector has."""
        return self.bytes // (4 if self.real == "float" else 8)

    @property
    def direct(self) -> bool:
        """Whether a weight's gradient has as many numbers per place as a sample's value."""
        return self.lanes == 1 or self.replicas


@dataclass(frozen=True)
class Address:
    """Where a buffer lies."""

    region: str  # "arena", "weights", "gradient" or "lanes"
    start: int  # in elements
    shape: tuple[int, ...]  # as it lies in memory
    element: str  # "V", a vector, or "R", a number

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass
class Memory:
    """Lays the buffers of a program out, in the form that the target asks for."""

    program: Program
    target: Target
    places: dict[str, Address] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("arena", "weights", "gradient", "lanes"), 0))
    rows: set[str] = field(default_factory=set)  # gradients made by rows
    casts: dict[str, str] = field(default_factory=dict)  # views with elements of another kind: which
    zeroed: tuple[int, int] = (0, 0)  # where in the arena gradients begin with zeros
    scratch: int = 0  # numbers at the beginning of the arena: each group writes them before it reads them

    # --- gradients by rows ---

    def by_rows(self, statements: Sequence[Statement]) -> list[Statement | Transpose]:
        """The same statements, gradients made by rows where that can be, and what has to be turned before."""
        if self.target.direct:
            return list(statements)
        into = [s for s in statements if isinstance(s, Contract) and self._is_gradient(s.target.buffer)]
        scattered = {s.table for s in statements if isinstance(s, Scatter)}
        for name in sorted({s.target.buffer for s in into}):
            mine = [s for s in into if self.program.base(s.target.buffer) == self.program.base(name)]
            if name == self.program.base(name) and name not in scattered and all(map(self._rowwise, mine)):
                self.rows.add(name)
        rewritten: list[Statement | Transpose] = []
        for s in statements:
            if isinstance(s, Contract) and s.target.buffer in self.rows:
                turned = f"{s.right.buffer}.turned"
                if turned not in self.program.buffers:
                    rewritten.append(self._turn(s.right.buffer, turned, s.layer))
                rewritten.append(replace(self._by_row(s, turned), first=self._alone(s, statements)))
            else:
                rewritten.append(s)
        return rewritten

    def _is_gradient(self, name: str) -> bool:
        return self.program.buffers[name].kind is Kind.GRADIENT

    def _rowwise(self, it: Contract) -> bool:
        """dw[o][i] += d[.., o] * x[.., i], if a row of inputs fills a vector, or the sum has few places.

        In the lanes, a gradient has a number for each sample of a vector, which are zeroed, written and added for every
        batch: they need more time than the sum itself, unless it has many places.
        """
        if (
            it.left is None
            or len(it.target.index) != 2
            or not _lone(it.target.index[1])
            or collide(it.target, it.loops)
        ):
            return False
        last = it.target.index[1].terms[0][0]
        ends = it.right.index[-1] == it.target.index[1] and not any(i.of(last) for i in it.right.index[:-1])
        fills = self.program.shape(it.target.buffer)[1] >= self.target.lanes
        few = prod(loop.extent for loop in it.summed()) < LONG or any(loop.name == "t" for loop in it.loops)
        return ends and (few or fills) and not any(index.of(last) for index in it.left.index)

    def _alone(self, it: Contract, statements: Sequence[Statement]) -> bool:
        """Whether this sum, and nothing else, makes the whole of its gradient."""
        name = it.target.buffer
        makers = [s for s in statements if name in map(self.program.base, written_by(s))]
        return len(makers) == 1 and covers(it.target, it.fixed(), self.program.shape(name))

    def _turn(self, source: str, turned: str, layer: str) -> Transpose:
        *outer, size = self.program.shape(source)
        lanes = self.target.lanes
        self.program.new(turned, (*outer, lanes, -(-size // lanes)))
        return Transpose(source, turned, layer)

    def _by_row(self, it: Contract, turned: str) -> Contract:
        """The same sum with neighbouring inputs in the lanes, over samples one by one."""
        assert it.left is not None
        lanes, (outputs, inputs) = self.target.lanes, self.program.shape(it.target.buffer)
        last = it.target.index[1].terms[0][0]
        rows, scalars = f"{it.target.buffer}.rows", f"{it.left.buffer}.scalars"
        self._cast(rows, it.target.buffer, (outputs, -(-inputs // lanes)), "V")
        self._cast(scalars, it.left.buffer, (*self.program.shape(it.left.buffer), lanes), "R")
        loops = [Loop("q", -(-inputs // lanes)) if loop.name == last else loop for loop in it.loops]
        return replace(
            it,
            loops=(*loops, Loop("lane", lanes)),
            target=Ref(rows, (it.target.index[0], *at("q"))),
            left=Ref(scalars, (*it.left.index, *at("lane"))),
            right=Ref(turned, (*it.right.index[:-1], *at("lane", "q"))),
        )

    def _cast(self, name: str, of: str, shape: tuple[int, ...], element: str) -> None:
        self.casts[name] = element
        self.program.buffers[name] = Buffer(name, shape, self.program.buffers[of].kind, self.program.base(of))

    # --- places ---

    def lay_out(self, statements: Sequence[Statement | Transpose]) -> None:
        """Gives every buffer that these statements use an address."""
        program, lanes = self.program, self.target.lanes
        used = {program.base(name) for name in used_by(statements)}
        samples = [b for b in program.buffers.values() if b.kind is Kind.SAMPLE and not b.base and b.name in used]
        self._share([b for b in samples if b.name not in program.zeroed], statements)
        begin = self.sizes["arena"]
        for name in [name for name in program.zeroed if name in used]:
            self._place(name, "arena", program.shape(name), "V")
        self.zeroed = (begin, self.sizes["arena"])
        for buffer in [b for b in program.buffers.values() if b.kind is Kind.WEIGHT and not b.base]:
            self._weight(buffer, lanes)
        self.sizes["gradient"] = self.sizes["weights"]
        for buffer in [b for b in program.buffers.values() if b.base and b.base in self.places]:
            self.places[buffer.name] = self._view(buffer, lanes)

    def _share(self, buffers: Sequence[Buffer], statements: Sequence[Statement | Transpose]) -> None:
        """Places a sample's numbers, those that are never needed at once over each other."""
        touched = [used_by([statement]) for statement in statements]
        life = lives(self.program, touched, statements) if self.target.shares else {}
        sizes = {b.name: prod(b.shape) for b in buffers if b.name in life}
        begin, self.scratch = places(sizes, life)
        self.sizes["arena"] = self.scratch
        for buffer in buffers:
            if buffer.name in begin:
                self.places[buffer.name] = Address("arena", begin[buffer.name], buffer.shape, "V")
            else:
                self._place(buffer.name, "arena", buffer.shape, "V")

    def _weight(self, buffer: Buffer, lanes: int) -> None:
        """Places a parameter and its gradient."""
        gradient, shape = f"d_{buffer.name}", buffer.shape
        if gradient in self.rows:
            shape = (shape[0], -(-shape[1] // lanes) * lanes)
        place = self._place(buffer.name, "weights", shape, "V" if self.target.replicas else "R", lanes)
        if gradient not in self.program.buffers:
            return
        into = [s for s in self.program.backward if touches(s)[1] == gradient]
        scattered = bool(into) and all(isinstance(s, Scatter) for s in into)
        if self.target.direct or gradient in self.rows or scattered:
            self.places[gradient] = replace(place, region="gradient")
        else:
            self._place(gradient, "lanes", shape, "V")

    def _place(self, name: str, region: str, shape: tuple[int, ...], element: str, align: int = 1) -> Address:
        start = -(-self.sizes[region] // align) * align
        self.places[name] = Address(region, start, shape, element)
        self.sizes[region] = -(-(start + prod(shape)) // align) * align
        return self.places[name]

    def _view(self, buffer: Buffer, lanes: int) -> Address:
        place = self.places[buffer.base]
        element = self.casts.get(buffer.name, place.element)
        start = {"VR": place.start * lanes, "RV": place.start // lanes}.get(place.element + element, place.start)
        return Address(place.region, start, buffer.shape, element)


def used_by(statements: Sequence[Statement | Transpose]) -> set[str]:
    """The buffers that are read or written in memory."""
    buffers: set[str] = set()
    for it in statements:
        match it:
            case Transpose(source=source, target=target):
                buffers |= {source, target}
            case Repeat(body=body):
                buffers |= used_by(body)
            case Contract(target=target, then=then):
                buffers |= {*touches(it)[0], *used_by(then)} - ({target.buffer} if not it.keeps else set())
                buffers |= {target.buffer} if it.keeps else set()
            case DropoutMask(target=name) | CausalMask(target=name) | Tokens(target=name):
                buffers.add(name)
            case Loss(scores=scores):
                buffers |= {scores, f"d_{scores}"}
            case RunningStatistic(moving=moving, value=value):
                buffers |= {moving, value}
            case _:
                read, written = touches(it)
                buffers |= {*read, written}
    return buffers - {"", "share"}


def written_by(statement: Statement | Transpose) -> set[str]:
    """The buffers that it writes in memory."""
    match statement:
        case Repeat(body=body):
            return set().union(*map(written_by, body))
        case Contract(target=target, then=then):
            return {a.target.buffer for a in then} | ({target.buffer} if statement.keeps else set())
        case Loss(scores=scores):
            return {f"d_{scores}"}
        case RunningStatistic(moving=moving):
            return {moving}
        case DropoutMask(target=name) | CausalMask(target=name) | Tokens(target=name) | Transpose(target=name):
            return {name}
    return {touches(statement)[1]}


def _lone(index: Index) -> bool:
    """Whether an index is one loop."""
    return len(index.terms) == 1 and index.terms[0][1] == 1 and index.shift == 0


# --- where a reference lies -------------------------------------------------------------------------------------------


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """How many numbers apart neighbours along each dimension lie."""
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
