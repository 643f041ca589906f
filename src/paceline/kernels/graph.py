"""A module's layers as data: what `fuse` understood of it, before anything is planned.

A layer's `options` are plain numbers and words, its `weights` names of parameters in the module. Shapes are those of
one sample. `describe` walks the module with torch.fx, so that residual additions and the usual functions are seen too.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn

from paceline.kernels.layers import MODULES, of_function
from paceline.kernels.layers.base import CannotFuse, Graph, Layer, Seen, Shape


def describe(module: nn.Module, inputs: Shape, tokens: bool = False) -> Graph:
    """The graph of a module for samples of this shape; what has no kernel is refused by name."""
    layers: dict[str, Layer] = {}
    made: dict[fx.Node, Any] = {}  # the name of what a node gives, or names
    shapes: dict[str, Shape] = {"input": inputs}
    parts = dict(module.named_modules())
    for node in _traced(module).nodes:
        if node.op == "placeholder":
            if made:
                raise CannotFuse("the model takes more than one input; compute='autograd' trains it")
            made[node] = "input"
        elif node.op == "output":
            result = made[node.args[0]] if isinstance(node.args[0], fx.Node) else None
            if not isinstance(result, str):
                raise CannotFuse("the model returns more than one tensor; compute='autograd' trains it")
            return Graph(tuple(layers.values()), inputs, tokens, result)
        else:
            _add(node, parts, made, shapes, layers)
    raise AssertionError("a traced graph ends in its output")


def _add(
    node: fx.Node,
    parts: dict[str, nn.Module],
    made: dict[fx.Node, Any],
    shapes: dict[str, Shape],
    layers: dict[str, Layer],
) -> None:
    """Adds the layer of one traced node."""
    given = [made[a] for a in node.args if isinstance(a, fx.Node) and a in made]
    if None in given:
        raise CannotFuse(f"{node} uses the last state of a recurrent layer; only its outputs are kept: take x[:, -1]")
    sources = tuple(g for g in given if isinstance(g, str))
    name = str(node.target) or "model" if node.op == "call_module" else node.name
    if node.op == "call_module":
        part = parts[str(node.target)]
        seen = Seen(name, f"layer {name} ({part})", str(node.target), tuple(shapes[s] for s in sources))
        row = next((row for kind, row in MODULES.items() if isinstance(part, kind)), None)
        found = row(part, seen) if row is not None else None
    else:
        if node.target in (operator.getitem, "getitem") and given and isinstance(given[0], tuple):
            made[node] = given[0][int(str(node.args[1]))]  # the first of what a recurrent layer gives
            return
        seen = Seen(name, f"{node.op} {node.target}", "", tuple(shapes[s] for s in sources))
        found = of_function(node, seen)
    if found is None:
        raise CannotFuse(
            f"{seen.what} has no kernel; compute='autograd' (PyTorch) trains it. Kernels exist of: "
            + ", ".join(kind.__name__ for kind in MODULES)
        )
    kind, shape, options, weights = found
    while name in layers:
        name += "_"
    if kind == "same":
        made[node] = sources[0]
        return
    if min(shape, default=1) < 1:
        raise CannotFuse(f"{seen.what} makes {'x'.join(map(str, shape))} of {seen.shapes[0]}: there is nothing in it")
    dotted = {word: f"{seen.path}.{word}" for word in weights}
    layers[name] = Layer(name, kind, sources, shape, options, dotted)
    shapes[name] = shape
    made[node] = (name, None) if kind in ("lstm", "gru") else name


class _Tracer(fx.Tracer):
    """Follows a module down to the layers that have a row in the table."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, tuple(MODULES)) or super().is_leaf_module(m, module_qualified_name)


class _Root(nn.Module):
    """A module around another, so that a layer can be traced from above."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x)


def _traced(module: nn.Module) -> fx.Graph:
    """A module that is itself a leaf is traced from above."""
    try:
        if isinstance(module, tuple(MODULES)):
            graph = _Tracer().trace(_Root(module))
            for node in graph.nodes:
                if node.op == "call_module":
                    node.target = ""
            return graph
        return _Tracer().trace(module)
    except CannotFuse:
        raise
    except Exception as error:
        raise CannotFuse(
            f"the model's forward cannot be followed ({type(error).__name__}: {error}); a Sequential, or a forward "
            "without branches on the data, can; compute='autograd' trains any"
        ) from error
