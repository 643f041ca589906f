"""The search of a way for each layer: optimal against every table, on small models and drawn costs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from paceline.algorithms.splits import Held, SplitNode
from paceline.algorithms.splits.derivation import PARAMETER, Program
from paceline.planning.planner.split_search import (
    BestSplit,
    Judge,
    OperationGraph,
    Table,
    by_programming,
    by_proposals,
    division_of,
    search,
)
from paceline.plans.methods.views import Parts
from paceline.plans.plan import make

SAMPLES = 8


def _linear(name: str, takes: str, before: int, after: int) -> SplitNode:
    held = Held("weight", f"{name}.weight", (after, before)), Held("bias", f"{name}.bias", (after,))
    return SplitNode(name, "linear", (takes,), ((SAMPLES, before),), (SAMPLES, after), held, name)


def _graph(widths: tuple[int, ...], workers: int, residual: bool = False) -> OperationGraph:
    """Linear layers with an activation between; with a sum around the second, no chain."""
    nodes: list[SplitNode] = []
    last = "x"
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        nodes.append(_linear(f"fc{number}", last, before, after))
        shape = SAMPLES, after
        nodes.append(SplitNode(f"relu{number}", "elementwise", (f"fc{number}",), (shape,), shape))
        last = f"relu{number}"
        if residual and number == 1:
            nodes.append(SplitNode("add", "elementwise", ("relu0", last), (shape, shape), shape))
            last = "add"
    needs = {node.name for node in nodes} | {PARAMETER + held.name for node in nodes for held in node.held}
    return OperationGraph(tuple(nodes), {"x": (SAMPLES, widths[0])}, (last,), needs, workers)


def _judge(seed: int, graph: OperationGraph) -> Callable[[Program], float]:
    """Seconds of layers, messages and bytes, drawn over several orders of magnitude."""
    draw = random.Random(seed)
    layers = {layer: 10 ** draw.uniform(-5, -2) for layer in graph.layers}
    latency, byte = 10 ** draw.uniform(-6, -3), 10 ** draw.uniform(-10, -6)
    parts = make("tensor", workers=graph.workers).method.picture(graph.workers)
    assert isinstance(parts, Parts)

    def judge(program: Program) -> float:
        found = division_of(program, parts, {}, 4)
        compute = sum(value * found.share(layer) for layer, value in layers.items())
        return compute + latency * (found.messages + found.segments) + byte * found.bytes

    return judge


def _exhaustive(graph: OperationGraph, judge: Judge) -> BestSplit:
    """Judge every table."""
    layers, judged = graph.layers, 0
    best: tuple[float, Table] = math.inf, ()
    for ways in itertools.product(*layers.values()):
        table = tuple(zip(layers, ways, strict=True))
        program = graph.program(table)
        if program is not None:
            judged += 1
            best = min(best, (judge(program), table))
    return BestSplit(best[1], best[0], judged, True)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("seed", range(6))
def test_dynamic_programming_is_optimal_on_chains(workers: int, seed: int) -> None:
    graph = _graph((16, 32, 8, 24), workers)
    judge = _judge(seed, graph)
    assert graph.is_chain
    found, best = by_programming(graph, judge), _exhaustive(graph, judge)
    assert found.optimal
    assert found.seconds == pytest.approx(best.seconds, rel=1e-12)
    whole = graph.program(found.table)
    assert whole is not None
    assert judge(whole) == pytest.approx(found.seconds, rel=1e-12)


def test_it_judges_fewer_tables_than_there_are() -> None:
    graph = _graph((16, 32, 8, 24, 16), 2)
    judge = _judge(1, graph)
    found, best = by_programming(graph, judge), _exhaustive(graph, judge)
    assert found.judged < best.judged / 2
    assert found.seconds == pytest.approx(best.seconds, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_proposals_find_the_best_of_a_small_model_that_is_no_chain(seed: int) -> None:
    graph = _graph((16, 16, 16, 24), 2, residual=True)
    judge = _judge(seed, graph)
    assert not graph.is_chain
    assert search(graph, judge).seconds == pytest.approx(_exhaustive(graph, judge).seconds, rel=1e-12)
    again = by_proposals(graph, judge), by_proposals(graph, judge)
    assert again[0] == again[1], "a search is a function of its seed"


def test_layers_stay_whole_where_messages_cost_more_than_computing() -> None:
    graph = _graph((16, 16, 16), 2)
    found = search(graph, lambda program: 1.0 * division_of(program, _parts(), {}, 4).messages)
    assert found.text == ""


def test_layers_are_split_where_messages_cost_nothing() -> None:
    graph = _graph((16, 16, 16), 2)
    found = search(graph, lambda program: sum(division_of(program, _parts(), {}, 4).computed.values()))
    assert {way for _, way in found.table}.isdisjoint({"whole"})


def _parts() -> Parts:
    parts = make("tensor", workers=2).method.picture(2)
    assert isinstance(parts, Parts)
    return parts
