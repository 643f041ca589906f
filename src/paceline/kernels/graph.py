"""A module's layers as data: what `fuse` understood of it, before anything is planned.

A layer's `options` are plain numbers and words, its `weights` names of parameters in the module. Shapes are those of
one sample. `describe` walks the module with torch.fx, so that residual additions and the usual functions are seen too.
What does not depend on the samples, such as the numbers of positions, is computed here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline.kernels.layers import MODULES, of_function
from paceline.kernels.layers.base import BATCH, CannotFuse, Found, Graph, Held, Layer, Seen, Shape
from paceline.kernels.layers.encoders import FORWARDS

DEPENDS = object()  # in place of a value that is not known before there are samples


@dataclass(frozen=True)
class States:
    """The last states of a recurrent layer: one for each of its layers and directions."""

    source: str
    layers: int
    directions: int
    hidden: int


def describe(module: nn.Module, inputs: Shape, tokens: bool = False) -> Graph:
    """The graph of a module for samples of this shape; what has no kernel is refused by name."""
    return _Reader(module, inputs, tokens).read()


class _Reader:
    """Walks the traced nodes of a module; `made` says what each node gives.

    A node gives the name of a layer, a tuple of what it gives, a parameter that is held, the last states of a recurrent
    layer, or a value that does not depend on the samples.
    """

    def __init__(self, module: nn.Module, inputs: Shape, tokens: bool) -> None:
        self.module, self.parts = module, dict(module.named_modules())
        self.held = dict(
            (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        )
        self.graph, self.constants = _traced(module)
        self.layers: dict[str, Layer] = {}
        self.shapes: dict[str, Shape] = {"input": inputs}
        self.made: dict[fx.Node, Any] = {}
        self.inputs, self.tokens = inputs, tokens

    def read(self) -> Graph:
        for node in self.graph.nodes:
            if node.op == "output":
                result = self._value(node.args[0])
                if not isinstance(result, str):
                    raise CannotFuse("the model returns more than one tensor; compute='autograd' trains it")
                return Graph(tuple(self.layers.values()), self.inputs, self.tokens, result)
            self.made[node] = self._given(node)
        raise AssertionError("a traced graph ends in its output")

    def _given(self, node: fx.Node) -> Any:
        """What one node gives."""
        if node.op == "placeholder":
            if "input" in self.made.values():
                raise CannotFuse("the model takes more than one input; compute='autograd' trains it")
            return "input"
        if node.op == "get_attr":
            return self._held(str(node.target))
        args = [self._value(arg) for arg in node.args]
        given = {key: self._value(value) for key, value in node.kwargs.items()}
        if node.op != "call_module":
            known = self._known(node, args, given)
            if known is not DEPENDS:
                return known
        return self._layer(node, args, given)

    def _value(self, argument: Any) -> Any:
        """An argument of a node, with what other nodes have given in their place."""
        return fx.node.map_arg(argument, lambda node: self.made[node])

    def _held(self, name: str) -> Any:
        """A parameter or buffer of the module; another tensor is a value."""
        if name in self.constants:
            return self.constants[name]
        owner, _, last = name.rpartition(".")
        tensor: Tensor = getattr(self.module.get_submodule(owner), last)
        return Held(name, tuple(tensor.shape), tensor)

    def _known(self, node: fx.Node, args: list[Any], given: dict[str, Any]) -> Any:
        """What does not depend on the samples, such as their shape; `DEPENDS` where it does."""
        target = node.target
        if target == "size" or (target is getattr and args[1:] == ["shape"]):
            if not isinstance(args[0], str):
                return DEPENDS
            whole, one = (BATCH, *self.shapes[args[0]]), [*args[1:], *given.values()]
            return whole[one[0]] if target == "size" and one else whole
        if target is getattr and args[1:] in (["device"], ["dtype"]):
            return getattr(torch.empty(0), args[1])
        first = args[0] if args else None
        if target in (operator.getitem, "getitem"):
            if isinstance(first, tuple):
                return first[args[1]]
            if isinstance(first, Held):
                return _rows(first, args[1])
        if isinstance(first, States):
            return self._state(node, first, args)
        if _depends([args, given]):
            return DEPENDS
        function: Callable[..., Any] = target if callable(target) else getattr(type(first), str(target))
        return function(*args, **given)

    def _state(self, node: fx.Node, states: States, args: list[Any]) -> str:
        """One of the last states of a recurrent layer: h[-1], or h.squeeze(0) where there is one."""
        count = states.layers * states.directions
        place = args[1] if len(args) > 1 else None
        if isinstance(place, tuple) and all(p == slice(None) for p in place[1:]):
            place = place[0]
        if node.target == "squeeze" and count == 1 and place in (0, None):
            place = 0
        elif node.target is not operator.getitem or not isinstance(place, int):
            raise CannotFuse(f"{node}: of a recurrent layer's last states, one is taken by its number: h[-1]")
        which = place % count
        options = {"layer": which // states.directions, "direction": which % states.directions}
        return self._add(node.name, "state", (states.source,), (states.hidden,), options, {})

    def _layer(self, node: fx.Node, args: list[Any], given: dict[str, Any]) -> Any:
        """The layer that a node is."""
        flat = [a for arg in args for a in (arg if isinstance(arg, tuple | list) else (arg,))]
        if any(a is None or isinstance(a, States) for a in flat[:1]):
            raise CannotFuse(
                f"{node} uses the last cells of an LSTM, or all last states of a recurrent layer; take one of these by "
                "its number: h[-1]"
            )
        sources = tuple(a for a in flat if isinstance(a, str) and a in self.shapes)
        name, what, path = node.name, f"{node.op} {node.target}", ""
        if node.op == "call_module":
            path = str(node.target)
            name, what = path or "model", f"layer {path or 'model'} ({self.parts[path]})"
        seen = Seen(name, what, path, tuple(self.shapes[s] for s in sources), sources, given)
        if node.op == "call_module":
            part = self.parts[path]
            if isinstance(part, nn.Embedding) and isinstance(args[0], Tensor):
                return _positions(seen, part, args[0])
            row = next((row for kind, row in MODULES.items() if isinstance(part, kind)), None)
            found: Found | None = row(part, seen) if row is not None else None
        else:
            found = of_function(node.target, args, seen)
        if found is None:
            raise CannotFuse(
                f"{seen.what} has no kernel; compute='autograd' (PyTorch) trains it. Kernels exist of: "
                + ", ".join(kind.__name__ for kind in MODULES)
            )
        kind, shape, options, weights = found
        if kind == "same":
            return sources[0]
        if min(shape, default=1) < 1:
            raise CannotFuse(f"{what} makes {'x'.join(map(str, shape))} of {seen.shapes[0]}: there is nothing in it")
        names = weights if isinstance(weights, dict) else {word: f"{path}.{word}" for word in weights}
        computed = [word for word, held in names.items() if held.removeprefix(".") not in self.held]
        if computed:
            raise CannotFuse(
                f"{what}: its {computed[0]} is computed from other parameters (a parametrization, weight_norm or a "
                "mask); compute='autograd' trains it"
            )
        name = self._add(name, kind, sources[:1] if kind == "attention" else sources, shape, options, names)
        if kind in ("lstm", "gru"):
            states = States(name, options["layers"], options["directions"], shape[1] // options["directions"])
            return (name, (states, None) if kind == "lstm" else states)
        return (name, None) if kind == "attention" else name

    def _add(
        self, name: str, kind: str, sources: tuple[str, ...], shape: Shape, options: dict[str, Any],
        names: dict[str, str],
    ) -> str:  # fmt: skip
        while name in self.layers:
            name += "_"
        self.layers[name] = Layer(name, kind, sources, shape, options, names)
        self.shapes[name] = shape
        return name


def _depends(given: Any) -> bool:
    """Whether anything in these arguments depends on the samples, or on how many there are."""
    if isinstance(given, tuple | list):
        return any(map(_depends, given))
    if isinstance(given, dict):
        return any(map(_depends, given.values()))
    return given is BATCH or isinstance(given, str | Held | States)


def _rows(held: Held, place: Any) -> Held:
    """The first rows of a parameter: p[:, :n]."""
    cuts = place if isinstance(place, tuple) else (place,)
    simple = all(isinstance(cut, slice) and not cut.start and cut.step in (None, 1) for cut in cuts)
    if not simple or len(cuts) > len(held.shape):
        raise CannotFuse(f"{held.name}[{place}]: of a parameter, the first rows have a kernel: p[:, :n]")
    ends = [n if cut.stop is None else min(n, cut.stop) for cut, n in zip(cuts, held.shape, strict=False)]
    return Held(held.name, (*ends, *held.shape[len(ends) :]), held.tensor)


def _positions(seen: Seen, part: nn.Embedding, tokens: Tensor) -> Held:
    """The rows of an embedding that every sample gets: those of its positions."""
    count = tokens.shape[-1] if tokens.dim() else 0
    if tokens.numel() != count or not torch.equal(tokens.flatten().cpu(), torch.arange(count)):
        raise CannotFuse(f"{seen.what} gets numbers that are the same for all samples, but not 0, 1, 2, ...")
    if count > part.num_embeddings:
        raise CannotFuse(f"{seen.what} has {part.num_embeddings} rows, and gets {count} positions")
    return Held(f"{seen.path}.weight", (*tokens.shape, part.embedding_dim), part.weight)


class _Tracer(fx.Tracer):
    """Follows a module down to the layers that have a row in the table."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, tuple(MODULES)) or (
            not isinstance(m, tuple(FORWARDS)) and super().is_leaf_module(m, module_qualified_name)
        )

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What PyTorch's own layers compute is written without branches that cannot be followed."""
        written = next((f for kind, f in FORWARDS.items() if isinstance(m, kind)), None)
        return super().call_module(m, partial(written, m) if written is not None else forward, args, kwargs)


class _Root(nn.Module):
    """A module around another, so that a layer can be traced from above."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x)


def _traced(module: nn.Module) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The nodes of a module, and the tensors that its forward makes for itself.

    A module that is itself a layer is traced from above.
    """
    root: nn.Module = _Root(module) if isinstance(module, (*MODULES, *FORWARDS)) else module
    before = set(vars(root))
    try:
        graph = _Tracer().trace(root)
    except CannotFuse:
        raise
    except Exception as error:
        raise CannotFuse(
            f"the model's forward cannot be followed ({type(error).__name__}: {error}); a Sequential, or a forward "
            "without branches on the data, can; compute='autograd' trains any"
        ) from error
    finally:  # tracing leaves them in the module
        constants = {name: vars(root).pop(name) for name in set(vars(root)) - before}
    if root is not module:
        for node in graph.nodes:
            if node.op in ("call_module", "get_attr"):
                node.target = str(node.target).removeprefix("body").removeprefix(".")
    return graph, constants
