"""The way back, derived: each statement has an adjoint, and a program's backward half is theirs in reverse.

Of a contraction  target[f] += left[g] * right[h]  both gradients are contractions over the same loops, with the roles
exchanged:

    gradient of right[h] += left[g] * gradient of target[f]
    gradient of left[g]  += gradient of target[f] * right[h]

so a convolution, its two gradients, a dense layer and a pooling are one access map each.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.kernels.functions import partials
from paceline.kernels.ir import (
    Apply,
    BatchSum,
    Contract,
    Expression,
    Kind,
    Lookup,
    Loop,
    Loops,
    Loss,
    MaxPool,
    MaxPoolGradient,
    Number,
    Program,
    Ref,
    Repeat,
    RunningStatistic,
    Scatter,
    Softmax,
    SoftmaxGradient,
    Statement,
    Tokens,
    at,
    leaves,
    mistaken,
)


def derive(program: Program, trained: set[str]) -> None:
    """Write the backward half. `trained` are the weights that want a gradient."""
    Adjoint(program, trained).derive()


def gradient_of(name: str) -> str:
    """The name of a buffer's gradient."""
    return f"d_{name}"


class Adjoint:
    """Writes the statements of the way back, one forward statement after another, the last first."""

    def __init__(self, program: Program, trained: set[str]) -> None:
        self.program, self.trained = program, trained
        self.moved: set[str] = set()  # samples' buffers that depend on a trained weight
        self.written: set[str] = set()  # gradients that hold something by now
        self.fresh: list[str] = []  # gradients that the next statements add to, before anything was written to them
        self.around: tuple[Loop, ...] = ()  # the steps of a sequence that we are within

    def derive(self) -> None:
        """Appends the way back to the program."""
        for name in map(gradient_of, self.program.buffers):
            if name in self.program.buffers:
                raise mistaken(name)
        self._follow(self.program.forward)
        for statement in reversed(self.program.forward):
            adjoints = self._adjoint(statement)
            self.program.backward += [*self._emptied(), *adjoints]

    def _follow(self, statements: list[Statement] | tuple[Statement, ...]) -> None:
        """Collects the buffers that depend on what is trained; in a sequence also by way of an earlier step."""
        # In a sequence a step reads what the step before has written further down, so once through is not enough.
        before = -1
        while before != len(self.moved):
            before = len(self.moved)
            for statement in statements:
                if isinstance(statement, Repeat):
                    self._follow(statement.body)
                    continue
                read, written = touches(statement)
                if isinstance(statement, MaxPool) and statement.constant:
                    continue
                if written and any(self._wants(name) for name in read):
                    self.moved.add(self.program.base(written))

    def _wants(self, name: str) -> bool:
        """Whether anything that is trained depends on a buffer."""
        base = self.program.base(name)
        return base in self.trained or base in self.moved

    # --- places ---

    def _gradient(self, ref: Ref) -> Ref:
        """The place of the gradient of a referenced place."""
        return Ref(self._buffer(ref.buffer), ref.index)

    def _buffer(self, name: str) -> str:
        """The buffer of a gradient, which is made at its first use."""
        program, base, gradient = self.program, self.program.base(name), gradient_of(name)
        if gradient_of(base) not in program.buffers:
            buffer = program.buffers[base]
            kind = Kind.GRADIENT if buffer.kind is Kind.WEIGHT else Kind.SAMPLE
            program.new(gradient_of(base), buffer.shape, kind)
        if base != name and gradient not in program.buffers:
            program.view(gradient, gradient_of(base), program.shape(name))
        return gradient

    def _own(self, ref: Ref) -> set[str]:
        """The loops that a place is named by, but for the steps of a sequence."""
        return ref.loops() - {loop.name for loop in self.around}

    def _adds(self, target: Ref, loops: Loops) -> bool:
        """Whether a gradient is added to. The first statement that writes all of it overwrites instead.

        A gradient that is only ever added to has to begin at zero.
        """
        base = self.program.base(target.buffer)
        fresh = base not in self.written
        self.written.add(base)
        # Within a sequence each step adds to what later steps left; weights sum over the samples of the batch.
        if self.around or self.program.buffers[base].kind is Kind.GRADIENT:
            return True
        if fresh and covers(target, loops, self.program.shape(target.buffer)):
            return False
        if fresh:
            self.fresh.append(base)
        return True

    def _emptied(self) -> list[Statement]:
        """Zeros for the gradients that the next statements add to for the first time."""
        zeros: list[Statement] = []
        for name in self.fresh:
            loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(self.program.shape(name)))
            zeros.append(Apply(loops, Ref(name, at(*(loop.name for loop in loops))), Number(0.0), layer="zeros"))
        self.fresh = []
        return zeros

    # --- adjoints ---

    def _adjoint(self, statement: Statement) -> list[Statement]:
        """The statements that pass a statement's gradient on to what it has read."""
        match statement:
            case Contract():
                return self._of_contract(statement)
            case Apply():
                return self._of_apply(statement)
            case MaxPool(target=target, source=source, constant=False) if self._wants(source.buffer):
                into = self._gradient(source)
                self._adds(into, ())
                return [MaxPoolGradient(statement, self._gradient(target), into, statement.layer)]
            case Softmax(target=target, source=source) if self._wants(source.buffer):
                into = self._gradient(source)
                add = self._adds(into, (*statement.loops, statement.along))
                return [SoftmaxGradient(statement, self._gradient(target), into, add, statement.layer)]
            case Lookup(loops=loops, target=target, table=table, padding=padding) if table in self.trained:
                gradient = self._gradient(target)
                return [Scatter(loops, gradient, self._buffer(table), padding, statement.layer, statement.numbers)]
            case BatchSum(target=target, source=source) if self._wants(source):
                shape = self.program.shape(source)
                source_gradient = Ref(self._buffer(source), at(*(f"q{d}" for d in range(len(shape)))))
                loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(shape))
                assert not self._adds(source_gradient, loops), "a sum over the batch has one reader"
                return [BatchSum(source_gradient.buffer, self._buffer(target), True, statement.layer)]
            case Repeat():
                return self._of_repeat(statement)
            case Loss(scores=scores):
                self.written.add(self.program.base(self._buffer(scores)))
        return []

    def _of_contract(self, it: Contract) -> list[Statement]:
        """The same loops with the roles of the factors and the result exchanged."""
        statements: list[Statement] = []
        gradient = self._gradient(it.target) if self._wants(it.target.buffer) else it.target
        if it.start is not None and self._wants(it.start.buffer):
            statements.append(self._sum(it.fixed(), it.start, gradient, it.layer))
        if it.left is not None and self._wants(it.left.buffer):
            target = self._gradient(it.left)
            add = self._adds(target, it.loops)
            statements.append(Contract(it.loops, target, gradient, it.right, add=add, layer=it.layer))
        if self._wants(it.right.buffer):
            target = self._gradient(it.right)
            add = self._adds(target, it.loops)
            statements.append(Contract(it.loops, target, it.left, gradient, add=add, layer=it.layer))
        return statements

    def _sum(self, loops: Loops, leaf: Ref, value: Ref, layer: str) -> Statement:
        """The gradient that a leaf gets; loops that the leaf does not name are summed over."""
        target = self._gradient(leaf)
        add = self._adds(target, loops)
        # An `Apply` writes one place for each turn of its loops: sums over loops or samples are contractions.
        if self.program.buffers[target.buffer].kind is Kind.GRADIENT or self._own(leaf) != {lo.name for lo in loops}:
            return Contract(loops, target, None, value, add=add, layer=layer)
        return Apply(loops, target, value, add, layer)

    def _of_apply(self, it: Apply) -> list[Statement]:
        """A statement for each leaf of the expression that something trained depends on."""
        if not self._wants(it.target.buffer):
            return []
        statements: list[Statement] = []
        for leaf, value in partials(it.value, it.target, self._gradient(it.target)):
            if not isinstance(leaf, Ref) or not self._wants(leaf.buffer):
                continue
            names = {loop.name for loop in it.loops}
            # One place of the leaf for each turn of the loops: its gradient is written where it is computed.
            if self.program.buffers[leaf.buffer].kind is Kind.SAMPLE and self._own(leaf) == names:
                target = self._gradient(leaf)
                statements.append(Apply(it.loops, target, value, self._adds(target, it.loops), it.layer))
                continue
            statements += self._gathered(it, leaf, value)
        return statements

    def _gathered(self, it: Apply, leaf: Ref, value: Expression) -> list[Statement]:
        """A leaf that stands for several places: the gradient of each is made first, then they are summed."""
        if isinstance(value, Ref):
            return [self._sum(it.loops, leaf, value, it.layer)]
        assert not self.around, "within a sequence, weights are used by contractions only"
        temporary = self.program.new(f"part.{len(self.program.buffers)}", tuple(loop.extent for loop in it.loops))
        place = Ref(temporary, at(*(loop.name for loop in it.loops)))
        return [Apply(it.loops, place, value, layer=it.layer), self._sum(it.loops, leaf, place, it.layer)]

    def _of_repeat(self, it: Repeat) -> list[Statement]:
        """The steps in reverse. What only adds to a weight's gradient is done for all steps at once, afterwards."""
        before = set(self.written)
        self.around = (it.loop,)
        body: list[Statement] = []
        for statement in reversed(it.body):
            body += self._adjoint(statement)
        self.around = ()
        for name in sorted({self.program.base(touches(s)[1]) for s in body}):
            if self.program.buffers[name].kind is Kind.SAMPLE and name not in before:
                self.program.zeroed.append(name)
            self.written.add(name)
        inside = tuple(s for s in body if self.program.buffers[touches(s)[1]].kind is Kind.SAMPLE)
        after = [s for s in body if s not in inside]
        # With the step as one loop more it is one large product, instead of a small one in each step.
        contractions = [replace(s, loops=(it.loop, *s.loops)) for s in after if isinstance(s, Contract)]
        return [Repeat(it.loop, inside, not it.backwards, it.layer), *contractions]


def touches(statement: Statement) -> tuple[list[str], str]:
    """(buffers read, the buffer written)"""
    match statement:
        case Contract(target=target, left=left, right=right, start=start):
            return [ref.buffer for ref in (left, right, start) if ref is not None], target.buffer
        case Apply(target=target, value=value):
            return [ref.buffer for ref in leaves(value)], target.buffer
        case MaxPool(target=target, source=source) | Softmax(target=target, source=source):
            return [source.buffer], target.buffer
        case MaxPoolGradient(forward=forward, gradient=gradient, into=into):
            return [forward.source.buffer, forward.target.buffer, gradient.buffer], into.buffer
        case SoftmaxGradient(forward=forward, gradient=gradient, into=into):
            return [forward.target.buffer, gradient.buffer], into.buffer
        case Lookup(target=target, table=table, numbers=numbers):
            return [table, *([numbers] if numbers else [])], target.buffer
        case Scatter(gradient=gradient, table=table, numbers=numbers):
            return [gradient.buffer, *([numbers] if numbers else [])], table
        case Tokens(target=name):
            return [], name
        case BatchSum(target=target, source=source):
            return [source], target
        case RunningStatistic(value=value):
            return [value], ""
        case Loss(scores=scores):
            return [scores], ""
    return [], ""


def covers(target: Ref, loops: Loops, shape: tuple[int, ...]) -> bool:
    """Whether these loops visit each place of the target exactly once (for each round of the loops summed over)."""
    extents = {loop.name: loop.extent for loop in loops}
    for index, extent in zip(target.index, shape, strict=True):
        places = [index.shift]
        for name, stride in index.terms:
            places = [p + stride * k for p in places for k in range(extents.get(name, 1))]
        if len(places) != extent or set(places) != set(range(extent)):
            return False
    return True
