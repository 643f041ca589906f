"""Stages: the model's graph, cut between pieces, and the blueprint that says which worker has which.

    pieces   | conv | relu | norm | body |  add  | mean | head |
    stages   |  ---- 0 ----  |     --- 1 ---     |  --- 2 ---  |
                    relu ----------------> add                     a skip connection is carried along

What an earlier stage computes and a later one needs goes with every message between them. A stage holds the modules and
parameters that its pieces use, under the model's own names. A parameter that several stages use (an embedding that is
also the last layer) belongs to the first of them, which sends it on with its results, so that its gradient comes back
with the others. What training does not change is copied to every stage that uses it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.derivation import Program
from paceline.errors import JobError, suggest
from paceline.training.parameters.layout import trainable
from paceline.training.stages.exporting import ExportedGraph
from paceline.training.stages.refusals import memory_of, tensors_of
from paceline.training.stages.tracing import Traced, TracedCall, attribute, modules_of, retrace


@dataclass
class Code:
    """The code of one stage: what it takes from the one before, computes, and gives to the next."""

    number: int
    part: fx.GraphModule  # returns a tuple of what it gives to the next stage, or the model's result
    first: bool
    last: bool
    tied: tuple[nn.Parameter, ...]  # what comes from the stage before, or goes to the next

    def __call__(self, *values: Tensor) -> Any:
        return self.part(*values)


def name_of(traced: Traced, place: int) -> str:
    """Return a piece's name for users: its module's at the module's first call, else the graph's."""
    node = traced.pieces[place]
    if node.op != "call_module":
        return node.name
    target = str(node.target)
    first = next(n for n in traced.pieces if n.op == "call_module" and n.target == target)
    return target if first is node else node.name


def find(traced: Traced, name: str) -> int:
    """Return the piece of this name, or the first one in the module of this name."""
    pieces = traced.pieces
    for place, node in enumerate(pieces):
        if name in modules_of(node) or name == name_of(traced, place):
            return place
    named = [name_of(traced, place) for place in range(len(pieces))]
    why = next(
        (f" ({path} stays whole: {why})" for path, why in traced.whole.items() if name.startswith(path + ".")), ""
    )
    raise JobError(f"there is no piece {name!r} to cut before{why}; {suggest(name, named)}")


def places_of(traced: Traced, cuts: Sequence[str]) -> tuple[int, ...]:
    """Return where stages begin, from their names. Raise `JobError` where no cut can be made."""
    places = tuple(find(traced, name) for name in cuts)
    if list(places) != sorted(set(places)) or 0 in places:
        raise JobError(f"cuts {'+'.join(cuts)} are not in the order of the model, or cut before its first piece")
    for place, name in zip(places, cuts, strict=True):
        if why := obstacle(traced, place):
            raise JobError(f"the model cannot be cut before {name!r}: {why}")
    return places


def obstacle(traced: Traced, place: int) -> str | None:
    """Return why no cut can be made before this piece, or None."""
    after = set(traced.pieces[place:])
    for node in _crossing(traced, place):
        if not node.meta.get("tensor", True) and node.name not in traced.numbers:
            return f"{node.name} is not a tensor, and is made before and needed after it; cut where it is not needed"
        changing = next((each for each in after if node.meta["memory"] & each.meta["changes"]), None)
        if changing is not None:
            return (
                f"{changing.name} changes in place what would come from another stage ({node.name}); give it "
                "inplace=False, or write it without the trailing underscore"
            )
    return None


def tied(traced: Traced, places: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Return the parameters of several stages, with the first and the last of these."""
    names, ties = trainable(traced.module), {}
    for what, pieces in traced.users.items():
        first, last = (sum(start <= piece for start in places) for piece in (pieces[0], pieces[-1]))
        if what in names and first < last:
            ties[what] = first, last
    return ties


def message_bytes(traced: Traced) -> list[int]:
    """Return for each piece the bytes of a message to a stage that begins with it."""
    pieces, trained = range(len(traced.pieces)), trainable(traced.module)
    sizes = [sum(node.meta["bytes"] for node in _crossing(traced, place)) for place in pieces]
    for what, users in traced.users.items():
        for place in range(users[0] + 1, users[-1] + 1) if what in trained else ():
            sizes[place] += trained[what].nbytes
    return sizes


def indivisible(traced: Traced, moving: Collection[str]) -> dict[str, list[int]]:
    """Return what must be in a single stage, with the pieces that use it.

    These are buffers that training changes and modules that draw random numbers call by call.
    """
    still = {name for name, _ in (*traced.module.named_parameters(), *traced.module.named_buffers())} - {*moving}
    return {what: pieces for what, pieces in traced.users.items() if what not in still}


def cut_conflict(traced: Traced, places: Sequence[int], moving: Collection[str]) -> str | None:
    """Return why stages cannot begin at all of these places, or None."""
    for what, pieces in indivisible(traced, moving).items():
        if any(pieces[0] < place <= pieces[-1] for place in places):
            one, other = (name_of(traced, piece) for piece in (pieces[0], pieces[-1]))
            why = "training moves it" if what in moving else "it draws chance"
            return f"{what} is used by {one} and by {other}, and {why}: cut before or after both"
    return None


def _crossing(traced: Traced, place: int) -> list[fx.Node]:
    """Return the values made before this piece and needed by it or later: the model's inputs first."""
    return [node for node in (*traced.placeholders, *traced.pieces[:place]) if traced.needed[node] >= place]


def cut(traced: Traced, places: Sequence[int]) -> list[Code]:
    """Return the stages, over the model's own modules."""
    bounds = [0, *places, len(traced.pieces)]
    ties = tied(traced, places)
    return [_stage(traced, number, bounds[number], bounds[number + 1], ties) for number in range(len(bounds) - 1)]


def _stage(traced: Traced, number: int, start: int, stop: int, ties: dict[str, tuple[int, int]]) -> Code:
    pieces, graph = traced.pieces, fx.Graph()
    first, last = start == 0, stop == len(pieces)
    takes = traced.placeholders if first else _crossing(traced, start)
    gives = [] if last else _crossing(traced, stop)
    copies = {node: graph.placeholder(node.name) for node in takes}
    coming = [name for name, (owner, until) in ties.items() if owner < number <= until]
    goes = [name for name, (owner, until) in ties.items() if owner <= number < until]
    comes = {name: graph.placeholder(f"tied_parameter_{place}") for place, name in enumerate(coming)}
    names = {id(p): name for name, p in traced.module.named_parameters()}
    if not first:
        copies |= {node: graph.call_function(int, (copies[node],)) for node in takes if node.name in traced.numbers}

    def here(node: fx.Node) -> fx.Node:
        if node not in copies and node.op == "get_attr":
            name = names.get(id(attribute(traced.module, str(node.target))), "")
            copies[node] = comes[name] if name in comes else graph.node_copy(node, here)
        return copies[node]

    def piece(node: fx.Node) -> fx.Node:
        if node.op == "call_module":
            mine = traced.module.get_submodule(str(node.target)).named_parameters(remove_duplicate=False)
            if parameters := {name: comes[names[id(p)]] for name, p in mine if names[id(p)] in comes}:
                called = graph.get_attr(str(node.target))
                args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), here)
                return graph.call_function(called_with, (called, parameters, args, kwargs))
        return graph.node_copy(node, here)

    for quiet, nodes in groupby(pieces[start:stop], lambda node: bool(node.meta.get("quiet"))):
        with _quietly(graph) if quiet else contextlib.nullcontext():
            for node in nodes:
                copies[node] = piece(node)
    for node in gives:
        if node.name in traced.numbers:  # travels as a tensor
            copies[node] = graph.call_function(torch.tensor, (copies[node],))
    if last:
        result = fx.node.map_arg(traced.output.args[0], here)
    else:
        handed = [comes[name] if name in comes else graph.get_attr(name) for name in goes]
        result = (*(copies[node] for node in gives), *handed)
    graph.output(result)
    part = fx.GraphModule(traced.module, graph, f"Stage{number}")
    carried = tuple(traced.module.get_parameter(name) for name in {**comes, **dict.fromkeys(goes)})
    return Code(number, part, first, last, carried)


def called_with(module: nn.Module, parameters: Mapping[str, Tensor], args: Any, kwargs: Any) -> Any:
    """Call a module with parameters that another stage has, in a mapping that torch.fx may have made immutable."""
    return torch.func.functional_call(module, dict(parameters), args, dict(kwargs))


@contextlib.contextmanager
def _quietly(graph: fx.Graph) -> Iterator[None]:
    """Surround the pieces that are added by calls that turn gradients off and on again."""
    before = graph.call_function(torch.is_grad_enabled)
    graph.call_function(torch._C._set_grad_enabled, (False,))
    yield
    graph.call_function(torch._C._set_grad_enabled, (before,))


def mark_tensors(traced: Traced, tensors: Sequence[Tensor]) -> None:
    """Run the graph once and mark each node with what it takes to decide where to cut.

    Tensors and whole numbers can be sent to another stage. What is changed in place must be computed where it was made,
    so the memory of values is marked too, and their size.
    """

    def mark(node: fx.Node, args: Any, kwargs: Any) -> Any:
        versions = [(tensor, tensor._version) for tensor in tensors_of(args, kwargs)]
        result = traced.call_piece(node, args, kwargs)
        node.meta["tensor"] = isinstance(result, Tensor)
        node.meta["bytes"] = result.nbytes if isinstance(result, Tensor) else 0
        node.meta["memory"] = memory_of(result)
        node.meta["changes"] = memory_of([tensor for tensor, version in versions if tensor._version != version])
        if type(result) is int:
            traced.numbers.add(node.name)
        return result

    for node, tensor in zip(traced.placeholders, tensors, strict=True):
        node.meta.update(bytes=tensor.nbytes, memory=memory_of(tensor))
    with torch.no_grad():
        traced.run(tensors, mark)


# The blueprint of a pipeline: where the model is cut, which worker has which stage, and what each stage needs.


@dataclass(frozen=True)
class Blueprint:
    """The cuts of the model, with all that workers need to cut it in the same way."""

    call: TracedCall
    exported: ExportedGraph | None  # the model's graph, where torch.fx cannot make it
    numbers: tuple[str, ...]  # values that travel as tensors and are whole numbers
    places: tuple[int, ...]  # where stages begin, in pieces
    names: tuple[str, ...]  # the same, as users know them
    needs: tuple[tuple[bool, ...], ...]  # per stage: which of what it takes wants a gradient
    carries_chance: bool  # whether the generator's state goes with the activations
    moving: tuple[str, ...]
    stage_to_worker: tuple[int, ...]
    versions: tuple[int, ...]
    predicts: bool
    slots: int
    flushes: bool
    recompute: tuple[bool, ...]
    splits: bool  # whether backwards come in two halves
    agrees: bool  # whether workers all-reduce the norm of the gradient before an update
    bytes_on: tuple[int, ...]  # of the largest message from each stage to the next
    bytes_back: tuple[int, ...]  # and back from that one
    #: Per stage, where workers share its layers: their program for each size of what the stage takes.
    programs: tuple[Mapping[tuple[tuple[int, ...], ...], Program], ...] = ()
    #: The shapes of the model's whole parameters and buffers.
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: How workers that share layers store each parameter and buffer, with the shape that the placement refers to.
    stored: Mapping[str, tuple[Placement, tuple[int, ...]]] = field(default_factory=dict)

    def codes(self, module: nn.Module) -> list[Code]:
        """Return the code of every stage, over this module."""
        traced = retrace(module.train(), self.call, self.exported)
        traced.numbers = set(self.numbers)
        return cut(traced, self.places)

    def holdings(self, module: nn.Module) -> list[list[str]]:
        """Return, per worker, the names of the parameters and buffers that it holds."""
        by_worker: list[list[str]] = [[] for _ in range(max(self.stage_to_worker) + 1)]
        for worker, names in zip(self.stage_to_worker, held(self.codes(module), module), strict=True):
            by_worker[worker] += names
        return by_worker


def skeleton(module: nn.Module, names: Sequence[str]) -> nn.Module:
    """Return a copy of the module in which only these parameters and buffers have memory."""
    real, memo = set(names), dict[int, object]()
    for name, parameter in module.named_parameters():
        if name not in real:
            memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for name, buffer in module.named_buffers():
        if name not in real:
            memo[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(module, memo)


def held(codes: Sequence[Code], module: nn.Module) -> list[list[str]]:
    """Return, per stage, the names of its parameters and buffers, in the module's order.

    A trained parameter belongs to the first stage that uses it, the rest to every one, and the last has the unused.
    """
    tensors, trained = dict((*module.named_parameters(), *module.named_buffers())), trainable(module)
    used = [{id(t) for t in (*code.part.parameters(), *code.part.buffers())} for code in codes]
    used[-1] |= {id(t) for t in tensors.values()} - set[int]().union(*used)
    once = {id(t) for t in trained.values()}
    used = [mine - (once & set[int]().union(*used[:number])) for number, mine in enumerate(used)]
    return [[name for name, tensor in tensors.items() if id(tensor) in mine] for mine in used]
