"""From layers to statements: what each kind of layer computes, once, forwards. The way back is derived (adjoint.py).

A convolution along one dimension is one along two, of images one pixel high.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from paceline.kernels.adjoint import derive
from paceline.kernels.graph import Graph, Layer
from paceline.kernels.ir import (
    Apply,
    Call,
    Contract,
    Expression,
    Highest,
    Index,
    Kind,
    Lookup,
    Loop,
    Loops,
    Meet,
    Noise,
    Number,
    Op,
    Program,
    Ref,
    Repeat,
    Score,
    Track,
    at,
)

Shape = tuple[int, ...]


def lower(graph: Graph, weights: Mapping[str, Shape], trained: set[str], loss: str) -> Program:
    """The program of a graph. `weights` are the module's parameters and moving buffers, by name."""
    program = Program(inputs=graph.inputs, tokens=graph.tokens)
    program.new("input", graph.inputs)
    for name, shape in weights.items():
        program.new(name, shape, Kind.WEIGHT)
    values = {"input": "input"}
    for number, layer in enumerate(graph.layers):
        values[layer.name] = LOWER[layer.kind](program, layer, [values[name] for name in layer.inputs], number)
    result = values[graph.result]
    program.outputs = prod(program.shape(result))
    scores = program.view("scores", result, (program.outputs,))
    program.forward.append(Score(loss, scores))
    derive(program, trained)
    return program


def _loops(names: str, extents: Shape) -> Loops:
    return tuple(Loop(name, extent) for name, extent in zip(names.split(), extents, strict=True))


def _everywhere(program: Program, name: str) -> tuple[Loops, Ref]:
    """Loops over all of a buffer, and the place that they name."""
    shape = program.shape(name)
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(shape))
    return loops, Ref(name, at(*(loop.name for loop in loops)))


def _start(layer: Layer, word: str, *place: str | tuple[str | int, ...]) -> Ref | None:
    return Ref(layer.weights[word], at(*place)) if word in layer.weights else None


def _images(program: Program, layer: Layer, source: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """The source as images of two dimensions, with a margin of zeros where the layer asks for one; its options, too."""
    flat = len(layer.options["kernel"]) == 1
    words = {
        word: ((neutral, *layer.options[word]) if flat else layer.options[word])
        for word, neutral in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
        if word in layer.options
    }
    channels, *sizes = program.shape(source)
    if flat:
        source = program.view(f"{layer.name}.image", source, (channels, 1, *sizes))
    top, left = words.get("padding", (0, 0))
    if (top or left) and layer.kind != "highest_pooling":
        channels, height, width = program.shape(source)
        padded = program.new(f"{layer.name}.padded", (channels, height + 2 * top, width + 2 * left))
        loops = _loops("c y x", (channels, height, width))
        target = Ref(padded, at("c", ("y", 1, top), ("x", 1, left)))
        program.forward.append(Apply(loops, target, Ref(source, at("c", "y", "x")), layer=layer.name))
        source = padded
    return source, words


def _maps(layer: Layer) -> tuple[Shape, Callable[..., tuple[Index, ...]]]:
    """The extents of the result as images, and how a place in it is written."""
    channels, *sizes = layer.shape
    if len(sizes) == 2:
        return layer.shape, lambda c: at(c, "y", "x")
    return (channels, 1, *sizes), lambda c: at(c, "x")


def _convolution(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    source, words = _images(program, layer, sources[0])
    groups: int = layer.options["groups"]
    (outputs, height, width), place = _maps(layer)
    target = program.new(layer.name, layer.shape)
    (sy, sx), (dy, dx), (ky, kx) = words["stride"], words["dilation"], words["kernel"]
    inputs, each = program.shape(source)[0] // groups, outputs // groups
    weight = layer.weights["weight"]
    if program.shape(weight) != (outputs, inputs, ky, kx):
        weight = program.view(f"{weight}.maps", weight, (outputs, inputs, ky, kx))
    loops = _loops("o y x i ky kx", (each, height, width, inputs, ky, kx))
    o: tuple[str | int, ...] = ("o",)
    i: tuple[str | int, ...] = ("i",)
    if groups > 1:
        loops, o, i = (Loop("g", groups), *loops), ("g", each, "o"), ("g", inputs, "i")
    program.forward.append(
        Contract(
            loops,
            Ref(target, place(o)),
            Ref(weight, at(o, "i", "ky", "kx")),
            Ref(source, at(i, ("y", sy, "ky", dy), ("x", sx, "kx", dx))),
            _start(layer, "bias", o),
            layer=layer.name,
        )
    )
    return layer.name


def _subsampling(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    (ky, kx), (channels, height, width) = layer.options["kernel"], layer.shape
    loops = _loops("c y x ky kx", (channels, height, width, ky, kx))
    weight = program.view(f"{layer.weights['weight']}.taps", layer.weights["weight"], (ky, kx))
    place = at("c", ("y", ky, "ky"), ("x", kx, "kx"))
    target = Ref(program.new(layer.name, layer.shape), at("c", "y", "x"))
    start = Ref(layer.weights["bias"], at(0))
    program.forward.append(
        Contract(loops, target, Ref(weight, at("ky", "kx")), Ref(sources[0], place), start, layer=layer.name)
    )
    return layer.name


def _average(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    source, words = _images(program, layer, sources[0])
    extents, place = _maps(layer)
    (sy, sx), (ky, kx) = words["stride"], words["kernel"]
    total = Ref(program.new(f"{layer.name}.sum", layer.shape), place("c"))
    loops = _loops("c y x ky kx", (*extents, ky, kx))
    window = Ref(source, at("c", ("y", sy, "ky"), ("x", sx, "kx")))
    program.forward.append(Contract(loops, total, None, window, layer=layer.name))
    share = Op("*", total, Number(1.0 / (ky * kx)))
    target = Ref(program.new(layer.name, layer.shape), place("c"))
    program.forward.append(Apply(loops[:3], target, share, layer=layer.name))
    return layer.name


def _highest(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    source, words = _images(program, layer, sources[0])
    extents, place = _maps(layer)
    (sy, sx), (dy, dx), (py, px) = words["stride"], words["dilation"], words["padding"]
    window = Ref(source, at("c", ("y", sy, "ky", dy, -py), ("x", sx, "kx", dx, -px)))
    target = Ref(program.new(layer.name, layer.shape), place("c"))
    loops = _loops("c y x", extents)
    program.forward.append(Highest(loops, _loops("ky kx", words["kernel"]), target, window, layer.name))
    return layer.name


def _linear(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    source, weight = sources[0], layer.weights["weight"]
    outputs, inputs = program.shape(weight)
    *rest, _ = program.shape(source)
    outer = tuple(Loop(f"t{d}", extent) for d, extent in enumerate(rest))
    names = [loop.name for loop in outer]
    target = Ref(program.new(layer.name, layer.shape), at(*names, "o"))
    loops = (*outer, Loop("o", outputs), Loop("i", inputs))
    start = _start(layer, "bias", "o")
    program.forward.append(
        Contract(loops, target, Ref(weight, at("o", "i")), Ref(source, at(*names, "i")), start, layer=layer.name)
    )
    return layer.name


def _activation(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    loops, place = _everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), place.index)
    program.forward.append(Apply(loops, target, Call(layer.options["function"], place), layer=layer.name))
    return layer.name


def _add(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    loops, one = _everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), one.index)
    both = Op("+", one, Ref(sources[1], one.index))
    program.forward.append(Apply(loops, target, both, layer=layer.name))
    return layer.name


def _reshape(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    return program.view(layer.name, sources[0], layer.shape)


def _step(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    place = at(*(loop.name for loop in loops))
    target = Ref(program.new(layer.name, layer.shape), place)
    source = Ref(sources[0], (*at(layer.options["step"]), *place))
    program.forward.append(Apply(loops, target, source, layer=layer.name))
    return layer.name


def _dropout(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    loops, place = _everywhere(program, sources[0])
    mask = program.new(f"{layer.name}.mask", layer.shape)
    program.forward.append(Noise(mask, layer.options["rate"], number, layer.name))
    target = Ref(program.new(layer.name, layer.shape), place.index)
    kept = Op("*", place, Ref(mask, place.index))
    program.forward.append(Apply(loops, target, kept, layer=layer.name))
    return layer.name


def _batch_norm(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Sums over the samples are two meetings; what lies between them is of one sample, as everything else.

    `meet` sums over the samples of the batch and `share` is 1 / (samples x places); mean and variance are the same in
    all lanes.
    """
    source, name = sources[0], layer.name
    loops, place = _everywhere(program, source)
    channels, *sizes = program.shape(source)
    channel, here = (loops[0],), at("q0")
    steps = program.forward

    def mean(of: str, value: str) -> str:
        local = program.new(f"{name}.{of}.sum", (channels,))
        steps.append(Contract(loops, Ref(local, here), None, Ref(value, place.index), layer=name))
        total = program.new(f"{name}.{of}.total", (channels,))
        steps.append(Meet(total, local, layer=name))
        result = program.new(f"{name}.{of}", (channels,))
        share = Op("*", Ref(total, here), Op("*", Ref("share", ()), Number(1.0 / prod(sizes))))
        steps.append(Apply(channel, Ref(result, here), share, layer=name))
        return result

    if "share" not in program.buffers:
        program.new("share", ())
    centre = mean("mean", source)
    centred = Ref(program.new(f"{name}.centred", layer.shape), place.index)
    steps.append(Apply(loops, centred, Op("-", place, Ref(centre, here)), layer=name))
    square = Ref(program.new(f"{name}.square", layer.shape), place.index)
    steps.append(Apply(loops, square, Op("*", centred, centred), layer=name))
    variance = mean("variance", square.buffer)
    scale = Ref(program.new(f"{name}.scale", (channels,)), here)
    inside = Op("+", Ref(variance, here), Number(layer.options["epsilon"]))
    steps.append(Apply(channel, scale, Call("reciprocal_root", inside), layer=name))
    normal = Ref(program.new(f"{name}.normal", layer.shape), place.index)
    steps.append(Apply(loops, normal, Op("*", centred, scale), layer=name))
    result: Expression = normal
    if "weight" in layer.weights:
        result = Op("*", result, Ref(layer.weights["weight"], here))
    if "bias" in layer.weights:
        result = Op("+", result, Ref(layer.weights["bias"], here))
    steps.append(Apply(loops, Ref(program.new(name, layer.shape), place.index), result, layer=name))
    if "running_mean" in layer.weights:
        momentum, places = layer.options["momentum"], prod(sizes)
        steps.append(Track(layer.weights["running_mean"], centre, momentum, False, places, name))
        steps.append(Track(layer.weights["running_var"], variance, momentum, True, places, name))
    return name


def _embedding(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    target = Ref(program.new(layer.name, layer.shape), at(*(loop.name for loop in loops)))
    rows, padding = layer.options["rows"], layer.options["padding"]
    program.forward.append(Lookup(loops, target, layer.weights["weight"], rows, padding, layer.name))
    return layer.name


def _gates(program: Program, layer: Layer, source: str, gates: int) -> tuple[str, str, Loops, Contract]:
    """What all steps have in common: the input's part of the gates, for all steps at once; the hidden states, which
    begin with zeros; and the contraction of one step.
    """
    name, (steps, hidden) = layer.name, layer.shape
    features = program.shape(source)[1]
    given = program.new(f"{name}.given", (steps, gates * hidden))
    program.forward.append(
        Contract(
            _loops("t g i", (steps, gates * hidden, features)),
            Ref(given, at("t", "g")),
            Ref(layer.weights["weight_ih_l0"], at("g", "i")),
            Ref(source, at("t", "i")),
            _start(layer, "bias_ih_l0", "g"),
            layer=name,
        )
    )
    states = program.new(f"{name}.states", (steps + 1, hidden))
    recalled = program.new(f"{name}.recalled", (steps, gates * hidden))
    step = Contract(
        _loops("g j", (gates * hidden, hidden)),
        Ref(recalled, at("t", "g")),
        Ref(layer.weights["weight_hh_l0"], at("g", "j")),
        Ref(states, at("t", "j")),
        _start(layer, "bias_hh_l0", "g"),
        layer=name,
    )
    return given, states, _loops("j", (hidden,)), step


def _outputs(program: Program, layer: Layer, states: str) -> str:
    """The states but for the first."""
    target = Ref(program.new(layer.name, layer.shape), at("t", "j"))
    loops = _loops("t j", layer.shape)
    program.forward.append(Apply(loops, target, Ref(states, at(("t", 1, 1), "j")), layer=layer.name))
    return layer.name


def _lstm(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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


def _gru(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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


LOWER: dict[str, Callable[[Program, Layer, list[str], int], str]] = {
    "convolution": _convolution,
    "linear": _linear,
    "subsampling": _subsampling,
    "average_pooling": _average,
    "highest_pooling": _highest,
    "activation": _activation,
    "add": _add,
    "reshape": _reshape,
    "step": _step,
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "lstm": _lstm,
    "gru": _gru,
}
