"""The plan: which statements become one nest, which register blocks they use, where every number lies. It is data, and
prints as a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from paceline.kernels.adjoint import covers, touches
from paceline.kernels.blocks import Block, Nest, choose, collide
from paceline.kernels.ir import (
    Apply,
    BatchSum,
    Contract,
    Expression,
    FunctionCall,
    Index,
    Kind,
    Op,
    Program,
    Ref,
    Repeat,
    Statement,
    Transpose,
    leaves,
    replaced,
)
from paceline.kernels.memory import Address, Memory, Target, offset
from paceline.names import identifier

# --- What is done with a contraction's numbers while they are still in registers --------------------------------------


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
                # What was read from memory stays in a register now: if nothing else reads it, it is never stored.
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
    # The registers hold a whole number only where the contraction has its target to itself.
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


CHUNKS = 8  # gradients of a batch that are summed apart, for any number of threads


@dataclass(frozen=True)
class KernelFunction:
    """One function of the text."""

    name: str
    statement: Statement | Transpose
    blocks: tuple[Block, ...] = ()  # of its contractions, in order


@dataclass
class Plan:
    """A program, laid out and cut into steps."""

    program: Program
    target: Target
    phases: list[list[KernelFunction]]  # a phase begins when all samples of the batch have ended the one before
    places: dict[str, Address]
    sizes: dict[str, int]  # of the regions
    zeroed: tuple[int, int]  # where in the arena gradients begin with zeros
    scratch: int  # numbers at the beginning of the arena: each group writes them before it reads them
    halfway: int = 0  # the first step of the way back, counted over all phases
    flops: int = 0  # of one sample, forwards and backwards

    def at(self, ref: Ref) -> Index:
        """A reference as an offset in memory."""
        place = self.places.get(ref.buffer)  # what never leaves the registers has none
        return offset(ref, place.shape if place else self.program.shape(ref.buffer))

    def nest(self, it: Contract) -> Nest:
        """A contraction with its references as offsets in memory."""
        left = self.at(it.left) if it.left is not None else None
        wide = [
            self.target.lanes > 1 and ref is not None and self.places[ref.buffer].element == "V"
            for ref in (it.left, it.right)
        ]
        return Nest(it.loops, self.at(it.target), left, self.at(it.right), collide(it.target, it.loops), *wide)

    def steps(self) -> Iterator[KernelFunction]:
        """The steps of all phases."""
        for phase in self.phases:
            yield from phase


def make(program: Program, target: Target) -> Plan:
    """Plans a program for a target."""
    work = sum(flops(s) for s in (*program.forward, *program.backward))
    memory = Memory(program, target)
    if not target.apart:
        program.forward, program.backward = fused(program, program.forward), fused(program, program.backward)
    backward = memory.by_rows(program.backward)
    memory.lay_out([*program.forward, *backward])
    plan = Plan(program, target, [[]], memory.places, memory.sizes, memory.zeroed, memory.scratch, flops=work)
    for way, statements in (("forward", program.forward), ("backward", backward)):
        if way == "backward":
            plan.halfway = sum(map(len, plan.phases))
        for statement in statements:
            # A sum over the batch needs the numbers of all its samples, so all threads meet there.
            if isinstance(statement, BatchSum) and plan.phases[-1]:
                plan.phases.append([])
            name = f"{_word(statement.layer)}_{way}_{sum(map(len, plan.phases))}"
            plan.phases[-1].append(KernelFunction(name, statement, tuple(_blocks(plan, statement))))
    return plan


def contractions(statement: Statement | Transpose) -> Iterator[Contract]:
    """The contractions of a statement."""
    if isinstance(statement, Contract):
        yield statement
    elif isinstance(statement, Repeat):
        for inner in statement.body:
            yield from contractions(inner)


def _blocks(plan: Plan, statement: Statement | Transpose) -> Iterator[Block]:
    """The register blocks of a statement; of single samples, printers/nests.py chooses them."""
    for contract in contractions(statement):
        # Some registers are left for the factors, which are loaded.
        yield Block(()) if plan.target.lanes == 1 else choose(plan.nest(contract), plan.target.registers - 3)


def _word(name: str) -> str:
    """A layer's name as part of a C++ name."""
    word = identifier(name)
    return f"layer{word}" if word[:1].isdigit() else word or "layer"


# --- what it costs, and how it looks --------------------------------------------------------------------------------


def flops(statement: Statement) -> int:
    """The multiply-adds of its contractions, counted twice; the rest is not counted."""
    match statement:
        case Contract(loops=loops, left=left):
            return (1 if left is None else 2) * prod(loop.extent for loop in loops)
        case Repeat(loop=loop, body=body):
            return loop.extent * sum(flops(s) for s in body)
    return 0


def table(plan: Plan) -> str:
    """A row per function of the text."""
    rows = [("step", "what", "loops", "block", "then")]
    for number, phase in enumerate(plan.phases):
        if number:
            rows.append(("-- sum over the batch --", "", "", "", ""))
        rows += [_row(step) for step in phase]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    sizes = ", ".join(f"{region} {size:,}" for region, size in plan.sizes.items())
    return "\n".join([*lines, f"numbers: {sizes}"])


def _row(step: KernelFunction) -> tuple[str, str, str, str, str]:
    it = step.statement
    extents = " ".join(f"{loop.name}{loop.extent}" for loop in getattr(it, "loops", ()))
    then = ", ".join(_named(a.value) for a in it.then) if isinstance(it, Contract) else ""
    return step.name, type(it).__name__.lower(), extents, "; ".join(map(str, step.blocks)), then


def _named(value: Expression) -> str:
    match value:
        case FunctionCall(function, _):
            return function
        case Op(sign, _, _):
            return {"*": "product", "+": "sum", "-": "difference"}[sign]
    return "copy"
