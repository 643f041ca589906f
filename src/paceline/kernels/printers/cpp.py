"""The whole text of a plan in C++: a function per step, the phases, and the loop over batches that a team runs.

The same text is sequential, vectorised over samples, vectorised over copies of the model, float or double: what differs
is the type of a lane and how many there are. Its steps are in two parts, which may be compiled side by side.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate
from math import prod
from pathlib import Path

from paceline.kernels.build import TWO_PARTS
from paceline.kernels.ir import Contract, Loss
from paceline.kernels.losses import SCORE, TARGET
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import CHUNKS, Plan, contractions
from paceline.kernels.printers.access import Access, OneThread
from paceline.kernels.printers.nests import Nests, PixelNests, RegisterNests
from paceline.kernels.printers.printer import Printer

MANY = 16384  # weights, of which a chunk's gradient no longer stays in the nearest cache
LITTLE = 200  # operations of a group for each weight: next to them, adding a chunk's gradient to others counts
SLICE = 8192  # weights that are worth another thread's while
LONG = 60_000  # letters of steps, more of which two compilers make sooner than one
BESIDE = 50_000  # letters of steps that take a compiler as long as all else, which is in the first part
HERE = Path(__file__).parent


def text(plan: Plan, rule: Rule, printer: Printer | None = None) -> str:
    """The C++ of a plan and of the optimizer's rule, its steps by `printer` or in the form that the plan's target asks
    for.
    """
    target, weights = plan.target, plan.sizes["weights"]
    printer = printer or vectorised(plan)
    definitions = {
        "CHUNKS": CHUNKS,
        "LANE_NUMBERS": plan.sizes["lanes"],
        "CHUNK_GROUPS": 2 if weights > MANY and plan.flops * target.lanes < LITTLE * weights else 1,
        "SLICES": max(1, min(CHUNKS, weights // SLICE)),
    }
    steps = ["\n".join(printer.function(step)) for step in plan.steps()]
    lines = [TWO_PARTS] if sum(map(len, steps)) > LONG else []
    lines += [f"#define {name} {value}" for name, value in (constants(plan, rule) | definitions).items()]
    lines += [part("prelude"), part("arrays"), part("call"), part("functions")]
    if target.pixels:
        lines += _wide_functions(target)
    lines += [*losses(plan, printer), _butterfly(target.lanes), part("group"), part("update")]
    lines += [f"STEP {step.name}(Group& g);" for step in plan.steps()]
    half = bisect(list(accumulate(map(len, steps))), (sum(map(len, steps)) - BESIDE) // 2)
    lines += ["#if IN_PART(1)", *steps[half:], "#endif", "#if IN_PART(0)", *steps[:half]]
    lines += phases(plan, printer)
    lines.append(f"static void (*const STEPS[])(Group&) = {{{', '.join(step.name for step in plan.steps())}}};")
    lines += [*_chunk_begin(plan), *_chunk_end(plan)]
    lines += rule.lines()
    lines += [part("stream"), part("exchange"), part("team"), "#endif"]
    return "\n".join(lines)


def vectorised(plan: Plan) -> Printer:
    """Prints a plan whose vectors hold samples, or neighbouring numbers of one sample."""
    access = Access(plan)
    nests: Nests = PixelNests(access) if plan.target.pixels else RegisterNests(access)
    return Printer(access, nests, OneThread(access))


def constants(plan: Plan, rule: Rule) -> dict[str, object]:
    """The macros that every text defines of its network, by the names that its parts use."""
    target = plan.target
    return {
        "REAL": target.real,
        "LANES": target.lanes,
        "DOUBLE": int(target.real == "double"),
        "REPLICAS": int(target.replicas),
        "PHASES": len(plan.phases),
        "ARENA": plan.sizes["arena"],
        "NUMBERS": plan.sizes["weights"],
        "INPUTS": prod(plan.program.inputs),
        "TOKENS": int(plan.program.tokens),
        "OUTPUTS": plan.program.outputs,
        "STATES": rule.states,
        "SETTINGS": len(rule.settings),
        "PLACES": prod(plan.program.places),
    }


def losses(plan: Plan, printer: Printer) -> Iterator[str]:
    """The losses, an own one among them, and how much each class counts."""
    yield part("errors")
    statements = [it for it in plan.program.forward if isinstance(it, Loss)]
    if not statements:  # the way forward alone
        yield "FUNCTION R weight_of(int64_t) { return R(1); }"
    for it in statements:
        if it.own is not None:
            names = {SCORE: "s", TARGET: "y"}
            value, slope = (printer.access.expression(each, {}, names) for each in it.own)
            yield f"struct {it.loss} {{"
            yield f"    INLINE V value(V s, V y, R) {{ return V{{}} + {value}; }}"
            yield f"    INLINE V slope(V s, V y, R) {{ return V{{}} + {slope}; }}"
            yield "};"
        if it.weights:
            yield f"CONSTANT R CLASS_WEIGHTS[] = {{{', '.join(map(repr, it.weights))}}};"
        counts = "CLASS_WEIGHTS[label]" if it.weights else "R(1)"
        yield f"FUNCTION R weight_of(int64_t label) {{ return label == {it.ignored} ? R(0) : {counts}; }}"


def part(name: str) -> str:
    """A part of the text that is the same for all networks."""
    return (HERE / f"{name}.hpp").read_text(encoding="utf-8")


def _wide_functions(target: Target) -> Iterator[str]:
    """The functions once more, of a vector of neighbours within one sample."""
    yield f"#define NEIGHBOURS {target.wide}"
    yield "typedef R X __attribute__((vector_size(NEIGHBOURS * sizeof(R))));"
    yield "#undef LANES\n#define LANES NEIGHBOURS"
    yield from (f"#define {name} {name}_of_neighbours" for name in ("V", "WORDS", "all"))
    yield "typedef X V;"
    yield part("functions")
    yield from (f"#undef {name}" for name in ("V", "WORDS", "all", "LANES"))
    yield "#define LANES 1"
    yield part("wide")


def phases(plan: Plan, printer: Printer) -> Iterator[str]:
    """A function per phase, which calls its steps."""
    wait = printer.threads.wait
    begin, end = plan.zeroed
    number = 0
    for phase, steps in enumerate(plan.phases):
        yield f"FUNCTION void phase{phase}(Group& g) {{"
        if phase == 0 and not plan.program.tokens:
            yield f"    take_inputs(g, Array<V, INPUTS>{{{printer.access.pointer('input')}}});"
        yield from wait("    ")
        for step in steps:
            if number == plan.halfway and end > begin:
                yield f"    set_to_zero(g.arena + {begin}, {end - begin});"
                yield from wait("    ")
            yield from wait("    ", step.statement)
            yield f"    {step.name}(g);"
            number += 1
        yield "}"
    calls = " ".join(f"case {phase}: return phase{phase}(g);" for phase in range(len(plan.phases)))
    yield f"FUNCTION void run_phase(int phase, Group& g) {{ switch (phase) {{ {calls} }} }}"


def _chunk_begin(plan: Plan) -> Iterator[str]:
    """Prints the function that sets a gradient to zero, but where its first group of samples stores all numbers."""
    stored = [plan.places[plan.program.base(it.target.buffer)] for it in _contractions(plan) if it.first]
    yield "static void begin_chunk(W* gradient) {"
    begin = 0
    for place in sorted(stored, key=lambda place: place.start):
        yield f"    std::memset((void*)(gradient + {begin}), 0, sizeof(W) * {place.start - begin});"
        begin = place.start + place.size
    yield f"    std::memset((void*)(gradient + {begin}), 0, sizeof(W) * (NUMBERS - {begin}));"
    yield "}"


def _contractions(plan: Plan) -> Iterator[Contract]:
    for step in plan.steps():
        yield from contractions(step.statement)


def _chunk_end(plan: Plan) -> Iterator[str]:
    """Prints the function that sums sums over lanes, to one number per weight."""
    yield "static void end_chunk(W* gradient, const V* lanes) {"
    for name, place in plan.places.items():
        if place.region == "lanes" and not plan.program.buffers[name].base:
            weight = plan.places[name.removeprefix("d_")]
            yield "    {"
            yield f"    const Array<W, {weight.size}> sums{{gradient + {weight.start}}};"
            yield f"    const Array<const V, {place.size}> parts{{lanes + {place.start}}};"
            yield f"    for (int q = 0; q < {place.size}; q++) sums[q] = sum_of_lanes(parts[q]);"
            yield "    }"
    yield "    (void)gradient, (void)lanes;"
    yield "}"


def _butterfly(lanes: int) -> str:
    """Rows and columns of a square exchanged, in as many rounds as its side has bits."""
    lines = ["INLINE void exchange(V* a) {"]
    step = 1
    while step < lanes:
        low = ", ".join(str(j - step + lanes if j & step else j) for j in range(lanes))
        high = ", ".join(str(j + lanes if j & step else j + step) for j in range(lanes))
        lines.append(f"    for (int i = 0; i < {lanes}; i++) {{")
        lines.append(f"        if (i & {step}) continue;")
        lines.append(f"        const V one = a[i], other = a[i + {step}];")
        lines.append(f"        a[i] = __builtin_shufflevector(one, other, {low});")
        lines.append(f"        a[i + {step}] = __builtin_shufflevector(one, other, {high});")
        lines.append("    }")
        step *= 2
    return "\n".join([*lines, "    (void)a;", "}"])
