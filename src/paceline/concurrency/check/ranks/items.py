"""Collectives in their order, blocks of them included, and how two orders are compared."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.check.ranks.branches import Condition
from paceline.concurrency.check.ranks.collectives import NEIGHBOURS, OF_BRANCH

OF_PROCESSES = {"init_rpc", "shutdown"}  # which have nothing to do with the default group
LEAVES = ("break", "return", "exit")  # how a loop is left for good
MARKS = ("else", *LEAVES)  # items that are no collectives


class Item(NamedTuple):
    """A collective, or a block of collectives that every rank decides alike."""

    name: str
    at: ast.AST
    inner: tuple[Item, ...] = ()
    group: str = ""
    root: str = ""

    @property
    def key(self) -> object:
        """What two sides are compared by."""
        return (self.name, tuple(item.key for item in self.inner))


def relevant(items: tuple[Item, ...], at: Condition) -> tuple[Item, ...]:
    """The collectives whose group may contain ranks on both sides of the condition."""
    relevant_items = []
    for item in items:
        if item.inner:
            inner = relevant(item.inner, at)
            inner = left_by(inner) if item.name == "loop" else inner
            if any(i.name != "else" for i in inner):
                relevant_items.append(item._replace(inner=inner))
        elif item.group == OF_BRANCH:
            continue
        elif at.local or (at.alone and item.group != NEIGHBOURS) or item.group in ("", at.group) or item.name in MARKS:
            relevant_items.append(item)
    return tuple(relevant_items)


def only_in(mine: tuple[Item, ...], other: tuple[Item, ...]) -> tuple[Item, ...]:
    """The collectives of `mine` that `other` lacks."""
    rest = [i.key for i in other]
    difference = []
    for item in mine:
        if item.key in rest:
            rest.remove(item.key)
        else:
            difference.append(item)
    return tuple(i for item in difference for i in flattened(item))


def of_branch(item: Item) -> Item:
    """A collective of the default group as one of the ranks that take a branch."""
    is_default = not item.group and item.name not in (*MARKS, *OF_PROCESSES)
    return item._replace(group=OF_BRANCH if is_default else item.group, inner=tuple(of_branch(i) for i in item.inner))


def left_by(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """What a loop without collectives means to what follows it: `return` leaves both, `break` only the loop."""
    calls = any(True for item in items for _ in flattened(item))
    return items if calls else tuple(item for item in items if item.name != "break")


def without_end(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The collectives of a function, without the ways to leave it after which there is none."""
    last = max((n for n, item in enumerate(items, start=1) if any(True for _ in flattened(item))), default=0)
    return items[:last]


def moved(item: Item, to: ast.AST) -> Item:
    """An item of a callee as one of the call."""
    return item._replace(at=to, inner=tuple(moved(i, to) for i in item.inner))


def flattened(item: Item) -> Iterator[Item]:
    """The collectives in an item, without the block structure."""
    if not item.inner and item.name not in MARKS:
        yield item
    for inner in item.inner:
        yield from flattened(inner)
