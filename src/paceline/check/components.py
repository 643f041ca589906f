"""Strongly connected components of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def strongly_connected(following: Mapping[str, Sequence[str]]) -> list[set[str]]:
    """Tarjan's strongly connected components of more than one node; iterative, since the graph may be deep."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[set[str]] = []
    for root in following:
        todo: list[tuple[str, int]] = [(root, 0)] if root not in index else []
        while todo:
            node, turn = todo.pop()
            if turn == 0:
                if node in index:
                    continue
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            after = following.get(node, ())
            if turn < len(after):
                todo.append((node, turn + 1))
                if after[turn] not in index:
                    todo.append((after[turn], 0))
                continue
            for name in after:
                if name in on_stack:
                    low[node] = min(low[node], low[name])
            if low[node] == index[node]:
                group: set[str] = set()
                while not group or name != node:
                    name = stack.pop()
                    on_stack.discard(name)
                    group.add(name)
                if len(group) > 1:
                    found.append(group)
    return found
