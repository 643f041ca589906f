"""Small words of C++: places, and how loops are opened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from paceline.kernels.ir import Index, Loop, Ref


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
