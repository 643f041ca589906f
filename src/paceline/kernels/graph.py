"""A module's layers as data: what `fuse` understood of it, before anything is planned.

A layer's `options` are plain numbers and words, its `weights` names of parameters in the module. Shapes are those of
one sample. `describe` walks the module with torch.fx, so that residual additions and the usual functions are seen too.
What does not depend on the samples, such as the numbers of positions, is computed here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline.kernels.ir import FORBIDDEN, RESERVED
from paceline.kernels.layers import COMPARISONS, MODULES, of_function
from paceline.kernels.layers.base import (
    BATCH,
    CallSite,
    CannotFuse,
    Graph,
    HeldTensor,
    Layer,
    LayerSpec,
    Shape,
    kind_of,
)
from paceline.kernels.layers.elementwise import EXPRESSIONS, materialised
from paceline.kernels.layers.shapes import pieces
from paceline.kernels.tracing import (
    States,
    allowed,
    as_numbers,
    called,
    depends,
    finite,
    flat,
    is_whole,
    traced,
    without_samples,
)

# Parameters that a forward takes in another shape or order, or by their first rows.


def changed(parameter: HeldTensor, target: Any, args: list[Any]) -> HeldTensor | None:
    """A parameter in another shape or order, or its first rows; None where that is another function of it."""
    if target in (operator.getitem, "getitem"):
        return _cut(parameter, args[0] if isinstance(args[0], tuple) else (args[0],))
    if target == "expand":
        sizes = flat(args)
        padded_shape = (*[1] * (len(sizes) - len(parameter.shape)), *parameter.shape)
        if any(
            size not in (-1, n) and not (size is BATCH and n == 1) for size, n in zip(sizes, padded_shape, strict=True)
        ):
            return None
        return (
            parameter
            if padded_shape == parameter.shape
            else HeldTensor(parameter.name, padded_shape, parameter.tensor, padded_shape)
            if parameter.whole
            else None
        )
    if target in ("view", "reshape", "unsqueeze", "flatten") and parameter.whole:
        view = tuple(getattr(parameter.tensor, str(target))(*without_samples(args)).shape)
        return HeldTensor(parameter.name, view, parameter.tensor, view)
    if target in ("t", "transpose", "permute", "mT") and (parameter.whole or parameter.view is not None):
        marks = torch.empty(
            [2 + d for d in range(len(parameter.shape))], device="meta"
        )  # each dimension has a size of its own
        turned = marks.mT if target == "mT" else getattr(marks, str(target))(*args)
        places = [size - 2 for size in turned.shape]
        before = parameter.order or tuple(range(len(places)))
        shape = tuple(parameter.shape[p] for p in places)
        return HeldTensor(parameter.name, shape, parameter.tensor, parameter.view, tuple(before[p] for p in places))
    return None


def _cut(parameter: HeldTensor, cuts: tuple[Any, ...]) -> HeldTensor | None:
    """The first rows of a parameter, p[:, :n], or one with dimensions of one number more, p[:, None]."""
    if parameter.order is not None or parameter.view is not None:
        return None
    if all(isinstance(cut, slice) and not cut.start and cut.step in (None, 1) for cut in cuts):
        ends = [n if cut.stop is None else min(n, cut.stop) for cut, n in zip(cuts, parameter.shape, strict=False)]
        return HeldTensor(parameter.name, (*ends, *parameter.shape[len(ends) :]), parameter.tensor)
    if parameter.whole and all(cut is None or cut == slice(None) for cut in cuts):
        dimensions = iter(parameter.shape)
        view = (*(1 if cut is None else next(dimensions) for cut in cuts), *dimensions)
        return HeldTensor(parameter.name, view, parameter.tensor, view)
    return None


def positions(site: CallSite, part: nn.Embedding, tokens: Tensor) -> HeldTensor:
    """The rows of an embedding that every sample gets: those of its positions."""
    count = tokens.shape[-1] if tokens.dim() else 0
    if tokens.numel() != count or not torch.equal(tokens.flatten().cpu(), torch.arange(count)):
        raise CannotFuse(f"{site.what} gets numbers that are the same for all samples, but not 0, 1, 2, ...")
    if count > part.num_embeddings:
        raise CannotFuse(f"{site.what} has {part.num_embeddings} rows, and gets {count} positions")
    return HeldTensor(f"{site.path}.weight", (count, part.embedding_dim), part.weight)


DEPENDS = object()  # in place of a value that is not known before there are samples


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
        self.graph, self.constants = traced(module)
        self.layers: dict[str, Layer] = {}
        self.shapes: dict[str, Shape] = {"input": inputs}
        #: The dimension of the samples in what a layer gives; None where it depends on parameters alone.
        self.axes: dict[str, int | None] = {"input": 0}
        #: Tensors that do not depend on samples or parameters, by the name that the program has for them.
        self.numbers: dict[str, Tensor] = {}
        self.truths: set[str] = set()  # layers that give 1 and 0 for true and false
        self.made: dict[fx.Node, Any] = {}
        self.inputs, self.tokens = inputs, tokens

    def read(self) -> Graph:
        for node in self.graph.nodes:
            if node.op == "output":
                result = self._value(node.args[0])
                if not isinstance(result, str):
                    raise CannotFuse("the model returns more than one tensor; compute='autograd' trains it")
                if self.axes[result] != 0:
                    raise CannotFuse(
                        "the model's result has to have a row for each sample; compute='autograd' trains it"
                    )
                return Graph(_reached(self.layers, result), self.inputs, self.tokens, result, self.numbers)
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
        kwargs = {key: self._value(value) for key, value in node.kwargs.items()}
        if node.op != "call_module" and node.target is not allowed:
            constant = self._known(node, args, kwargs)
            if constant is not DEPENDS:
                return constant
        return self._layer(node, args, kwargs)

    def _value(self, argument: Any) -> Any:
        """An argument of a node, with what other nodes have given in their place."""
        return fx.node.map_arg(argument, lambda node: self.made[node])

    def _held(self, name: str) -> Any:
        """A parameter or buffer of the module; another tensor is a value."""
        if name in self.constants:
            return self.constants[name]
        owner, _, last = name.rpartition(".")
        tensor: Tensor = getattr(self.module.get_submodule(owner), last)
        if not tensor.is_floating_point() or (
            not isinstance(tensor, nn.Parameter) and bool((tensor == -torch.inf).any())
        ):
            return tensor
        return HeldTensor(name, tuple(tensor.shape), tensor)

    def _known(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What does not depend on the samples, such as their shape; `DEPENDS` where it does."""
        target, first = node.target, args[0] if args else None
        if target in ("size", "dim", "ndim") or (target is getattr and args[1] in ("shape", "ndim", "device", "dtype")):
            word = args[1] if target is getattr else target
            return self._property(str(word), first, [*(() if target is getattr else args[1:]), *kwargs.values()])
        if target is getattr:
            if isinstance(first, tuple):  # of a maximum and its place
                return first[0]
            if args[1] in ("T", "mT"):
                return self._layer(node, [first], {}, "mT")
        if target in (operator.getitem, "getitem") and isinstance(first, tuple):
            return first[args[1]]
        if isinstance(first, States):
            return self._state(node, first, args)
        if target in (torch.zeros_like, torch.ones_like) and isinstance(first, str):
            value = float(target is torch.ones_like)
            return torch.full([1, *self.shapes[first]], value)
        if depends([args, kwargs]):
            if isinstance(first, HeldTensor) and (other := changed(first, target, args[1:])) is not None:
                return other
            if target not in ALONE or depends([args, kwargs], BATCH):
                return DEPENDS
        args, kwargs = without_samples([args, kwargs])
        function: Callable[..., Any] = target if callable(target) else getattr(type(first), str(target))
        return function(*args, **kwargs)

    def _property(self, word: str, value: Any, more: list[Any]) -> Any:
        """The shape of a value, or one of its sizes; where it lies, and of which type."""
        if word in ("device", "dtype"):
            return getattr(next(self.module.parameters(), torch.empty(0)), word)
        shape: tuple[Any, ...]
        if isinstance(value, str):
            shape, axis = self.shapes[value], self.axes[value]
            shape = shape if axis is None else (*shape[:axis], BATCH, *shape[axis:])
        else:
            shape = tuple(value.shape)
        return len(shape) if word in ("dim", "ndim") else shape[more[0]] if more else shape

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

    def _layer(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any], target: Any = None) -> Any:
        """The layer that a node is."""
        target = target or node.target
        if target in PIECES:
            return self._pieces(node, target, args, kwargs)
        if (target in ("long", "int") or (target in ("to", "type") and is_whole(args[1:], kwargs))) and not self._rows(
            node
        ):
            raise CannotFuse(
                f"{node} makes whole numbers that are no rows of an nn.Embedding; there is a kernel of those"
            )
        if target is allowed:
            target, args = self._allowed(args)
        if node.op == "call_module" and isinstance(self.parts[str(node.target)], nn.Embedding):
            if isinstance(args[0], Tensor):
                site = CallSite(node.name, f"layer {node.target}", str(node.target), ())
                return positions(site, self.parts[str(node.target)], args[0])
        elif (
            target in JOINED
            or node.op == "call_module"
            or not any(isinstance(a, str) and a in self.shapes for a in flat([args, kwargs]))
        ):
            args = [self._given_by_layer(arg) for arg in args]
        if node.op == "call_module":
            args, kwargs = self._without_zeros(self.parts[str(node.target)], args), as_numbers(kwargs)
        args, kwargs = self._held_numbers([args, kwargs])
        args, kwargs = self._aligned([args, kwargs])
        given_all = flat([args, kwargs])
        if any(a is None or isinstance(a, States) for a in given_all[:1]):
            raise CannotFuse(
                f"{node} uses the last cells of an LSTM, or all last states of a recurrent layer; take one of these by "
                "its number: h[-1]"
            )
        sources = tuple(a for a in given_all if isinstance(a, str) and a in self.shapes)
        name, what, path = node.name, f"{node.op} {called(target)}", ""
        if node.op == "call_module":
            path = str(node.target)
            name, what = path or "model", f"layer {path or 'model'} ({self.parts[path]})"
        axis = self._axis(sources, what, node.op == "call_module" and isinstance(self.parts[path], AT_ANY_AXIS))
        site = CallSite(name, what, path, tuple(self.shapes[s] for s in sources), sources, kwargs, axis)
        if node.op == "call_module":
            part = self.parts[path]
            part_kind = kind_of(part, MODULES)
            spec: LayerSpec | None = None if part_kind is None else MODULES[part_kind](part, site)
        else:
            self._check_ranks(target, sources, what)
            spec = of_function(target, args, site)
        if spec is None:
            raise CannotFuse(f"{site.what} has no kernel; compute='autograd' (PyTorch) trains it; {KINDS}")
        return self._made(site, spec, what)

    def _made(self, site: CallSite, spec: LayerSpec, what: str) -> Any:
        """Add what was found; what a node of its kind gives."""
        kind, shape, options, weights = spec
        if kind == "same":
            return site.inputs[0]
        if min(shape, default=1) < 1:
            raise CannotFuse(f"{what} makes {'x'.join(map(str, shape))} of {site.shapes[0]}: there is nothing in it")
        names = weights if isinstance(weights, dict) else {word: f"{site.path}.{word}" for word in weights}
        computed = [word for word, name in names.items() if name.removeprefix(".") not in {**self.held, **self.numbers}]
        if computed:
            raise CannotFuse(
                f"{what}: its {computed[0]} is computed from other parameters (a parametrization, weight_norm or a "
                "mask); compute='autograd' trains it"
            )
        axis = options.pop("axis", site.axis)
        inputs = options.pop("inputs", site.inputs)
        name = self._add(site.name, kind, inputs, shape, options, names, axis)
        if site.what.split()[-1] in COMPARISONS:
            self.truths.add(name)
        if kind in ("lstm", "gru", "rnn"):
            states = States(name, options["layers"], options["directions"], shape[1] // options["directions"])
            return (name, (states, None) if kind == "lstm" else states)
        if kind == "highest" and site.what.split()[-1] == "max":
            return (name, None)
        return (name, None) if kind == "attention" else name

    def _without_zeros(self, part: nn.Module, args: list[Any]) -> list[Any]:
        """The arguments of a layer; of a recurrent one, without initial states, which have to be zeros."""
        if not isinstance(part, nn.RNNBase) or len(args) < 2:
            return args
        states = [self.layers[a] if isinstance(a, str) and a in self.layers else a for a in flat(args[1:])]
        names = [
            one.weights["0"] for one in states if isinstance(one, Layer) and one.kind == "combined" and not one.inputs
        ]
        if len(names) != len(states) or any(name not in self.numbers or self.numbers[name].any() for name in names):
            raise CannotFuse(f"{part} begins with states of its own; zeros have a kernel")
        return args[:1]

    def _aligned(self, values: Any) -> Any:
        """Arguments; what depends on parameters alone without a dimension for the samples."""
        layers = [v for v in flat(values) if isinstance(v, str) and v in self.shapes]
        rank = max((len(self.shapes[v]) for v in layers if self.axes[v] is not None), default=None)
        axis = next((self.axes[v] for v in layers if self.axes[v] is not None), None)
        if rank is None or axis is None:
            return values

        def one(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return type(value)(map(one, value))
            if isinstance(value, dict):
                return {key: one(each) for key, each in value.items()}
            if not isinstance(value, str) or self.axes.get(value, 0) is not None:
                return value
            shape = self.shapes[value]
            if len(shape) != rank + 1 or shape[axis] != 1:
                return value
            return self._add(value, "reshape", (value,), (*shape[:axis], *shape[axis + 1 :]), {}, {}, axis)

        return one(values)

    def _rows(self, node: fx.Node) -> bool:
        """Whether what a node gives, or parts of it, go to embeddings only."""
        return all(
            isinstance(self.parts.get(str(user.target)), nn.Embedding)
            if user.op == "call_module"
            else user.target in PARTS and self._rows(user)
            for user in node.users
        )

    def _check_ranks(self, target: Any, sources: tuple[str, ...], what: str) -> None:
        """Refuses expressions in which a dimension of one operand would meet the samples of another."""
        ranks = {len(self.shapes[s]) for s in sources if self.axes[s] is not None}
        if target in EXPRESSIONS and len(ranks) > 1:
            shapes = ", ".join(str(self.shapes[s]) for s in sources)
            raise CannotFuse(f"{what} combines samples of shapes {shapes}; give both the same number of dimensions")

    def _axis(self, sources: tuple[str, ...], what: str, anywhere: bool) -> int | None:
        """The samples' dimension in what layers give; `anywhere` says that a layer knows it not only as the first."""
        axes = {self.axes[s] for s in sources}
        axis = next((axis for axis in axes if axis is not None), None)
        if len(axes - {None}) > 1 or (axis and None in axes):
            raise CannotFuse(f"{what} combines batches whose samples are different dimensions; transpose one of them")
        if axis and what.startswith("layer") and not (anywhere and axis < min(len(self.shapes[s]) for s in sources)):
            raise CannotFuse(f"{what} gets batches whose samples are dimension {axis}; transpose them to the front")
        return axis

    def _held_numbers(self, values: Any) -> Any:
        """Tensors among arguments as parameters that are not trained."""
        if isinstance(values, tuple | list):
            return type(values)(map(self._held_numbers, values))
        if isinstance(values, dict):
            return {key: self._held_numbers(value) for key, value in values.items()}
        if not isinstance(values, Tensor):
            return values
        if not values.dim():
            return values.item()
        name, dtype = f"number_{len(self.numbers)}", next(self.module.parameters()).dtype
        self.numbers[name] = finite(values.detach().to(dtype)).contiguous()
        return HeldTensor(name, tuple(values.shape), self.numbers[name])

    def _given_by_layer(self, value: Any) -> Any:
        """A parameter as a layer that copies it; several in a list likewise."""
        if isinstance(value, tuple | list):
            return [self._given_by_layer(one) for one in value]
        value = self._held_numbers(value)
        if not isinstance(value, HeldTensor):
            return value
        kind, shape, options, weights = materialised(value)
        assert isinstance(weights, dict)
        return self._add(f"{value.name}.given", kind, (), shape, options, weights, None)

    def _pieces(self, node: fx.Node, target: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Each piece of what is cut along a dimension."""
        kwargs = dict(zip(PIECES[target], args[1:], strict=False)) | kwargs
        source = self._given_by_layer(args[0])
        site = CallSite(
            node.name, f"{node.op} {called(target)}", "", (self.shapes[source],), (source,), {}, self.axes[source]
        )
        lengths = next((kwargs[w] for w in ("split_size_or_sections", "split_size", "chunks") if w in kwargs), None)
        cuts = pieces(site, lengths, kwargs.get("dim", 0), "chunks" in kwargs)
        return tuple(self._layer(node, [source, cut], {}, operator.getitem) for cut in cuts)

    def _allowed(self, args: list[Any]) -> tuple[Any, list[Any]]:
        """Scores of attention and their mask, as a function that has a row."""
        scores, mask = args
        values = mask.tensor if isinstance(mask, HeldTensor) and not isinstance(mask.tensor, nn.Parameter) else mask
        if isinstance(values, Tensor):
            return operator.add, [scores, torch.where(values, 0.0, FORBIDDEN) if values.dtype == torch.bool else values]
        if mask in self.truths:
            mask = self._layer(next(iter(self.graph.nodes)), [mask], {}, "logical_not")
            return "masked_fill", [scores, mask, FORBIDDEN]
        return operator.add, [scores, mask]

    def _add(
        self,
        name: str,
        kind: str,
        sources: tuple[str, ...],
        shape: Shape,
        options: dict[str, Any],
        names: dict[str, str],
        axis: int | None = 0,
    ) -> str:
        # A parameter may be called as a function is, and a layer as what every program has.
        while name in self.layers or name in self.held or name in RESERVED:
            name += "_"
        self.layers[name] = Layer(name, kind, sources, shape, options, names)
        self.shapes[name], self.axes[name] = shape, axis
        return name


#: What all layers with a kernel are called, as messages say.
KINDS = "kernels exist of " + ", ".join(kind.__name__ for kind in MODULES)
#: Layers that take samples in the second dimension, too: what they compute goes along others.
AT_ANY_AXIS = (
    nn.Linear,
    nn.Embedding,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.Dropout,
    nn.ReLU,
    nn.GELU,
    nn.Tanh,
    nn.LayerNorm,
)
#: Functions that cut a tensor into several, and their arguments after the first.
PIECES: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((torch.split, "split"), ("split_size_or_sections", "dim")),
    **dict.fromkeys((torch.chunk, "chunk"), ("chunks", "dim")),
    **dict.fromkeys((torch.unbind, "unbind"), ("dim",)),
}
PARTS = (
    operator.getitem,
    "select",
    torch.select,
    "narrow",
    torch.narrow,
    "squeeze",
    "unsqueeze",
    "contiguous",
    *PIECES,
)
JOINED = (torch.cat, torch.concat)
#: Functions that are the same for all samples, whatever they say of the number of samples.
ALONE = (torch.zeros, torch.ones, torch.full, "expand", "repeat", "expand_as", "new_zeros", "new_ones", "new_full")


def _reached(layers: dict[str, Layer], result: str) -> tuple[Layer, ...]:
    """The layers that the result depends on, in their order."""
    dependencies, reachable = {result}, []
    for layer in reversed(list(layers.values())):
        if layer.name in dependencies:
            reachable.append(layer)
            dependencies |= set(layer.inputs)
    return tuple(reversed(reachable))
