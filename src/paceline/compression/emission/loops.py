"""Statements of `kernels.ir` as loops in C, in float32: any layer that has a kernel.

A sum of products is a dot product where its numbers lie side by side, else a row of sums is added to, so that the
compiler finds vectors in either. Buffers share an arena; each one's place is free after its last statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from paceline.compression.emission.writer import Arena, array, floating, text
from paceline.compression.network import LayerProgram
from paceline.kernels.adjoint import touches
from paceline.kernels.functions import functions_of
from paceline.kernels.ir import (
    FORBIDDEN,
    Apply,
    CausalMask,
    Contract,
    Expression,
    FunctionCall,
    Index,
    Kind,
    Lookup,
    Loop,
    Loops,
    MaxPool,
    Number,
    Op,
    Ref,
    Repeat,
    Softmax,
    Statement,
)
from paceline.kernels.memory import offset
from paceline.names import comment

FLAGS = (
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
)
Lines = Iterator[str]


@dataclass
class LoopsWriter:
    """A program under way: constant arrays, the places of buffers, and lines of C."""

    it: LayerProgram
    arrays: list[str] = field(default_factory=list)
    arena: Arena = field(default_factory=Arena)
    #: What each buffer is called in C.
    names: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Write all statements."""
        program = self.it.program
        touched = {program.base(name) for statement in program.forward for name in _touched(statement)}
        for number, (name, tensor) in enumerate(self.it.weights.items(), 1):
            if name in touched:
                self.arrays.append(
                    f"/* {comment(name)} */\n{array('float', f'weight_{number}', tensor.flatten().tolist())}"
                )
                self.names[name] = f"weight_{number}"
        self.names["input"] = "input"
        last = self._last_readers()
        for number, statement in enumerate(program.forward):
            for base in self._bases(statement):
                if base not in self.names:
                    self._take(base)
                    size = program.buffers[base].size
                    if _written(statement) < size:  # margins of images, and the states before a sequence, are noughts
                        self.lines.append(f"    memset({self.names[base]}, 0, {4 * size});")
            self.lines += _lines(self, statement, "    ")
            for base in [base for base, when in last.items() if when == number and base in self.arena.used]:
                self.arena.free(base)

    def place(self, ref: Ref) -> str:
        """A number of a buffer."""
        program = self.it.program
        return f"{self.names[program.base(ref.buffer)]}[{_index(self.offset(ref))}]"

    def offset(self, ref: Ref) -> Index:
        return offset(ref, self.it.program.shape(ref.buffer))

    def whole(self, buffer: str) -> str:
        """A buffer as a pointer."""
        return self.names[self.it.program.base(buffer)]

    def _take(self, base: str) -> None:
        at = self.arena.take(base, self.it.program.buffers[base].size)
        self.names[base] = f"(arena + {at})"

    def _bases(self, statement: Statement) -> list[str]:
        program = self.it.program
        names = dict.fromkeys(program.base(name) for name in _touched(statement))
        return [name for name in names if program.buffers[name].kind is not Kind.WEIGHT]

    def _last_readers(self) -> dict[str, int]:
        """The last statement that touches each buffer; the result is never free."""
        last_uses = {base: n for n, it in enumerate(self.it.program.forward) for base in self._bases(it)}
        return {base: n for base, n in last_uses.items() if base != self.it.program.base(self.it.output)}


def functions(it: LayerProgram) -> str:
    """The functions of one number that a program calls."""
    needed = {name for statement in it.program.forward for name in _called(statement)}
    head = "#include <math.h>\n" if "reciprocal_root" in needed else ""
    return head + text("loops.c")


def _touched(statement: Statement) -> list[str]:
    """The buffers that a statement reads or writes."""
    match statement:
        case Repeat(body=body):
            return [name for inner in body for name in _touched(inner)]
        case CausalMask(target=target):
            return [target]
    read, written = touches(statement)
    return [*read, written]


def _written(statement: Statement) -> int:
    """How many numbers a statement surely writes."""
    if isinstance(statement, Repeat | CausalMask):
        return 0
    if isinstance(statement, Softmax):
        return prod(loop.extent for loop in (*statement.loops, statement.along))
    assert isinstance(statement, Apply | Contract | MaxPool | Lookup)
    return prod(loop.extent for loop in (statement.fixed() if isinstance(statement, Contract) else statement.loops))


def _called(statement: Statement) -> Iterator[str]:
    if isinstance(statement, Repeat):
        for inner in statement.body:
            yield from _called(inner)
    elif isinstance(statement, Apply):
        yield from functions_of(statement.value)


def _lines(writer: LoopsWriter, it: Statement, indent: str) -> Lines:
    """A statement as lines of C."""
    match it:
        case Contract():
            yield from _contract(writer, it, indent)
        case Apply():
            yield from _open(it.loops, indent)
            sign = "+=" if it.add else "="
            yield f"{_deep(indent, it.loops)}{writer.place(it.target)} {sign} {_value(writer, it.value)};"
        case MaxPool():
            yield from _max_pooling(writer, it, indent)
        case Softmax():
            yield from _softmax(writer, it, indent)
        case Lookup():
            yield from _lookup(writer, it, indent)
        case CausalMask(target=target):
            steps = writer.it.program.shape(target)[0]
            yield f"{indent}for (int t = 0; t < {steps}; t++)"
            yield f"{indent}    for (int s = 0; s < {steps}; s++)"
            at = f"{writer.whole(target)}[{steps} * t + s]"
            yield f"{indent}        {at} = s > t ? {floating(FORBIDDEN)} : 0.0f;"
        case Repeat(loop=loop, body=body, backwards=backwards):
            count = f"{loop.name} = {loop.extent - 1}; {loop.name} >= 0; {loop.name}--" if backwards else _count(loop)
            yield f"{indent}for (int {count}) {{"
            for inner in body:
                yield from _lines(writer, inner, indent + "    ")
            yield f"{indent}}}"
        case _:
            raise AssertionError(f"{type(it).__name__} is for training only")


def _contract(writer: LoopsWriter, it: Contract, indent: str) -> Lines:
    """A sum of products: a dot product, or a row of sums that is added to for each number."""
    fixed, summed = it.fixed(), it.summed()
    factors = [ref for ref in (it.left, it.right) if ref is not None]
    product = " * ".join(writer.place(ref) for ref in factors)
    target, start = writer.place(it.target), "0.0f" if it.start is None else writer.place(it.start)
    row = _row(writer, it, factors)
    if row is None:
        yield from _open(fixed, indent)
        deep = _deep(indent, fixed)
        yield f"{deep}{{" if not fixed else f"{deep[:-4]}{{"
        yield f"{deep}float sum = {target if it.add else start};"
        yield from _open(summed, deep)
        yield f"{_deep(deep, summed)}sum += {product};"
        yield f"{deep}{target} = sum;"
        yield f"{deep}}}" if not fixed else f"{deep[:-4]}}}"
        return
    outer = tuple(loop for loop in fixed if loop is not row)
    if not it.add:
        yield from _open((*outer, row), indent)
        yield f"{_deep(indent, (*outer, row))}{target} = {start};"
    loops = (*outer, *summed, row)
    yield from _open(loops, indent)
    yield f"{_deep(indent, loops)}{target} += {product};"


def _row(writer: LoopsWriter, it: Contract, factors: list[Ref]) -> Loop | None:
    """The loop over the target's neighbours, where it is the better innermost one."""
    steps = [writer.offset(ref) for ref in factors]
    candidate = next((loop for loop in it.fixed() if writer.offset(it.target).of(loop.name) == 1), None)
    if candidate is None or any(step.of(candidate.name) not in (0, 1) for step in steps):
        return None
    last = it.summed()[-1] if it.summed() else None
    together = last is not None and all(step.of(last.name) in (0, 1) for step in steps)
    return None if together and last is not None and last.extent >= candidate.extent else candidate


def _max_pooling(writer: LoopsWriter, it: MaxPool, indent: str) -> Lines:
    yield from _open(it.loops, indent)
    deep = _deep(indent, it.loops)
    yield f"{deep[:-4]}{{"
    yield f"{deep}float highest = -3.4e38f;"
    yield from _open(it.window, deep)
    inner = _deep(deep, it.window)
    extents = writer.it.program.shape(it.source.buffer)
    tests = [
        f"{_index(index)} >= 0 && {_index(index)} < {extent}"
        for index, extent in zip(it.source.index[1:], extents[1:], strict=True)
        if not _within(index, extent, (*it.loops, *it.window))
    ]
    source = writer.place(it.source)
    condition = " && ".join([*tests, f"{source} > highest"])
    yield f"{inner}if ({condition}) highest = {source};"
    yield f"{deep}{writer.place(it.target)} = highest;"
    yield f"{deep[:-4]}}}"


def _softmax(writer: LoopsWriter, it: Softmax, indent: str) -> Lines:
    """Powers of the scores below the highest of their row, divided by their sum."""
    source, target, along = writer.place(it.source), writer.place(it.target), f"for (int {_count(it.along)})"
    yield from _open(it.loops, indent)
    deep = _deep(indent, it.loops)
    yield f"{deep[:-4]}{{"
    yield f"{deep}float highest = -3.4e38f, sum = 0.0f;"
    yield f"{deep}{along} if ({source} > highest) highest = {source};"
    yield f"{deep}{along} {target} = exp_({source} - highest);"
    yield f"{deep}{along} sum += {target};"
    yield f"{deep}{along} {target} /= sum;"
    yield f"{deep[:-4]}}}"


def _within(index: Index, extent: int, loops: Loops) -> bool:
    """Whether an index stays in its dimension for all rounds of the loops."""
    most = index.shift + sum(max(index.of(loop.name), 0) * (loop.extent - 1) for loop in loops)
    least = index.shift + sum(min(index.of(loop.name), 0) * (loop.extent - 1) for loop in loops)
    return least >= 0 and most < extent


def _lookup(writer: LoopsWriter, it: Lookup, indent: str) -> Lines:
    *places, along = it.loops
    token = Ref("input", it.target.index[:-1])
    yield from _open(tuple(places), indent)
    deep = _deep(indent, tuple(places))
    row = f"row_of(input[{_index(writer.offset(token))}], {it.rows}) * {along.extent}"
    source = f"{writer.whole(it.table)} + {row}"
    target = writer.place(Ref(it.target.buffer, (*it.target.index[:-1], Index())))
    yield f"{deep}memcpy(&{target}, {source}, {4 * along.extent});"


def _open(loops: Loops, indent: str) -> Lines:
    for depth, loop in enumerate(loops):
        yield f"{indent}{'    ' * depth}for (int {_count(loop)})"


def _deep(indent: str, loops: Loops) -> str:
    return indent + "    " * len(loops)


def _count(loop: Loop) -> str:
    return f"{loop.name} = 0; {loop.name} < {loop.extent}; {loop.name}++"


def _index(index: Index) -> str:
    terms = [name if stride == 1 else f"{stride} * {name}" for name, stride in index.terms]
    return " + ".join([*terms, str(index.shift)] if index.shift or not terms else terms)


def _value(writer: LoopsWriter, value: Expression) -> str:
    match value:
        case Number(number):
            return floating(number)
        case Ref():
            return writer.place(value)
        case Op(sign, left, right):
            return f"({_value(writer, left)} {sign} {_value(writer, right)})"
        case FunctionCall(function, argument):
            return f"{function}_({_value(writer, argument)})"
