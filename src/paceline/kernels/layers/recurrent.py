"""Recurrent layers: contractions and gates within a loop over the steps; in one direction or both, one upon another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.kernels.ir import Apply, Contract, FunctionCall, Index, Loop, Op, Program, Ref, Repeat, at
from paceline.kernels.layers.base import (
    CallSite,
    CannotFuse,
    Layer,
    LayerSpec,
    dropped,
    loops_of,
    start_of,
    trains,
    weights_of,
)

WORDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
ANOTHER = 1 << 16  # so far apart are the numbers of a layer's masks


def recognise(kind: str) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for a recurrent layer of this kind."""

    def row(part: Any, site: CallSite) -> LayerSpec:
        if getattr(part, "proj_size", 0):
            raise CannotFuse(f"{site.what}: proj_size= has no kernel; a dense layer after it has")
        if site.axis != (0 if part.batch_first else 1):
            raise CannotFuse(f"{site.what}: batch_first={part.batch_first}, and samples are dimension {site.axis}")
        if len(site.shapes[0]) != 2 or site.shapes[0][1] != part.input_size:
            raise CannotFuse(f"{site.what} gets samples of shape {site.shapes[0]}, and wants steps x {part.input_size}")
        if part.dropout:
            trains(part, site)
        directions = 2 if part.bidirectional else 1
        options = {"layers": part.num_layers, "directions": directions, "rate": part.dropout}
        options |= {"function": part.nonlinearity} if kind == "rnn" else {}
        words = [f"{w}{suffix(k, d)}" for k in range(part.num_layers) for d in range(directions) for w in WORDS]
        shape = (site.shapes[0][0], directions * part.hidden_size)
        return kind, shape, options, weights_of(part, *words)

    return row


def suffix(layer: int, direction: int) -> str:
    """What PyTorch writes behind the names of the parameters of one layer in one direction."""
    return f"_l{layer}{'_reverse' if direction else ''}"


def states_of(name: str, layer: int, direction: int) -> str:
    """The buffer of all states of one layer in one direction; the first state, or the last one in reverse, is zero."""
    return f"{name}.states{suffix(layer, direction)}"


@dataclass
class Direction:
    """One layer in one direction: its buffers begin with zeros at the end where it starts."""

    program: Program
    layer: Layer
    suffix: str
    steps: int
    hidden: int
    reverse: bool

    def __post_init__(self) -> None:
        after: tuple[str | int, ...] = ("t", 1, 1)
        self.before, self.after = (at(after, "j"), at("t", "j")) if self.reverse else (at("t", "j"), at(after, "j"))
        self.loops = loops_of("j", (self.hidden,))

    def new(self, word: str, steps: int, places: int) -> str:
        return self.program.new(f"{self.layer.name}.{word}{self.suffix}", (steps, places))

    def own(self, word: str) -> Ref:
        """A number for each step and unit."""
        return Ref(self.new(word, self.steps, self.hidden), at("t", "j"))

    def gates(self, source: str, count: int) -> tuple[str, str, Contract]:
        """The gates of all steps and how a step computes its own.

        The input's part is computed for all steps at once; a step adds a contraction of the hidden state, which begins
        with zeros.
        """
        layer, steps, places = self.layer, self.steps, count * self.hidden
        input_gates, features = self.new("given", steps, places), self.program.shape(source)[1]
        self.program.forward.append(
            Contract(
                loops_of("t g i", (steps, places, features)),
                Ref(input_gates, at("t", "g")),
                Ref(layer.weights[f"weight_ih{self.suffix}"], at("g", "i")),
                Ref(source, at("t", "i")),
                start_of(layer, f"bias_ih{self.suffix}", "g"),
                layer=layer.name,
            )
        )
        states = self.new("states", steps + 1, self.hidden)
        step = Contract(
            loops_of("g j", (places, self.hidden)),
            Ref(self.new("recalled", steps, places), at("t", "g")),
            Ref(layer.weights[f"weight_hh{self.suffix}"], at("g", "j")),
            Ref(states, self.before),
            start_of(layer, f"bias_hh{self.suffix}", "g"),
            layer=layer.name,
        )
        return input_gates, states, step

    def set(self, target: Ref, value: Any) -> Apply:
        return Apply(self.loops, target, value, layer=self.layer.name)

    def repeat(self, *body: Contract | Apply) -> None:
        self.program.forward.append(Repeat(Loop("t", self.steps), body, self.reverse, self.layer.name))


def lstm(it: Direction, source: str) -> str:
    """The four gates of every step, and its cell."""
    input_gates, states, step = it.gates(source, 4)
    cells, body = it.new("cells", it.steps + 1, it.hidden), list[Contract | Apply]([step])

    def gate(position: int, word: str, function: str) -> Ref:
        place = _part(position, it.hidden)
        target = it.own(word)
        body.append(
            it.set(target, FunctionCall(function, Op("+", Ref(input_gates, place), Ref(step.target.buffer, place))))
        )
        return target

    enter, forget = gate(0, "enter", "sigmoid"), gate(1, "forget", "sigmoid")
    fresh, leave = gate(2, "fresh", "tanh"), gate(3, "leave", "sigmoid")
    cell = Op("+", Op("*", forget, Ref(cells, it.before)), Op("*", enter, fresh))
    body.append(it.set(Ref(cells, it.after), cell))
    squashed = it.own("squashed")
    body.append(it.set(squashed, FunctionCall("tanh", Ref(cells, it.after))))
    body.append(it.set(Ref(states, it.after), Op("*", leave, squashed)))
    it.repeat(*body)
    return states


def rnn(it: Direction, source: str) -> str:
    """A function of the input's part and of the state before."""
    input_gates, states, step = it.gates(source, 1)
    both = Op("+", Ref(input_gates, _part(0, it.hidden)), Ref(step.target.buffer, _part(0, it.hidden)))
    it.repeat(step, it.set(Ref(states, it.after), FunctionCall(it.layer.options["function"], both)))
    return states


def gru(it: Direction, source: str) -> str:
    """The three gates of every step."""
    input_gates, states, step = it.gates(source, 3)

    def part(position: int) -> tuple[Ref, Ref]:
        place = _part(position, it.hidden)
        return Ref(input_gates, place), Ref(step.target.buffer, place)

    reset, update, fresh = it.own("reset"), it.own("update"), it.own("fresh")
    # Unlike the other gates: the reset gate multiplies the state's part, with its bias, before the two are added.
    new, old = part(2)
    state = Op("+", fresh, Op("*", update, Op("-", Ref(states, it.before), fresh)))
    it.repeat(
        step,
        it.set(reset, FunctionCall("sigmoid", Op("+", *part(0)))),
        it.set(update, FunctionCall("sigmoid", Op("+", *part(1)))),
        it.set(fresh, FunctionCall("tanh", Op("+", new, Op("*", reset, old)))),
        it.set(Ref(states, it.after), state),
    )
    return states


def _part(position: int, hidden: int) -> tuple[Index, ...]:
    """The place of a gate among those of its step."""
    return at("t", ("j", 1, position * hidden))


def lower(cell: Callable[[Direction, str], str]) -> Callable[[Program, Layer, list[str], int], str]:
    """All layers and directions of a recurrent layer with this cell."""

    def written(program: Program, layer: Layer, sources: list[str], number: int) -> str:
        options, source = layer.options, sources[0]
        steps, width = layer.shape
        hidden = width // options["directions"]
        for k in range(options["layers"]):
            if k and options["rate"]:
                source = dropped(program, layer, source, f"{source}.kept", number + k * ANOTHER)
            last = k == options["layers"] - 1
            outputs = program.new(layer.name if last else f"{layer.name}.outputs{suffix(k, 0)}", (steps, width))
            for d in range(options["directions"]):
                it = Direction(program, layer, suffix(k, d), steps, hidden, bool(d))
                states = cell(it, source)
                target = Ref(outputs, at("t", ("j", 1, d * hidden)))
                loops = loops_of("t j", (steps, hidden))
                program.forward.append(Apply(loops, target, Ref(states, it.after), layer=layer.name))
            source = outputs
        return source

    return written


def lower_state(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """The state with which a layer ends in one direction."""
    options = layer.options
    states = states_of(sources[0], options["layer"], options["direction"])
    # In reverse the last step made is that of the first place of the sequence.
    end = 0 if options["direction"] else program.shape(states)[0] - 1
    target = Ref(program.new(layer.name, layer.shape), at("j"))
    program.forward.append(Apply(loops_of("j", layer.shape), target, Ref(states, at(end, "j")), layer=layer.name))
    return layer.name
