"""The plan: which statements become one nest, which register blocks they use, where every number lies. It is data, and
prints as a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from paceline.kernels.blocks import Block, Nest, choose, collide
from paceline.kernels.fusion import fused
from paceline.kernels.ir import (
    BatchSum,
    Call,
    Contract,
    Expression,
    Index,
    Op,
    Program,
    Ref,
    Repeat,
    Statement,
    Transpose,
)
from paceline.kernels.memory import Address, Memory, Target, offset
from paceline.names import identifier

CHUNKS = 8  # gradients of a batch that are summed apart, for any number of threads


@dataclass(frozen=True)
class Step:
    """One function of the text."""

    name: str
    statement: Statement | Transpose
    blocks: tuple[Block, ...] = ()  # of its contractions, in order


@dataclass
class Plan:
    """A program, laid out and cut into steps."""

    program: Program
    target: Target
    phases: list[list[Step]]  # a phase begins when all samples of the batch have ended the one before
    places: dict[str, Address]
    sizes: dict[str, int]  # of the regions
    zeroed: tuple[int, int]  # where in the arena gradients begin with zeros
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

    def steps(self) -> Iterator[Step]:
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
    plan = Plan(program, target, [[]], memory.places, memory.sizes, memory.zeroed, flops=work)
    for way, statements in (("forward", program.forward), ("backward", backward)):
        if way == "backward":
            plan.halfway = sum(map(len, plan.phases))
        for statement in statements:
            if isinstance(statement, BatchSum) and plan.phases[-1]:
                plan.phases.append([])
            name = f"{_word(statement.layer)}_{way}_{sum(map(len, plan.phases))}"
            plan.phases[-1].append(Step(name, statement, tuple(_blocks(plan, statement))))
    return plan


def contractions(statement: Statement | Transpose) -> Iterator[Contract]:
    """The contractions of a statement."""
    if isinstance(statement, Contract):
        yield statement
    elif isinstance(statement, Repeat):
        for inner in statement.body:
            yield from contractions(inner)


def _blocks(plan: Plan, statement: Statement | Transpose) -> Iterator[Block]:
    """The register blocks of a statement; those of single samples are chosen where their vectors are (pixels.py)."""
    for contract in contractions(statement):
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


def _row(step: Step) -> tuple[str, str, str, str, str]:
    it = step.statement
    extents = " ".join(f"{loop.name}{loop.extent}" for loop in getattr(it, "loops", ()))
    then = ", ".join(_named(a.value) for a in it.then) if isinstance(it, Contract) else ""
    return step.name, type(it).__name__.lower(), extents, "; ".join(map(str, step.blocks)), then


def _named(value: Expression) -> str:
    match value:
        case Call(function, _):
            return function
        case Op(sign, _, _):
            return {"*": "product", "+": "sum", "-": "difference"}[sign]
    return "copy"
