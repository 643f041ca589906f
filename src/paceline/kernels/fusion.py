"""What is done with a contraction's numbers while they are still in registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.kernels.adjoint import covers, touches
from paceline.kernels.blocks import collide
from paceline.kernels.ir import (
    Apply,
    Contract,
    Expression,
    Index,
    Kind,
    Program,
    Ref,
    Repeat,
    Statement,
    leaves,
    replaced,
)


def fused(program: Program, statements: Sequence[Statement]) -> list[Statement]:
    """The same statements, those that follow a contraction number by number made part of it."""
    readers = Counter(program.base(name) for s in _all([*program.forward, *program.backward]) for name in touches(s)[0])
    merged: list[Statement] = []
    for statement in statements:
        last = merged[-1] if merged else None
        if isinstance(last, Contract) and isinstance(statement, Apply):
            then = _restated(program, last, statement)
            if then is not None:
                reads = sum(
                    program.base(leaf.buffer) == program.base(last.target.buffer) for leaf in leaves(then.value)
                )
                base = program.base(last.target.buffer)
                readers[base] -= reads
                still_read = readers[base] > 0
                merged[-1] = replace(last, then=(*last.then, then), keeps=still_read)
                continue
        merged.append(statement)
    return merged


def _all(statements: Sequence[Statement]) -> list[Statement]:
    """All statements, those within loops over steps among them."""
    return [s for it in statements for s in (_all(it.body) if isinstance(it, Repeat) else [it])]


def _restated(program: Program, contract: Contract, apply: Apply) -> Apply | None:
    """The expression in the contraction's own loops, where it has one value for each of its numbers."""
    target = contract.target
    if contract.add or collide(target, contract.loops) or program.buffers[target.buffer].kind is not Kind.SAMPLE:
        return None
    base = program.base(target.buffer)
    mine = [leaf for leaf in leaves(apply.value) if program.base(leaf.buffer) == base]
    computed = {program.base(a.target.buffer) for a in contract.then if not a.add}
    added = {program.base(a.target.buffer) for a in contract.then if a.add}  # their registers hold only what is added
    if any(program.base(leaf.buffer) in added for leaf in leaves(apply.value)):
        return None
    mine += [leaf for leaf in leaves(apply.value) if program.base(leaf.buffer) in computed]
    if not mine or len(set(mine)) != 1:
        return None
    names = [loop.name for loop in apply.loops]
    is_identity = [index.terms for index in mine[0].index] == [((name, 1),) for name in names]
    extents = tuple(loop.extent for loop in apply.loops)
    if not is_identity or extents != program.shape(mine[0].buffer) or any(index.shift for index in mine[0].index):
        return None
    refs = {apply.target, *leaves(apply.value)}
    source = next((ref for ref in (target, *(a.target for a in contract.then)) if _same(program, ref, mine[0])), target)
    shape = program.shape(source.buffer)
    if not covers(source, contract.fixed(), shape):  # it was written in several parts, of which this is one
        return None
    if extents == shape:
        places = dict(zip(names, source.index, strict=True))
        replacements: Mapping[Ref, Expression] = {ref: Ref(ref.buffer, _moved(ref.index, places)) for ref in refs}
    elif all(ref.index == mine[0].index and program.buffers[ref.buffer].kind is Kind.SAMPLE for ref in refs):
        replacements = {ref: Ref(_viewed(program, ref.buffer, shape), source.index) for ref in refs}
    else:
        return None
    replacements = {**replacements, mine[0]: source}
    destination = replacements[apply.target]
    assert isinstance(destination, Ref)
    return replace(apply, loops=contract.fixed(), target=destination, value=replaced(apply.value, replacements))


def _same(program: Program, one: Ref, other: Ref) -> bool:
    return program.base(one.buffer) == program.base(other.buffer)


def _moved(index: tuple[Index, ...], places: Mapping[str, Index]) -> tuple[Index, ...]:
    """The expression with its loops renamed to those of the contraction."""
    moved = []
    for one in index:
        terms: dict[str, int] = {}
        shift = one.shift
        for name, stride in one.terms:
            shift += stride * places[name].shift
            for inner, step in places[name].terms:
                terms[inner] = terms.get(inner, 0) + stride * step
        moved.append(Index(tuple(terms.items()), shift))
    return tuple(moved)


def _viewed(program: Program, name: str, shape: tuple[int, ...]) -> str:
    """The names under which the same memory is read."""
    if program.shape(name) == shape:
        return name
    view = f"{name}.as{'x'.join(map(str, shape))}"
    if view not in program.buffers:
        program.view(view, name, shape)
    return view
