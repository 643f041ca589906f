"""The function that makes a step: a rule's lines, then the optimizer's, in passes over a block between roots.

    gradient ──▶ lines up to a root ──▶ all roots of the block, by PyTorch's own function ──▶ the lines after it ──▶ ...

Only the last pass writes new values, so all of them may lie where the old ones do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.kernels.printers.cpp import part
from paceline.kernels.served_steps import ServedRule, ServedStep


class StorePlace(NamedTuple):
    """Where new numbers go: at once, or a block at a time where other cores read them."""

    name: str
    at: str


class Pass(NamedTuple):
    """Lines for each number, and whose root is taken after them."""

    lines: tuple[str, ...]
    root_of: str | None = None


def step_text(step: ServedStep, rule: ServedRule) -> str:
    """The C++ of `step(settings, scale, numbers)`, where gradients are multiplied by `scale` first."""
    names = [*(f"    const double {name} = settings[{n}];" for n, name in enumerate(step.settings))]
    names += [f"    const R {name} = R(settings[{len(step.settings) + n}]);" for n, name in enumerate(rule.settings)]
    places = [
        StorePlace("new_values", "n.fresh"),
        *(StorePlace(f"new_state{k}", f"n.kept[{k}]") for k in range(len(step.states))),
        *([StorePlace("new_memory", "n.noting")] if rule.memory is not None else []),
    ]
    return "\n".join(
        [
            f"#define SETTINGS {len(step.settings) + len(rule.settings)}",
            f"#define REMEMBERS {int(bool(step.remembered))}",
            f"#define STATES {len(step.states)}",
            part("rows"),
            part("stream"),
            part("step"),
            "static void step(const double* settings, R scale, const Numbers& n) {",
            *names,
            "    const bool present = n.present;",
            f"    const double t = {'present ? *n.counted + 1.0f : 1.0f' if step.counts else '0'};",
            "    (void)settings, (void)present, (void)t;",
            *(f"    {line}" for line in step.once),
            "    R bent[BLOCK], roots[BLOCK], from_here[BLOCK];",
            f"    R {', '.join(f'{place.name}_block[BLOCK]' for place in places)};",
            "    for (int64_t from = 0; from < n.rows * n.width; from += BLOCK) {",
            "        const int64_t left = n.rows * n.width - from, size = left < BLOCK ? left : BLOCK;",
            "        (void)roots, (void)from_here;",
            *(f"        R* const {p.name} = n.shared ? {p.name}_block : {p.at} + from;" for p in places),
            "        gather(n, n.gradient, scale, from, size, bent);",
            *(["        gather(n, n.pulled, R(1), from, size, from_here);"] if rule.uses_pulled else []),
            *(f"        {line}" for line in _passes(step, rule)),
            "        if (n.own) scatter(n, new_values, from, size);",
            *(f"        if (n.shared) stream({p.at} + from, {p.name}, size);" for p in places),
            "    }",
            *(["    *n.counting = (float)t;"] if step.counts else []),
            "}",
            "",
        ]
    )


def _passes(step: ServedStep, rule: ServedRule) -> Iterator[str]:
    """The loops over a block."""
    passes = [Pass(rule.each, rule.root_of), Pass(rule.then)] if rule.root_of else [Pass(rule.each)]
    passes[-1] = Pass((*passes[-1].lines, *step.each), step.root_of)
    if step.root_of:
        passes.append(Pass(step.then))
    for number, each in enumerate(passes):
        yield "EACH"
        yield "for (int64_t q = 0; q < size; q++) {"
        yield "    R w = n.old[from + q], g = bent[q];"
        if rule.uses_pulled:
            yield "    const R p = from_here[q];"
        if number:
            yield "    const R root = roots[q];"
        earlier = [line for before in passes[:number] for line in before.lines]
        yield from (f"    {line}" for line in _remembered(step, rule, earlier, each.lines))
        if each.root_of is not None:
            yield f"    roots[q] = {each.root_of};"
            yield "    bent[q] = g;"
        else:
            yield "    new_values[q] = w;"
        yield "}"
        if each.root_of is not None:
            yield "take_roots(roots, size);"


def _remembered(step: ServedStep, rule: ServedRule, earlier: Sequence[str], lines: Sequence[str]) -> Iterator[str]:
    """The lines of a pass between what they read of things remembered and what they write there."""
    states = [(f"r{n}", f"s{n}", f"n.remembered[{n}]", f"new_state{n}", step.start) for n in range(len(step.states))]
    written = []
    for before, after, old, new, start in states:
        if _sets(after, lines):
            yield f"const R {before} = present ? {old}[from + q] : R({start});"
            yield f"R {after};"
            yield f"(void){before};"
            written.append(f"{new}[q] = {after};")
        elif _sets(after, earlier):
            yield f"const R {after} = {new}[q];"
    if rule.memory is not None:
        yield f"R m = {'new_memory[q]' if _sets('m', earlier) else 'n.noted[from + q]'};"
        if _sets("m", lines):
            written.append("new_memory[q] = m;")
    yield from (*lines, *written)


def _sets(name: str, lines: Sequence[str]) -> bool:
    return any(line.startswith(f"{name} = ") for line in lines)
