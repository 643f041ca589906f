"""Instances without a model, for drawings, proofs and simulations in time only: trees of two shapes, and a chain."""

from __future__ import annotations

from paceline.algorithms.dataflow import Call, Graph


def example_graph(instance: int, workers: int) -> Graph:
    """Return the graph of an instance: an operator for leaves, one for branches, one for the head."""
    leaf, branch, head = 0, min(1, workers - 1), workers - 1
    leaves = (2, 3, 1)[instance % 3]
    calls = [Call(leaf, 0) for _ in range(leaves)]
    top = 0
    for number in range(1, leaves):
        calls.append(Call(branch, 1, (top, number)))
        top = len(calls) - 1
    for middle in range(2, workers - 1):  # operators that more workers hold, one after another
        calls.append(Call(middle, middle, (top,)))
        top = len(calls) - 1
    calls.append(Call(head, max(2, workers - 1), (top,)))
    return Graph(tuple(calls))
