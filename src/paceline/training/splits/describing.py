"""The operations of a traced model as nodes of `algorithms.splits`: their kinds, and the shapes of one chunk.

The model is run once, operation by operation. A size that the model's code asks for (`x.shape[0]`) is that of the whole
value, as this run found it: every worker computes with the same sizes, whatever part of the value it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline.algorithms.splits import Held, Shape, SplitNode
from paceline.algorithms.splits.derivation import PARAMETER
from paceline.training.parameters.layout import trainable
from paceline.training.splits.kinds import ARITHMETIC, SIZES, kind_of
from paceline.training.stages.following import tensors_of
from paceline.training.stages.tracing import Traced, attribute


@dataclass
class Description:
    """A model's operations for chunks of one size."""

    nodes: list[SplitNode] = field(default_factory=list)
    inputs: dict[str, Shape] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    #: Values that need a gradient; parameters with `PARAMETER` before their names.
    needs: set[str] = field(default_factory=set)


def describe(traced: Traced, tensors: Sequence[Tensor]) -> Description:
    """Describe a model for inputs like these. It is run, so give a copy."""
    description = Description(needs={PARAMETER + name for name in trainable(traced.module)})
    names = names_of(traced.module)
    results: dict[fx.Node, Any] = dict(zip(traced.placeholders, tensors, strict=True))
    inputs = list(zip(traced.placeholders, tensors, strict=True))
    description.inputs = {node.name: tuple(tensor.shape) for node, tensor in inputs}
    description.needs |= {node.name for node, tensor in inputs if tensor.requires_grad}

    def add(node: fx.Node, args: Any, kwargs: Any) -> Any:
        versions = [(tensor, tensor._version) for tensor in tensors_of(args, kwargs)]
        result = traced.call_piece(node, args, kwargs)
        results[node] = result
        changes = any(tensor._version != version for tensor, version in versions)
        description.nodes.append(_node(traced, node, results, args, kwargs, changes, names))
        if any(tensor.requires_grad for tensor in tensors_of(result)):
            description.needs.add(node.name)
        return result

    for node in traced.graph.nodes:
        if node.op == "get_attr":
            results[node] = attribute(traced.module, str(node.target))
    with torch.enable_grad():
        traced.run(tensors, add)
    first = [_parameter(node, results[node], names) for node in traced.graph.nodes if node.op == "get_attr"]
    description.nodes = [*first, *description.nodes]
    description.needs |= {n.name for n in first if n.held and PARAMETER + n.held[0].name in description.needs}
    outputs: list[str] = []
    fx.node.map_arg(traced.output.args[0], lambda node: outputs.append(node.name))
    description.outputs = tuple(dict.fromkeys(outputs))
    return description


def names_of(module: nn.Module) -> dict[int, str]:
    """Return the names of parameters and buffers by identity; what is tied has one."""
    return {id(t): name for name, t in (*module.named_buffers(), *module.named_parameters())}


def _parameter(node: fx.Node, value: Any, names: dict[int, str]) -> SplitNode:
    """Describe what reads a parameter or a buffer by name: it is used whole."""
    shape = tuple(value.shape) if isinstance(value, Tensor) else None
    parameters = (
        (Held("value", names[id(value)], tuple(value.shape), value.requires_grad),) if id(value) in names else ()
    )
    return SplitNode(node.name, "read", shape=shape, held=parameters)


def _node(
    traced: Traced,
    node: fx.Node,
    results: dict[fx.Node, Any],
    args: Any,
    kwargs: Any,
    changes: bool,
    names: dict[int, str],
) -> SplitNode:
    result = results[node]
    if _is_size(node, results, result):
        return SplitNode(node.name, "size", facts={"value": result})
    kind, facts = kind_of(traced, node, args, kwargs, result)
    takes = [each for each in node.all_input_nodes if not _is_constant(each, results)]
    shapes = tuple(tuple(results[each].shape) if isinstance(results[each], Tensor) else None for each in takes)
    shape = tuple(result.shape) if isinstance(result, Tensor) else None
    parameters: tuple[Held, ...] = ()
    if node.op == "call_module":
        parameters = _held(traced.module.get_submodule(str(node.target)), kind, names)
    layer = str(node.target) if node.op == "call_module" else ""
    if kind == "dropout":
        facts["drawn"] = memory_order(args[0])  # dropout draws in the order in which its input lies in memory
    if isinstance(result, Tensor) and (order := memory_order(result)) != tuple(range(result.dim())):
        facts["lies"] = order
    facts["changes"] = changes
    return SplitNode(node.name, kind, tuple(each.name for each in takes), shapes, shape, parameters, layer, facts)


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor from the slowest in memory to the fastest."""
    strides = tensor.stride()
    return tuple(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))


def _held(module: nn.Module, kind: str, names: dict[int, str]) -> tuple[Held, ...]:
    parameters = []
    for role, tensor in (*module.named_parameters(), *module.named_buffers()):
        shape = tuple(tensor.shape)
        if kind == "attention" and role.startswith("in_proj"):
            shape = (3, shape[0] // 3, *shape[1:])  # queries, keys and values are split alike
        parameters.append(Held(role, names[id(tensor)], shape, tensor.requires_grad))
    return tuple(parameters)


def _is_size(node: fx.Node, results: dict[fx.Node, Any], result: Any) -> bool:
    """Whether a piece finds out a size, or counts with sizes."""
    if isinstance(result, torch.Size | torch.dtype | torch.device):
        return True
    if tensors_of(result) or not isinstance(result, int | float | bool | tuple):
        return False
    if node.target in SIZES or (node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")):
        return True
    return node.target in ARITHMETIC and all(_is_constant(each, results) for each in node.all_input_nodes)


def _is_constant(node: fx.Node, results: dict[fx.Node, Any]) -> bool:
    value = results[node]
    return isinstance(value, int | float | bool | torch.Size | torch.dtype | torch.device)
