"""Buffers as C++: where they lie, what is loaded and stored, expressions of it; and how threads share the rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Protocol

from paceline.kernels.ir import (
    Apply,
    Expression,
    FunctionCall,
    Index,
    Loop,
    Loops,
    Number,
    Op,
    Ref,
    Scatter,
    Statement,
    Transpose,
    leaves,
    replaced,
)
from paceline.kernels.memory import strides
from paceline.kernels.plan import Plan
from paceline.names import identifiers

# Small words of C++: places, and how loops are opened.


def written(index: Index, shift: int) -> str:
    """An index as C++."""
    terms = [name if stride == 1 else f"{name} * {stride}" for name, stride in index.terms]
    total = index.shift + shift
    if total or not terms:
        terms.append(str(total))
    return " + ".join(terms)


def opening(loop: Loop) -> str:
    """Opens a loop."""
    return f"for (int {loop.name} = 0; {loop.name} < {loop.extent}; {loop.name}++)"


def parts(loop: Loop, factor: int) -> Iterator[tuple[str, int]]:
    """(how a loop is opened, rounds written out within), for the whole blocks and for what is left over."""
    name, blocks, rest = loop.name, loop.extent // factor, loop.extent % factor
    if blocks > 1:
        yield f"for (int {name} = 0; {name} < {blocks * factor}; {name} += {factor})", factor
    elif blocks == 1:
        yield f"if (const int {name} = 0; true)", factor
    if rest:
        yield f"if (const int {name} = {blocks * factor}; true)", rest


def points(rounds: dict[str, int]) -> Iterator[dict[str, int]]:
    """Every combination of the rounds that are written out."""
    names = list(rounds)
    for values in product(*(range(count) for count in rounds.values())):
        yield dict(zip(names, values, strict=True))


def shifted(index: Index, point: dict[str, int]) -> int:
    """How far the rounds of a point are from the first."""
    return sum(stride * point.get(name, 0) for name, stride in index.terms)


def brackets(ref: Ref) -> str:
    """A reference as a comment shows it."""
    return ref.buffer + "".join(f"[{written(index, 0)}]" for index in ref.index)


Lines = Iterator[str]
NAMES = {
    word: f"{word}_" for word in ("tanh", "exp", "log", "sin", "cos")
}  # where C++ has a function of that name already


class Access:
    """Prints how a plan's buffers are declared, read and written.

    What one round computes is a number of every lane (`V`), or, in a text for single samples, one number (`R`) or a
    vector of neighbouring numbers (`X`) of the sample.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self._names = plan, identifiers(plan.places)
        #: The C++ type of what a round computes.
        self.number = "R" if plan.target.pixels else "V"
        #: The loop whose rounds are the lanes of a vector at present, and how many rounds it has; no loop outside
        #: `vectors_along`.
        self._wide: tuple[str, int] = ("", 0)

    @contextmanager
    def vectors_along(self, loop: str, lanes: int) -> Iterator[None]:
        """A context in which a load of neighbouring numbers along `loop` is one vector of `lanes` numbers."""
        self._wide, self.number = (loop, lanes), "X"
        yield
        self._wide, self.number = ("", 0), "R"

    # --- declarations ---

    def pointer(self, buffer: str) -> str:
        """An expression for the buffer's first number, within a group of samples `g`."""
        place = self.plan.places[buffer]
        element_type = "V" if place.region in ("arena", "lanes") or self.plan.target.replicas else "R"
        cast = "" if place.element == element_type else f"({place.element}*)"
        return f"({cast}g.{place.region} + {place.start})" if place.start else f"({cast}g.{place.region})"

    def name(self, buffer: str) -> str:
        """The C++ name of a buffer."""
        return f"b_{self._names[buffer]}"

    def declarations(self, buffers: set[str]) -> Lines:
        """Each of the buffers, by its C++ name, with how many numbers it has."""
        for buffer in sorted(buffers):
            place = self.plan.places[buffer]
            yield f"    const Array<{place.element}, {place.size}> {self.name(buffer)}{{{self.pointer(buffer)}}};"

    def part(self, buffer: str, count: int, first: str = "0") -> str:
        """Some of a buffer's elements, which lie side by side."""
        return f"part<{count}>({self.name(buffer)}, {first})"

    # --- loads and stores ---

    def place(self, ref: Ref, shift: int = 0) -> str:
        """One element of a buffer, `shift` elements beyond the referenced one."""
        return f"{self.name(ref.buffer)}[{written(self.plan.at(ref), shift)}]"

    def element(self, ref: Ref) -> str:
        """The C++ type that `load` gives for this reference."""
        if self.plan.target.pixels:
            return "X" if self._is_wide(ref) else "R"
        return self.plan.places[ref.buffer].element

    def load(self, ref: Ref, point: dict[str, int]) -> str:
        """The element, or vector of elements, that the rounds of `point` read."""
        shift = shifted(self.plan.at(ref), point)
        return f"wide<{self._wide[1]}>({self._vector(ref, shift)})" if self._is_wide(ref) else self.place(ref, shift)

    def store(self, ref: Ref, point: dict[str, int], add: bool, value: str) -> str:
        """The statement that writes `value`, or adds it, to where the rounds of `point` write."""
        shift = shifted(self.plan.at(ref), point)
        if not self._is_wide(ref):
            return f"{self.place(ref, shift)} {'+=' if add else '='} {value};"
        before = self.load(ref, point) + " + " if add else ""
        return f"put<{self._wide[1]}>({self._vector(ref, shift)}, {before}{value});"

    def _vector(self, ref: Ref, shift: int) -> str:
        """The numbers of the vector that begins at an element."""
        return self.part(ref.buffer, self._wide[1], written(self.plan.at(ref), shift))

    def _is_wide(self, ref: Ref) -> bool:
        return bool(self._wide[0] and self.plan.at(ref).of(self._wide[0]))

    def token(self, numbers: str, lane: str) -> str:
        """The row of a table that place q of the sample in a lane asks for."""
        return f"(int64_t)lane({self.name(numbers)}[q], {lane})" if numbers else f"g.tokens[{lane}][q]"

    # --- expressions ---

    def expression(self, value: Expression, point: dict[str, int], names: dict[Ref, str]) -> str:
        """An expression as C++; `names` are references whose values are in a variable already."""
        match value:
            case Number(number):
                return f"R({number!r})"
            case Ref():
                if value.buffer == "share":
                    return "g.share"
                return names.get(value) or self.load(value, point)
            case Op(sign, left, right):
                one, other = (self.expression(part, point, names) for part in (left, right))
                return f"({one} {sign} {other})"
            case FunctionCall(function, argument):
                return f"{NAMES.get(function, function)}({self.number}{{}} + {self.expression(argument, point, names)})"
        raise AssertionError(value)


def flattened(plan: Plan, it: Apply) -> Apply | None:
    """The statement with one loop instead of several, or None where memory is not visited in the loops' own order."""
    refs = [ref for ref in (it.target, *leaves(it.value)) if ref.buffer != "share"]
    extents = tuple(loop.extent for loop in it.loops)
    dense = dict(zip((loop.name for loop in it.loops), strides(extents), strict=True))
    if len(extents) < 2 or any(dict(plan.at(ref).terms) != dense for ref in refs):
        return None
    line = {ref: _on_a_line(plan, ref) for ref in refs}
    return Apply((Loop("q", prod(extents)),), line[it.target], replaced(it.value, line), it.add, it.layer)


def _on_a_line(plan: Plan, ref: Ref) -> Ref:
    """The same memory, counted by the single loop q."""
    place = Index((("q", 1),), plan.at(ref).shift)
    return Ref(ref.buffer, (*(Index() for _ in ref.index[1:]), place))


# How rounds that belong to one group of samples are shared among threads, and where these wait for each other.


class Threads(Protocol):
    """The threads that work on one group of samples together."""

    #: What stands before the name of a generated function.
    function: str

    def opened(self, loops: Loops, inside: Loops, written_to: Ref) -> tuple[list[str], int]:
        """(lines that open all rounds of `loops`, how many braces they open).

        The caller opens the loops `inside` within them; `written_to` is what all these rounds write.
        """
        ...

    def each(self, size: int) -> str:
        """Opens the rounds of a plain count, q."""
        ...

    def scatter(self, it: Scatter, indent: str) -> Lines:
        """Adds gradients to the rows of a table that a sample's tokens name."""
        ...

    def wait(self, indent: str, before: Statement | Transpose | None = None) -> Lines:
        """Lets the threads wait for each other before a statement, or, with None, before any."""
        ...


class OneThread:
    """A CPU: one thread works on a group of samples, so that there is nothing to share and to wait for."""

    function = "STEP"

    def __init__(self, access: Access) -> None:
        self.access = access

    def opened(self, loops: Loops, inside: Loops, written_to: Ref) -> tuple[list[str], int]:
        return ["    " * depth + opening(loop) + " {" for depth, loop in enumerate(loops)], len(loops)

    def each(self, size: int) -> str:
        return f"for (int q = 0; q < {size}; q++)"

    def scatter(self, it: Scatter, indent: str) -> Lines:
        name, table = self.access.name, self.access.plan.places[it.table]
        in_lanes = self.access.plan.target.replicas or table.region == "lanes"
        rows, width = prod(loop.extent for loop in it.loops[:-1]), it.loops[-1].extent
        yield f"{indent}for (int q = 0; q < {rows}; q++) for (int l = 0; l < LANES; l++) {{"
        yield f"{indent}    const int64_t row = {self.access.token(it.numbers, 'l')};"
        if it.padding is not None:
            yield f"{indent}    if (row == {it.padding}) continue;"
        yield f"{indent}    for (int d = 0; d < {width}; d++) {{"
        place = f"{name(it.table)}[row * {width} + d]"
        value = f"lane({name(it.gradient.buffer)}[q * {width} + d], l)"
        if in_lanes:
            yield f"{indent}        set_lane({place}, l, lane({place}, l) + {value});"
        else:
            yield f"{indent}        {place} += {value};"
        yield f"{indent}    }}"
        yield f"{indent}}}"

    def wait(self, indent: str, before: Statement | Transpose | None = None) -> Lines:
        yield from ()
