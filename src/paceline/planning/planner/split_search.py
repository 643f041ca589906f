"""The best way for each layer: a table {layer: way} that the cost model judges fastest. Pure.

A model whose operations follow one another in a chain is solved exactly, by dynamic programming:

    best(n, state) = the cheapest ways of the first n operations that leave the model in this state

The state is all that later operations depend on: where the last value lies, and whether a gradient is already summed at
the end of the update (a second one then costs no further message). Other models are searched as FlexFlow does (Jia,
Zaharia and Aiken, "Beyond data and model parallelism for deep neural networks", MLSys 2019): from several published
tables, one layer at a time is given another way, which is kept if it is faster, and sometimes if it is not.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from paceline.algorithms.splits import PARTIAL, WHOLE, Placement, Shape, SplitNode
from paceline.algorithms.splits.catalogue import WAYS
from paceline.algorithms.splits.derivation import PARAMETER, Program, derive
from paceline.algorithms.splits.placements import AllToAll, Movement, volume
from paceline.algorithms.splits.recipes import OneWeirdTrick, PerLayer, SplitRecipe, Tensor
from paceline.errors import PacelineError
from paceline.planning.planner.facts import ModelDivision
from paceline.plans.methods.prediction import sent
from paceline.plans.methods.views import Parts
from paceline.training.parameters.layout import ALIGN

Table = tuple[tuple[str, str], ...]
#: Seconds of an update by a program, also of the first operations of one.
Judge = Callable[[Program], float]
PROPOSALS = 200
GREED = 50.0  # how much less likely a slower table is kept: exp(-GREED x how much slower, as a share)
STATES = 64  # that are kept after each operation
STARTS: tuple[SplitRecipe, ...] = (Tensor(), OneWeirdTrick())


@dataclass(frozen=True)
class OperationGraph:
    """The operations of a model for chunks of one size, as `derive` takes them."""

    nodes: tuple[SplitNode, ...]
    inputs: Mapping[str, Shape]
    outputs: tuple[str, ...]
    needs: Collection[str]
    workers: int

    def program(self, table: Table, count: int | None = None) -> Program | None:
        """Return the program of a table, or of its first operations; None where the ways do not fit together."""
        is_complete = count is None or count == len(self.nodes)
        try:
            return derive(
                self.nodes[:count],
                self.inputs,
                self.outputs if is_complete else (),
                self.needs,
                self.workers,
                PerLayer(table).choose,
            )
        except PacelineError:
            return None

    def ways(self, layer: str) -> list[str]:
        """Return the ways in which a layer can be split; `whole` is one of them."""
        mine = [node for node in self.nodes if node.layer == layer]
        return [name for name, way in WAYS.items() if not any(way.refusal(node, self.workers) for node in mine)]

    @property
    def layers(self) -> dict[str, list[str]]:
        """The layers that can be split, with their ways."""
        layer_names = dict.fromkeys(node.layer for node in self.nodes if node.layer and node.held)
        layer_ways = {layer: self.ways(layer) for layer in layer_names}
        return {layer: ways for layer, ways in layer_ways.items() if len(ways) > 1}

    @property
    def is_chain(self) -> bool:
        """Whether each operation takes what the one before it made and nothing else, with parameters of its own."""
        first, rest = self.nodes[:1], itertools.pairwise(self.nodes)
        parameter_names = [each.name for node in self.nodes for each in node.held]
        starts = all(set(node.takes) <= set(self.inputs) and len(node.takes) == 1 for node in first)
        return (
            starts and len(set(parameter_names)) == len(parameter_names) and all(b.takes == (a.name,) for a, b in rest)
        )


@dataclass(frozen=True)
class BestSplit:
    """The best table, its seconds, and how many tables were judged."""

    table: Table
    seconds: float
    judged: int
    #: Whether no other table is faster, by this judge.
    optimal: bool

    @property
    def text(self) -> str:
        """The table as the option `ways` of the plan `per_layer` has it."""
        return "+".join(f"{layer}:{way}" for layer, way in self.table if way != "whole")


def search(graph: OperationGraph, judge: Judge, proposals: int = PROPOSALS, seed: int = 0) -> BestSplit:
    """Return the fastest table that is found."""
    return by_programming(graph, judge) if graph.is_chain else by_proposals(graph, judge, proposals, seed)


def by_programming(graph: OperationGraph, judge: Judge) -> BestSplit:
    """Solve a chain by dynamic programming."""
    layers, judged = graph.layers, 0
    tables: list[Table] = [()]
    cut = False
    seconds = math.inf
    for count, node in enumerate(graph.nodes, 1):
        best: dict[tuple[Placement, bool], tuple[float, Table]] = {}
        for table in tables:
            for way in layers.get(node.layer, [""]):
                longer = (*table, (node.layer, way)) if way else table
                program = graph.program(longer, count)
                if program is None:
                    continue
                judged += 1
                state = _state(program, node)
                best[state] = min(best.get(state, (math.inf, ())), (judge(program), longer))
        rows = sorted(best.values())
        cut = cut or len(rows) > STATES
        tables, seconds = [table for _, table in rows[:STATES]], rows[0][0] if rows else math.inf
    return BestSplit(tables[0] if tables else (), seconds, judged, not cut)


def _state(program: Program, node: SplitNode) -> tuple[Placement, bool]:
    """Return what later operations depend on."""
    last = next(name for name in reversed([*program.nodes]) if name.split("#")[0] == node.name)
    summed = any(
        step.back and step.value and step.movement.kind == "sum" for step in program.steps if _late(step.value)
    )
    return program.layouts[last].gives, summed


def _late(value: str) -> bool:
    return value.startswith(("@", "+"))


def by_proposals(graph: OperationGraph, judge: Judge, proposals: int = PROPOSALS, seed: int = 0) -> BestSplit:
    """Search by random changes of one layer, from the tables of published recipes."""
    layers, draw = graph.layers, random.Random(seed)
    scores: dict[Table, float] = {}

    def seconds(table: Table) -> float:
        if table not in scores:
            program = graph.program(table)
            scores[table] = judge(program) if program is not None else math.inf
        return scores[table]

    starts = list(dict.fromkeys(_starts(graph, layers)))
    for start in starts:
        now = start
        for _ in range(proposals // len(starts) if layers else 0):
            place = draw.randrange(len(now))
            layer, way = now[place]
            other = draw.choice([each for each in layers[layer] if each != way])
            changed = (*now[:place], (layer, other), *now[place + 1 :])
            slower = seconds(changed) / seconds(now) - 1.0 if seconds(now) < math.inf else 0.0
            if slower <= 0 or draw.random() < math.exp(-GREED * slower):
                now = changed
    best = min(scores or {(): seconds(())}, key=lambda table: (scores[table], table))
    return BestSplit(best, scores[best], len(scores), False)


def _starts(graph: OperationGraph, layers: Mapping[str, Sequence[str]]) -> Iterator[Table]:
    """Yield the tables from which a search begins: all whole, all by samples, and those of published recipes."""
    yield tuple((layer, "whole") for layer in layers)
    yield tuple((layer, "samples" if "samples" in ways else "whole") for layer, ways in layers.items())
    for recipe in STARTS:
        try:
            program = derive(
                recipe.prepare(graph.nodes, graph.workers),
                graph.inputs,
                graph.outputs,
                graph.needs,
                graph.workers,
                recipe.choose,
            )
        except PacelineError:
            continue
        chosen = {node.layer: program.ways[name] for name, node in program.nodes.items() if node.layer}
        yield tuple((layer, chosen.get(layer) or "whole") for layer in layers)


# --- A program of split layers as figures: what its workers compute, hold and send in an update. Pure -----------------
# The same figures serve a plan that has a name and a table that a search tries (`split_search`).

TOTALS_BYTES = 8  # of each number in which workers of ZeRO add up losses and weights


def division_of(program: Program, parts: Parts, moving: Mapping[str, Shape], number: int) -> ModelDivision:
    """Return what a worker computes, holds and sends; on average over the workers of a group.

    moving   the shapes of the buffers that training changes, by their names
    number   bytes of a number
    """
    size = program.workers
    exchanges = exchanges_of(program, parts.stage)
    moved = _numbers(exchanges, size) * number / size
    if parts.stage:
        totals = 2 + sum(map(prod, moving.values()))
        added = Movement(PARTIAL, WHOLE).exchanges((totals,), size)
        moved += _numbers(added, size) * TOTALS_BYTES / size
        exchanges += added
    if parts.replicas > 1:
        moved += sent(parts.collective, parts.replicas, number * _payload(program, list(moving), number))
    segments = sum(bool(step.nodes) for step in program.steps)
    computed = {} if parts.stage else _computed(program)
    return ModelDivision(moved, 0, len(exchanges) * (size - 1), segments, _held(program), computed)


def exchanges_of(program: Program, stage: int) -> list[AllToAll]:
    """Return the exchanges of an update; stages 1 and 2 of ZeRO gather each parameter once."""
    moves = [step for step in program.steps if step.value and not (step.again and stage in (1, 2))]
    return [e for step in moves for e in step.movement.exchanges(program.shapes[step.value], program.workers)]


def _numbers(exchanges: Sequence[AllToAll], size: int) -> int:
    return sum(each.sent(place) for each in exchanges for place in range(size))


def _computed(program: Program) -> dict[str, float]:
    """Return the share of each layer that a worker computes: a part of one that is split, or follows a split."""
    count, shares = Counter[str](), Counter[str]()
    for name, node in program.nodes.items():
        if node.layer:
            count[node.layer] += 1
            split = program.ways[name] not in ("", "whole") or program.layouts[name].gives.is_split
            shares[node.layer] += 1.0 / program.workers if split else 1.0  # type: ignore[assignment]
    return {layer: shares[layer] / count[layer] for layer in count}


def _held(program: Program) -> float:
    """Return the share of the trained parameters that a worker holds, on average."""
    names = [name for name in program.stored if PARAMETER + name in program.needs]
    total = program.workers * sum(prod(program.shapes[PARAMETER + name]) for name in names)
    return sum(_volume(program, name, place) for name in names for place in range(program.workers)) / max(1, total)


def _payload(program: Program, moving: Sequence[str], number: int) -> float:
    """Return the numbers of the vector that replicas add up, on average over the workers of a group."""
    line = ALIGN // number
    trained = [name for name in program.stored if PARAMETER + name in program.needs]
    numbers = sum(
        -(-_volume(program, name, place) // line) * line
        for name in (*trained, *moving)
        for place in range(program.workers)
    )
    return numbers / program.workers + len(trained) + 2


def _volume(program: Program, name: str, place: int) -> int:
    """Return how many numbers of a parameter or buffer the worker at this place holds."""
    return volume(program.stored.get(name, WHOLE).box(program.shapes[PARAMETER + name], place))
