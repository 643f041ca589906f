"""Steps of a plan as C++ functions: loop nests, and the statements that are none, such as maxima and tables."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from paceline.kernels.blocks import Block
from paceline.kernels.ir import (
    FORBIDDEN,
    Apply,
    BatchSum,
    CausalMask,
    Contract,
    DropoutMask,
    Lookup,
    Loss,
    MaxPool,
    MaxPoolGradient,
    Ref,
    Repeat,
    RunningStatistic,
    Scatter,
    Softmax,
    SoftmaxGradient,
    Statement,
    Tokens,
    Transpose,
)
from paceline.kernels.memory import used_by
from paceline.kernels.plan import KernelFunction, Plan, contractions
from paceline.kernels.printers.access import Access, Lines, Threads, brackets, opening, written
from paceline.kernels.printers.nests import Nests
from paceline.names import comment


class Printer:
    """Prints each step of a plan as a function, in the form that its parts give it.

    nests     how contractions and expressions are printed
    threads   how the threads of a group of samples share rounds, and where they wait
    """

    def __init__(self, access: Access, nests: Nests, threads: Threads) -> None:
        self.access, self.nests, self.threads = access, nests, threads
        self.others = Others(access, threads)

    def functions(self, plan: Plan) -> Lines:
        """All steps, a function each."""
        for step in plan.steps():
            yield from self.function(step)

    def function(self, step: KernelFunction) -> Lines:
        """A step as a function."""
        yield f"// {comment(_described(step.statement))}"
        yield f"{self.threads.function} {step.name}(Group& g) {{"
        yield from self.access.declarations(used_by([step.statement]))
        if any(it.first for it in contractions(step.statement)):
            yield "    const bool first_of_chunk = g.first;"
        yield from self._lines(step.statement, iter(step.blocks), "    ")
        yield "}"
        yield ""

    def _lines(self, statement: Statement | Transpose, blocks: Iterator[Block], indent: str) -> Lines:
        match statement:
            case Contract():
                yield from self.nests.contract(statement, next(blocks), indent)
            case Apply():
                yield from self.nests.apply(statement, indent)
            case Repeat():
                yield from self._repeat(statement, blocks, indent)
            case _:
                yield from self.others.lines(statement, indent)

    def _repeat(self, it: Repeat, blocks: Iterator[Block], indent: str) -> Lines:
        name, extent = it.loop.name, it.loop.extent
        backwards = f"for (int {name} = {extent - 1}; {name} >= 0; {name}--)"
        yield f"{indent}{backwards if it.backwards else opening(it.loop)} {{"
        for inner in it.body:
            yield from self.threads.wait(indent + "    ", inner)
            yield from self._lines(inner, blocks, indent + "    ")
        yield from self.threads.wait(indent + "    ")
        yield f"{indent}}}"


def _described(statement: Statement | Transpose) -> str:
    match statement:
        case Contract(target=target, left=left, right=right):
            factors = " * ".join(brackets(ref) for ref in (left, right) if ref is not None)
            return f"{statement.layer}: {brackets(target)} += {factors}"
        case Apply(target=target):
            return f"{statement.layer}: {brackets(target)}"
    return f"{statement.layer}: {type(statement).__name__.lower()}"


# The statements that are not loop nests of sums or expressions: maxima, tables, sums over the batch, the loss.


class Others:
    """Prints every statement that is neither a loop nest nor a loop over statements."""

    def __init__(self, access: Access, threads: Threads) -> None:
        self.access, self.plan, self.threads = access, access.plan, threads

    def lines(self, statement: Statement | Transpose, indent: str) -> Lines:
        """The lines of one statement."""
        match statement:
            case MaxPool():
                return self._highest(statement, indent)
            case MaxPoolGradient():
                return self._route(statement, indent)
            case Softmax():
                return self._shares(statement, indent)
            case SoftmaxGradient():
                return self._passes(statement, indent)
            case DropoutMask():
                return self._noise(statement, indent)
            case CausalMask():
                return self._causal(statement, indent)
            case Lookup():
                return self._lookup(statement, indent)
            case Tokens():
                return self._tokens(statement, indent)
            case Scatter():
                return self.threads.scatter(statement, indent)
            case BatchSum():
                return self._meet(statement, indent)
            case RunningStatistic():
                return self._track(statement, indent)
            case Loss():
                return self._score(statement, indent)
            case Transpose():
                return self._turn(statement, indent)
        raise AssertionError(statement)

    # --- maxima ---

    def _highest(self, it: MaxPool, indent: str) -> Lines:
        """The maximum over a window, starting from minus infinity."""
        place = self.access.place
        yield from self._over_windows(
            it,
            it.target,
            indent,
            ["V best = all(-INFINITY);"],
            [f"best = larger({place(it.source)}, best);"],
            [f"{place(it.target)} = best;"],
        )

    def _route(self, it: MaxPoolGradient, indent: str) -> Lines:
        """The gradient goes to the first place that holds the maximum, as in PyTorch."""
        place, forward = self.access.place, it.forward
        yield from self._over_windows(
            forward,
            it.into,
            indent,
            [f"V rest = {place(it.gradient)};", f"const V best = {place(forward.target)};"],
            [
                f"const V here = {place(forward.source)} == best ? rest : V{{}};",
                f"{place(it.into)} += here;",
                "rest -= here;",
            ],
            [],
        )

    def _over_windows(
        self, it: MaxPool, written_to: Ref, indent: str, before: list[str], inside: list[str], after: list[str]
    ) -> Lines:
        """`before` and `after` each window, `inside` for each place of it that lies within the image."""
        headers, depth = self.threads.opened(it.loops, it.window, written_to)
        yield from (indent + line for line in headers)
        indent += "    " * depth
        yield from (indent + line for line in before)
        deep = indent
        for loop in it.window:
            yield f"{deep}{opening(loop)} {{"
            deep += "    "
        shape = self.plan.places[it.source.buffer].shape
        tests = [
            f"{written(i, 0)} < 0 || {written(i, 0)} >= {n}"
            for i, n in zip(it.source.index[1:], shape[1:], strict=True)
        ]
        if tests:
            yield f"{deep}if ({' || '.join(tests)}) continue;"
        yield from (deep + line for line in inside)
        for _ in it.window:
            deep = deep[:-4]
            yield f"{deep}}}"
        yield from (indent + line for line in after)
        for _ in range(depth):
            indent = indent[:-4]
            yield f"{indent}}}"

    # --- softmax ---

    def _shares(self, it: Softmax, indent: str) -> Lines:
        """Powers of the scores below the highest of their row, divided by their sum."""
        source, target, along = self.access.place(it.source), self.access.place(it.target), opening(it.along)
        yield from self._over_rows(
            it,
            it.target,
            indent,
            [
                "V best = all(-INFINITY);",
                f"{along} best = larger({source}, best);",
                "V sum = V{};",
                f"{along} {{",
                f"    const V power = exp_({source} - best);",
                f"    {target} = power;",
                "    sum += power;",
                "}",
                "const V part = reciprocal(sum);",
                f"{along} {target} *= part;",
            ],
        )

    def _passes(self, it: SoftmaxGradient, indent: str) -> Lines:
        """What a share's gradient is above the mean of its row, times the share."""
        share, gradient = self.access.place(it.forward.target), self.access.place(it.gradient)
        along = opening(it.forward.along)
        yield from self._over_rows(
            it.forward,
            it.into,
            indent,
            [
                "V mean = V{};",
                f"{along} mean += {share} * {gradient};",
                f"{along} {self.access.place(it.into)} {'+=' if it.add else '='} {share} * ({gradient} - mean);",
            ],
        )

    def _over_rows(self, it: Softmax, written_to: Ref, indent: str, lines: list[str]) -> Lines:
        """These lines for each row."""
        headers, depth = self.threads.opened(it.loops, (it.along,), written_to)
        yield from (indent + line for line in headers)
        yield from (indent + "    " * depth + line for line in lines)
        yield from (indent + "    " * level + "}" for level in reversed(range(depth)))

    # --- dropout, tables ---

    def _noise(self, it: DropoutMask, indent: str) -> Lines:
        """The factors of dropout, drawn by seed and place."""
        yield f"{indent}{self.threads.each(prod(self.plan.places[it.target].shape))}"
        yield f"{indent}    {self.access.name(it.target)}[q] = kept(g, {it.number}, q, R({it.rate!r}));"

    def _causal(self, it: CausalMask, indent: str) -> Lines:
        """Nothing for steps that came before, and for the step itself."""
        steps = self.plan.places[it.target].shape[-1]
        yield f"{indent}{self.threads.each(steps * steps)}"
        forbidden = f"q % {steps} > q / {steps} ? R({FORBIDDEN}) : R(0)"
        yield f"{indent}    {self.access.name(it.target)}[q] = all({forbidden});"

    def _lookup(self, it: Lookup, indent: str) -> Lines:
        """A row of the table for each token."""
        rows, width = prod(loop.extent for loop in it.loops[:-1]), it.loops[-1].extent
        yield f"{indent}{self.threads.each(rows)} for (int d = 0; d < {width}; d++)"
        yield f"{indent}    for (int l = 0; l < LANES; l++)"
        table = f"{self.access.name(it.table)}[{self.access.token(it.numbers, 'l')} * {width} + d]"
        value = f"lane({table}, l)" if self.plan.target.replicas else table
        yield f"{indent}        set_lane({self.access.name(it.target.buffer)}[q * {width} + d], l, {value});"

    def _tokens(self, it: Tokens, indent: str) -> Lines:
        """The tokens of each lane."""
        yield f"{indent}{self.threads.each(prod(self.plan.places[it.target].shape))}"
        yield f"{indent}    for (int l = 0; l < LANES; l++)"
        yield f"{indent}        set_lane({self.access.name(it.target)}[q], l, R(g.tokens[l][q]));"

    # --- the batch, the loss ---

    def _meet(self, it: BatchSum, indent: str) -> Lines:
        """Every group makes the same sum over the batch, in the same order, so that no group waits for a result."""
        source = self.plan.places[it.source]
        yield f"{indent}{self.threads.each(source.size)} {{"
        yield f"{indent}    W sum = W{{}};"
        yield f"{indent}    for (int64_t k = 0; k < g.groups; k++) {{"
        value = f"g.first_arena[k * ARENA + {source.start} + q]"
        yield f"{indent}        sum += group_sum({value}, k, g.samples);"
        yield f"{indent}    }}"
        yield f"{indent}    {self.access.name(it.target)}[q] = {'g.valid * ' if it.masked else 'V{} + '}sum;"
        yield f"{indent}}}"

    def _track(self, it: RunningStatistic, indent: str) -> Lines:
        """The first group alone moves batch-norm's running statistics."""
        size = prod(self.plan.places[it.moving].shape)
        value = f"first_lane({self.access.name(it.value)}[q])"
        yield f"{indent}if (g.number) return;"
        yield f"{indent}const R n = R(g.samples) * {it.places};"
        yield f"{indent}const R grown = {'n / (n - 1)' if it.unbiased else 'R(1)'};"
        yield f"{indent}{self.threads.each(size)}"
        moving = f"{self.access.name(it.moving)}[q]"
        yield f"{indent}    {moving} += R({it.momentum!r}) * ({value} * grown - {moving});"

    def _score(self, it: Loss, indent: str) -> Lines:
        count = prod(self.plan.places[it.scores].shape)
        scores, gradient = (self.access.part(name, count) for name in (it.scores, f"d_{it.scores}"))
        function = f"{it.loss}<{count // it.places}>" if it.labels else f"errors<{count}, {it.loss}>"
        yield f"{indent}{function}(g, {scores}, {gradient}, R({it.number!r}));"

    def _turn(self, it: Transpose, indent: str) -> Lines:
        """A row per sample; the network's input has rows already, which are copied."""
        program, lanes = self.plan.program, self.plan.target.lanes
        *outer, size = program.shape(it.source)
        rows, wide = prod(outer), self.plan.places[it.target].shape[-1] * lanes
        target = self.access.part(it.target, wide, f"t * {wide}")
        yield f"{indent}for (int t = 0; t < {rows}; t++)"
        if program.base(it.source) == "input" and not program.tokens:
            yield f"{indent}    copy_rows<{size}, {wide}>(g, t * {size}, {target});"
        else:
            source = self.access.part(it.source, size, f"t * {size}")
            yield f"{indent}    turn<{size}, {wide}>({source}, {target});"
