"""Tracing a model into the graph that a pipeline cuts.

torch.fx runs the model's own code on proxies. A module whose code cannot be traced (it branches on what a tensor holds,
or changes the module itself) stays whole, as a piece of its own, and the reason is kept. PyTorch's own containers that
cannot be traced are unfolded by the rules of stages.unfolding. Pieces under `torch.no_grad` are marked `quiet`. A
user's autograd function is one piece, with its own backward (stages.following).
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import SUPPORTED_NODES, register_pytree_node, tree_flatten, tree_leaves, tree_unflatten

from paceline.errors import JobError, PacelineError
from paceline.training.gradients.replica import Replica, draws
from paceline.training.jobs.job import Batch
from paceline.training.jobs.modules import Experts
from paceline.training.stages.exporting import ExportedGraph, export_graph, graph_of, rule_of
from paceline.training.stages.refusals import (
    UNCUT,
    Called,
    CannotTrace,
    ModuleSnapshot,
    autocast,
    cannot_follow,
    functions_whole,
    not_whole,
    refuse_autocast,
    region,
    step_alone,
)

DRAWING = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    F.rrelu,
    F.gumbel_softmax,
    F.scaled_dot_product_attention,
    torch.dropout,
    torch.bernoulli,
    torch.rand_like,
    torch.randn_like,
    torch.normal,
    torch.rrelu,
}
IDLE = {operator.getitem, torch.cat}  # left out where the result is not used, such as the states after the last step


class _Substitute(nn.Module):
    """What `step` gets in place of the model: it has none of the model's attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise not_whole(name) from None


class CallRecorder(_Substitute):
    """Stands in for the model to learn how `step` calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.autocast = autocast()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        refuse_autocast(self.autocast)
        self.found = args, kwargs
        raise Called


class KnownResult(_Substitute):
    """Stands in for the model where its result is known already."""

    def __init__(self) -> None:
        super().__init__()
        self.result: Any = None
        self.calls = 0
        self.chance: Tensor | None = None  # the generator's state after the model, if that has drawn

    def loss(self, replica: Replica, batch: Batch, result: Any, weight: float = 1.0) -> Tensor:
        """Return the loss that a job makes of the model's result; of a batch without weight, a loss of 0.

        What `step` draws before it calls the model is drawn again, as it was for the model's arguments.
        """
        if not weight:
            # Zero, but made of the result: every worker of the pipeline still gets its gradients, and sends its own.
            reached = [each for each in tree_leaves(result) if isinstance(each, Tensor) and each.requires_grad]
            return sum((each.sum() for each in reached), torch.zeros(())) * 0.0
        self.result, self.calls = result, 0
        if replica.job.step is not None:
            after = torch.get_rng_state()
            replica.chance.again()
            self.chance = None if torch.equal(after, torch.get_rng_state()) else after
        with replica.precision():
            loss = replica.loss(self, batch)
        self.result = None  # or its graph would keep what it came from until the next
        return loss

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise JobError(
                "step= calls the model more than once, and a pipeline computes it once for each batch; call it with "
                "all inputs together, as in model(torch.cat([a, b])).chunk(2), or use a plan that does not cut it"
            )
        if self.chance is not None:
            torch.set_rng_state(self.chance)
        return self.result


class Argument(Enum):
    """Marks the place of a tensor among the arguments of a call."""

    TENSOR = 0


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def _hides_tensors(leaf: Any) -> bool:
    """Whether an object that is not a tensor itself holds some."""
    return not isinstance(leaf, Tensor) and any(
        isinstance(each, Tensor) for each in tree_leaves(getattr(leaf, "__dict__", None))
    )


@dataclass(frozen=True)
class TracedCall:
    """A call of the model: which of its arguments are tensors, and the values of the others."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(step: Callable[[nn.Module, Batch], Tensor], batch: Batch) -> tuple[TracedCall, list[Tensor]]:
        """Return how `step` calls the model for this batch, and the tensors that it passes."""
        recorder = CallRecorder()
        # The first call is all that is needed, and going on would need its result.
        with contextlib.suppress(Called):
            with step_alone():
                step(recorder, batch)
            raise JobError("step= never calls the model, so there is nothing to cut into stages")
        with step_alone():  # tensors within torch.func have no memory of their own
            for leaf in tree_leaves(recorder.found):
                if isinstance(leaf, Tensor) and not leaf.is_sparse:
                    leaf.untyped_storage()
        if any(isinstance(leaf, PackedSequence) for leaf in tree_leaves(recorder.found, is_leaf=_is_packed)):
            raise JobError(
                "a packed sequence has another shape in every batch, and a pipeline is cut for one; give padded "
                "sequences with their lengths, or use a plan that divides batches, such as ring or downpour"
            )
        flat, spec = tree_flatten(recorder.found)
        if hiding := next((leaf for leaf in flat if _hides_tensors(leaf)), None):
            kind = type(hiding).__name__
            raise JobError(
                f"the model is called with a {kind}, whose tensors a pipeline cannot see; pass them themselves, as in "
                f"model(batch.x, batch.y), or use {UNCUT}"
            )
        tensors = [leaf for leaf in flat if isinstance(leaf, Tensor)]
        args, kwargs = tree_unflatten([Argument.TENSOR if isinstance(leaf, Tensor) else leaf for leaf in flat], spec)
        return TracedCall(args, kwargs), tensors

    def tensors_of(self, step: Callable[[nn.Module, Batch], Tensor], batch: Batch) -> list[Tensor]:
        """Return the tensors that `step` passes for another batch, if all else is passed as it was for the first."""
        call, tensors = TracedCall.of(step, batch)
        if call != self:
            raise JobError(
                "the model is called with other arguments, beside tensors, than for the first batch, and is cut for "
                f"one way of calling it; give tensors instead, or use {UNCUT}"
            )
        return tensors

    @property
    def tensors(self) -> int:
        """The number of tensors among the arguments."""
        return sum(leaf is Argument.TENSOR for leaf in tree_flatten((self.args, self.kwargs))[0])

    def filled(self, tensors: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call with these tensors."""
        rest = iter(tensors)
        flat, spec = tree_flatten((self.args, self.kwargs))
        args, kwargs = tree_unflatten([next(rest) if leaf is Argument.TENSOR else leaf for leaf in flat], spec)
        return args, kwargs


@dataclass
class Traced:
    """A model's graph over the model's own modules and parameters."""

    module: nn.Module
    graph: fx.Graph
    call: TracedCall
    whole: dict[str, str] = field(default_factory=dict)  # modules that could not be looked into: why
    numbers: set[str] = field(default_factory=set)  # pieces that make whole numbers, as far as is known
    exported: ExportedGraph | None = None  # what the graph was made from, where torch.fx could not follow

    @cached_property
    def pieces(self) -> list[fx.Node]:
        """The nodes that compute, in order."""
        return [node for node in self.graph.nodes if node.op in ("call_module", "call_function", "call_method")]

    @cached_property
    def needed(self) -> dict[fx.Node, int]:
        """The last piece that needs each value; the model's result is needed to the end."""
        places = {node: place for place, node in enumerate((*self.pieces, self.output))}
        return {
            node: max((places[user] for user in node.users), default=-1) for node in (*self.placeholders, *self.pieces)
        }

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def output(self) -> fx.Node:
        output_node: fx.Node = next(node for node in self.graph.nodes if node.op == "output")
        return output_node

    def run(self, tensors: Sequence[Tensor], piece: Callable[[fx.Node, Any, Any], Any]) -> None:
        """Run the graph node by node; `piece(node, args, kwargs)` computes each piece."""
        values = dict(zip(self.placeholders, tensors, strict=True))
        for node in self.graph.nodes:
            if node.op == "get_attr":
                values[node] = attribute(self.module, str(node.target))
            elif node.op not in ("placeholder", "output"):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = piece(node, args, kwargs)

    def call_piece(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not node.meta.get("quiet")):
            return self._called(node, args, kwargs)

    def _called(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "call_module":
            return self.module.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def parameters(self, node: fx.Node) -> list[nn.Parameter]:
        """Return the parameters that a piece uses."""
        if node.op == "call_module":
            return list(self.module.get_submodule(str(node.target)).parameters())
        read = (attribute(self.module, str(n.target)) for n in node.all_input_nodes if n.op == "get_attr")
        return [value for value in read if isinstance(value, nn.Parameter)]

    @cached_property
    def users(self) -> dict[str, list[int]]:
        """The pieces that use each parameter, each buffer, and each module that draws random numbers call by call."""
        names = {id(p): name for name, p in (*self.module.named_parameters(), *self.module.named_buffers())}
        places = defaultdict[str, list[int]](list)
        for place, node in enumerate(self.pieces):
            things = set[str]()
            if node.op == "call_module":
                part = self.module.get_submodule(str(node.target))
                things |= {names[id(p)] for p in (*part.parameters(), *part.buffers())}
                things |= {str(node.target)} if any(draws(each) for each in part.modules()) else set()
            read = (attribute(self.module, str(used.target)) for used in node.all_input_nodes if used.op == "get_attr")
            for thing in sorted(things | {names[id(value)] for value in read if id(value) in names}):
                places[thing].append(place)
        return places

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn outside of the modules that are seeded one by one."""
        return any(self._draws(node) for node in self.pieces)

    def _draws(self, node: fx.Node) -> bool:
        if node.op == "call_function":
            if isinstance(node.target, torch._ops.OpOverload):  # from torch.export
                return torch.Tag.nondeterministic_seeded in node.target.tags
            return node.target in DRAWING or getattr(node.target, "draws", False)
        if node.op == "call_method":
            return "bernoulli" in str(node.target) or "normal_" in str(node.target) or "uniform_" in str(node.target)
        part = self.module.get_submodule(str(node.target))
        # A module of the user's own that is not looked into may call anything that draws.
        return not type(part).__module__.startswith("torch.nn") and not draws(part)


def attribute(module: nn.Module, path: str) -> Any:
    """Return the attribute at a dotted path."""
    target: Any = module
    for word in path.split("."):
        target = getattr(target, word)
    return target


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # what is computed of a buffer is part of the graph, not a constant

    def __init__(self, call: TracedCall, state: ModuleSnapshot) -> None:
        super().__init__()
        self.call, self.state, self.whole = call, state, dict[str, str]()

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        proxies = [self.create_proxy("placeholder", f"input_{n}", (), {}) for n in range(self.call.tensors)]

        def run(root: nn.Module, *tensors: Any) -> Any:
            args, kwargs = self.call.filled(list(tensors))
            result = root_fn(root, *args, **kwargs)
            if isinstance(result, dict) and type(result) is not dict:  # torch.fx would make a plain one of it
                _make_known(type(result))
                return self.create_proxy("call_function", type(result), (), dict(result))
            return result

        return run, [self.root, *proxies]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Which expert gets a row depends on numbers, which a trace does not have.
        is_experts = isinstance(m, Experts)
        return rule_of(m) is None and (is_experts or super().is_leaf_module(m, module_qualified_name))

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        quiet = region()
        node = super().create_node(*args, **kwargs)
        if quiet:
            node.meta["quiet"] = True
        return node

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before = len(self.graph.nodes)
        rule = rule_of(m)
        try:
            result = super().call_module(m, forward if rule is None else _bound(rule, m), args, kwargs)
            self.state.check(m)
            return result
        except Exception as error:  # the model's own code may raise anything for a proxy
            if self.path_of_module(m) == "":
                raise
            self.state.restore(m)
            self.whole.setdefault(self.path_of_module(m), f"{type(error).__name__}: {error}".splitlines()[0])
            for node in reversed(list(self.graph.nodes)[before:]):
                self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


def _make_known(kind: type[dict[str, Any]]) -> None:
    """Let PyTorch look for tensors in a dictionary of the user's own kind; those of transformers are known to it."""
    if kind not in SUPPORTED_NODES:
        register_pytree_node(
            kind,
            lambda given: (list(given.values()), list(given)),
            lambda values, keys: kind(zip(keys, values, strict=True)),
        )


def _bound(rule: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    return lambda *args, **kwargs: rule(module, *args, **kwargs)


def export(module: nn.Module, call: TracedCall, tensors: Sequence[Tensor]) -> Traced:
    """Return the graph by torch.export, for inputs like these."""
    # With one sample torch.export would assume that there is always one.
    alone = all(t.shape[0] == 1 for t in tensors if t.dim())
    several = [torch.cat([t, t]) if alone and t.dim() else t for t in tensors]
    exported = export_graph(copy.deepcopy(module), *call.filled(several))
    return Traced(module, graph_of(exported), call, exported=exported)


def retrace(module: nn.Module, call: TracedCall, exported: ExportedGraph | None) -> Traced:
    """Return the graph of another copy of the module."""
    if exported is None:
        return trace(module, call)
    return Traced(module, graph_of(exported), call, exported=exported)


def trace(module: nn.Module, call: TracedCall) -> Traced:
    """Return the graph of a module that is in training mode."""
    state = ModuleSnapshot(module)
    tracer = _Tracer(call, state)
    try:
        with torch.enable_grad(), functions_whole():
            graph = tracer.trace(module)
            state.check(module)
    except CannotTrace as why:
        raise cannot_follow(module, str(why), why) from why
    except PacelineError:
        raise
    except Exception as error:  # the model's own code may raise anything for a proxy
        raise cannot_follow(module, f"{type(error).__name__}: {error}".splitlines()[0], error) from error
    finally:
        state.restore(module)
    for node in reversed(list(graph.nodes)):
        if node.target in IDLE and not node.users:
            graph.erase_node(node)
    _name_changes(graph)
    return Traced(module, graph, call, tracer.whole)


def _name_changes(graph: fx.Graph) -> None:
    """Let what uses a tensor after it was changed in place use the change's own result, which is the same tensor."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        word = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        changes = node.op != "call_module" and str(word).endswith("_") and not str(word).endswith("__")
        if changes and node.args and isinstance(changed := node.args[0], fx.Node):
            changed.replace_all_uses_with(node, lambda user, node=node: order[user] > order[node])  # type: ignore[misc]


def modules_of(node: fx.Node) -> Iterator[str]:
    """Yield the names of the modules that a piece is in, the outermost first."""
    yield from (path for path, _ in (node.meta.get("nn_module_stack") or {}).values())
    if node.op == "call_module":
        yield str(node.target)
