"""Recurrent layers: contractions and gates within a loop over the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.kernels.ir import Apply, Call, Contract, Loop, Loops, Op, Program, Ref, Repeat, at
from paceline.kernels.layers.base import CannotFuse, Found, Layer, Seen, loops_of, start_of, weights_of


def recognise(kind: str) -> Callable[[Any, Seen], Found]:
    """A row for a recurrent layer of this kind."""

    def row(part: Any, seen: Seen) -> Found:
        if part.bidirectional or part.num_layers > 1 or getattr(part, "proj_size", 0) or not part.batch_first:
            raise CannotFuse(
                f"{seen.what}: there is a kernel of one layer in one direction, with batch_first=True; stack several"
            )
        if len(seen.shapes[0]) != 2 or seen.shapes[0][1] != part.input_size:
            raise CannotFuse(f"{seen.what} gets samples of shape {seen.shapes[0]}, and wants steps x {part.input_size}")
        weights = weights_of(part, "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        return kind, (seen.shapes[0][0], part.hidden_size), {}, weights

    return row


def _gates(program: Program, layer: Layer, source: str, gates: int) -> tuple[str, str, Loops, Contract]:
    """The gates of all steps and how a step computes its own.

    The input's part is computed for all steps at once; a step adds a contraction of the hidden state, which begins with
    zeros.
    """
    name, (steps, hidden) = layer.name, layer.shape
    features = program.shape(source)[1]
    given = program.new(f"{name}.given", (steps, gates * hidden))
    program.forward.append(
        Contract(
            loops_of("t g i", (steps, gates * hidden, features)),
            Ref(given, at("t", "g")),
            Ref(layer.weights["weight_ih_l0"], at("g", "i")),
            Ref(source, at("t", "i")),
            start_of(layer, "bias_ih_l0", "g"),
            layer=name,
        )
    )
    states = program.new(f"{name}.states", (steps + 1, hidden))
    recalled = program.new(f"{name}.recalled", (steps, gates * hidden))
    step = Contract(
        loops_of("g j", (gates * hidden, hidden)),
        Ref(recalled, at("t", "g")),
        Ref(layer.weights["weight_hh_l0"], at("g", "j")),
        Ref(states, at("t", "j")),
        start_of(layer, "bias_hh_l0", "g"),
        layer=name,
    )
    return given, states, loops_of("j", (hidden,)), step


def _outputs(program: Program, layer: Layer, states: str) -> str:
    """The states but for the first."""
    target = Ref(program.new(layer.name, layer.shape), at("t", "j"))
    loops = loops_of("t j", layer.shape)
    program.forward.append(Apply(loops, target, Ref(states, at(("t", 1, 1), "j")), layer=layer.name))
    return layer.name


def lower_lstm(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """The four gates of every step, and its cell."""
    name, (steps, hidden) = layer.name, layer.shape
    given, states, loops, step = _gates(program, layer, sources[0], 4)
    body: list[Contract | Apply] = [step]
    here, cells = at("t", "j"), program.new(f"{name}.cells", (steps + 1, hidden))

    def gate(position: int, word: str, function: str) -> Ref:
        place = at("t", ("j", 1, position * hidden))
        both = Op("+", Ref(given, place), Ref(step.target.buffer, place))
        target = Ref(program.new(f"{name}.{word}", layer.shape), here)
        body.append(Apply(loops, target, Call(function, both), layer=name))
        return target

    enter, forget = gate(0, "enter", "sigmoid"), gate(1, "forget", "sigmoid")
    fresh, leave = gate(2, "fresh", "tanh"), gate(3, "leave", "sigmoid")
    after = at(("t", 1, 1), "j")
    cell = Op("+", Op("*", forget, Ref(cells, here)), Op("*", enter, fresh))
    body.append(Apply(loops, Ref(cells, after), cell, layer=name))
    squashed = Ref(program.new(f"{name}.squashed", layer.shape), here)
    body.append(Apply(loops, squashed, Call("tanh", Ref(cells, after)), layer=name))
    body.append(Apply(loops, Ref(states, after), Op("*", leave, squashed), layer=name))
    program.forward.append(Repeat(Loop("t", steps), tuple(body), layer=name))
    return _outputs(program, layer, states)


def lower_gru(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """The three gates of every step."""
    name, (steps, hidden) = layer.name, layer.shape
    given, states, loops, step = _gates(program, layer, sources[0], 3)
    recalled, here = step.target.buffer, at("t", "j")

    def part(position: int) -> tuple[Ref, Ref]:
        place = at("t", ("j", 1, position * hidden))
        return Ref(given, place), Ref(recalled, place)

    reset, update, fresh = (Ref(program.new(f"{name}.{w}", layer.shape), here) for w in ("reset", "update", "fresh"))
    new, old = part(2)
    before = Ref(states, here)
    state = Op("+", fresh, Op("*", update, Op("-", before, fresh)))
    body = (
        step,
        Apply(loops, reset, Call("sigmoid", Op("+", *part(0))), layer=name),
        Apply(loops, update, Call("sigmoid", Op("+", *part(1))), layer=name),
        Apply(loops, fresh, Call("tanh", Op("+", new, Op("*", reset, old))), layer=name),
        Apply(loops, Ref(states, at(("t", 1, 1), "j")), state, layer=name),
    )
    program.forward.append(Repeat(Loop("t", steps), body, layer=name))
    return _outputs(program, layer, states)
