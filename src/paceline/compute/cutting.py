"""Stages: the model's graph, cut between pieces.

    pieces   | conv | relu | norm | body |  add  | mean | head |
    stages   |  ---- 0 ----  |     --- 1 ---     |  --- 2 ---  |
                    relu ----------------> add                     a skip connection is carried along

What an earlier stage makes and a later one needs goes with every message between them. A stage holds the modules and
parameters that its pieces use, under the model's own names.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from paceline.compute.chance import draws
from paceline.compute.tracing import Traced, attribute, modules_of
from paceline.errors import JobError, suggest

IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv}


@dataclass
class Code:
    """One stage: what it takes from the one before, what it computes, what it hands to the next."""

    number: int
    part: fx.GraphModule  # called with what it takes; gives a tuple of what it hands on, or the model's result
    takes: tuple[str, ...]
    gives: tuple[str, ...]  # () of the last stage
    first: bool
    last: bool

    def __call__(self, *values: Tensor) -> Any:
        return self.part(*values)


def name_of(traced: Traced, place: int) -> str:
    """What a user calls the piece: its module's name where it is one that is called but once, else the graph's name."""
    node = traced.pieces[place]
    if node.op != "call_module":
        return node.name
    target = str(node.target)
    first = next(n for n in traced.pieces if n.op == "call_module" and n.target == target)
    return target if first is node else node.name


def find(traced: Traced, name: str) -> int:
    """The piece of this name, or the first one in the module of this name."""
    pieces = traced.pieces
    for place, node in enumerate(pieces):
        if name in modules_of(node) or (node.op != "call_module" and node.name == name):
            return place
    named = [name_of(traced, place) for place in range(len(pieces))]
    why = next(
        (f" ({path} stays whole: {why})" for path, why in traced.whole.items() if name.startswith(path + ".")), ""
    )
    raise JobError(f"there is no piece {name!r} to cut before{why}; {suggest(name, named)}")


def places_of(traced: Traced, cuts: Sequence[str]) -> tuple[int, ...]:
    """Where stages begin, from their names; in order, and where a cut can be made."""
    found = tuple(find(traced, name) for name in cuts)
    if list(found) != sorted(set(found)) or 0 in found:
        raise JobError(f"cuts {'+'.join(cuts)} are not in the order of the model, or cut before its first piece")
    for place, name in zip(found, cuts, strict=True):
        if why := obstacle(traced, place):
            raise JobError(f"the model cannot be cut before {name!r}: {why}")
    return found


def obstacle(traced: Traced, place: int) -> str | None:
    """Why no cut can be made before this piece."""
    before, after = traced.pieces[:place], traced.pieces[place:]
    for node in _crossing(traced, before, after):
        if not node.meta.get("tensor", True) and node.name not in traced.numbers:
            return f"{node.name} is not a tensor, and is made before and needed after it; cut where it is not needed"
        changing = next((user for user in node.users if user in after and _in_place(traced, user)), None)
        if changing is not None:
            return f"{changing.name} changes in place what would come from another stage; give it inplace=False"
    return None


@dataclass(frozen=True)
class Tie:
    """What several stages use."""

    what: str
    users: dict[int, str]  # per stage: a piece that uses it
    parameter: bool

    def obstacle(self, homes: Sequence[int], keeps: Sequence[int], splits: bool) -> str | None:
        """Why it cannot be."""
        stages, names = list(self.users), list(self.users.values())
        both = f"{self.what} is used by {names[0]} in stage {stages[0]} and by {names[1]} in stage {stages[1]}"
        if not self.parameter:
            return f"{both}; what moves or draws can lie in only one: cut before or after both"
        workers = [homes[stage] for stage in stages]
        if len(set(workers)) > 1:
            on = "+".join(map(str, (0, *range(1, max(2, len(homes) - 1)), 0)))
            return (
                f"{both}, which lie with workers {workers[0]} and {workers[1]}, and only one can hold it: cut before "
                f"or after both, or put both stages with one worker, as layers:on={on} does"
            )
        if splits or any(keeps[stage] > 1 for stage in stages):
            return f"{both}; that needs a schedule with whole backwards and one version of the weights"
        return None


def ties(traced: Traced, places: Sequence[int]) -> list[Tie]:
    parameters = {name for name, _ in traced.module.named_parameters()}
    found = []
    for what, pieces in sorted(users(traced).items()):
        stages = {sum(start <= piece for start in places): name_of(traced, piece) for piece in reversed(pieces)}
        if len(stages) > 1:
            found.append(Tie(what, dict(sorted(stages.items())), what in parameters))
    return found


def _in_place(traced: Traced, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(traced.module.get_submodule(str(node.target)), "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    written_down = isinstance(node.target, torch._ops.OpOverload)  # by torch.export
    if written_down and node.target._schema.is_mutable:  # type: ignore[union-attr]
        return True
    return node.target in IN_PLACE or bool(node.kwargs.get("inplace"))


def _crossing(traced: Traced, before: Sequence[fx.Node], after: Sequence[fx.Node]) -> list[fx.Node]:
    """What is made before and needed after: inputs of the model first, then in order."""
    later = {*after, traced.output}
    return [node for node in (*traced.placeholders, *before) if any(user in later for user in node.users)]


def users(traced: Traced) -> dict[str, list[int]]:
    """By which pieces everything is used that can lie in only one place: parameters, buffers that move, modules that
    draw chance call by call.
    """
    names = {id(p): name for name, p in (*traced.module.named_parameters(), *traced.module.named_buffers())}
    found = defaultdict[str, list[int]](list)
    for place, node in enumerate(traced.pieces):
        things = set[str]()
        if node.op == "call_module":
            part = traced.module.get_submodule(str(node.target))
            things |= {names[id(p)] for p in (*part.parameters(), *part.buffers())}
            things |= {str(node.target)} if any(draws(each) for each in part.modules()) else set()
        for used in node.all_input_nodes:
            if used.op == "get_attr":
                things.add(names.get(id(attribute(traced.module, str(used.target))), str(used.target)))
        for thing in things:
            found[thing].append(place)
    return found


def cut(traced: Traced, places: Sequence[int]) -> list[Code]:
    """The stages, over the model's own modules."""
    pieces = traced.pieces
    bounds = [0, *places, len(pieces)]
    return [_stage(traced, number, bounds[number], bounds[number + 1]) for number in range(len(bounds) - 1)]


def _stage(traced: Traced, number: int, start: int, stop: int) -> Code:
    pieces, graph = traced.pieces, fx.Graph()
    first, last = start == 0, stop == len(pieces)
    takes = traced.placeholders if first else _crossing(traced, pieces[:start], pieces[start:])
    gives = [] if last else _crossing(traced, pieces[:stop], pieces[stop:])
    made = {node: graph.placeholder(node.name) for node in takes}
    if not first:
        made |= {node: graph.call_function(int, (made[node],)) for node in takes if node.name in traced.numbers}

    def here(node: fx.Node) -> fx.Node:
        if node not in made and node.op == "get_attr":
            made[node] = graph.node_copy(node, here)
        return made[node]

    for node in pieces[start:stop]:
        made[node] = graph.node_copy(node, here)
    for node in gives:
        if node.name in traced.numbers:  # travels as a tensor
            made[node] = graph.call_function(torch.tensor, (made[node],))
    result = fx.node.map_arg(traced.output.args[0], here) if last else tuple(made[node] for node in gives)
    graph.output(result)
    part = fx.GraphModule(traced.module, graph, f"Stage{number}")
    return Code(number, part, tuple(n.name for n in takes), tuple(n.name for n in gives), first, last)


def mark_tensors(traced: Traced, tensors: Sequence[Tensor]) -> None:
    """Run the graph once, to see which values are tensors or whole numbers: these can be carried to another stage."""

    def mark(node: fx.Node, args: Any, kwargs: Any) -> Any:
        result = traced.call_piece(node, args, kwargs)
        node.meta["tensor"] = isinstance(result, Tensor)
        if type(result) is int:
            traced.numbers.add(node.name)
        return result

    with torch.no_grad():
        traced.run(tensors, mark)
