"""Whoever dies, sleeps or is cut off: one head at a time, and every row once in the trace of the one that finishes."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.algorithms.cluster.succession import Accepted, Roll, Succession, Vote, deputy, first_roll
from tests.algorithms.cluster.heads import Node, Rows, World

SEEDS = 400


def first_fault(seeds: range, node: type[Node] = Node) -> str:
    """Return the first history in which something goes wrong, as a story; empty if nothing does."""
    for seed in seeds:
        world = World(seed, node)
        if fault := world.run():
            return "\n".join([f"seed {seed}", *world.log, fault])
    return ""


@pytest.mark.parametrize(
    "seeds",
    [range(SEEDS), *(pytest.param(range(n, n + 5000), marks=pytest.mark.soak) for n in range(SEEDS, 40_000, 5000))],
    ids=str,
)
def test_no_history_breaks_a_promise(seeds: range) -> None:
    assert not (story := first_fault(seeds)), story


# --- planted faults: histories find each of them ---


class ForgetsLastRows(Node):
    """A head that takes over does not ask for the rows that its copy lacks."""

    def request_rows(self, number: int, first: int) -> None:
        self.unanswered.discard(number)


class MergesTwice(Node):
    """Rows that come again are added again."""

    def request_rows(self, number: int, first: int) -> None:
        super().request_rows(number, 0)

    def take_rows(self, number: int, rows: Rows) -> None:
        if self.trace is not None and number in self.machine_.roll.members:
            self.trace.numbered.counts.clear()
            super().take_rows(number, rows._replace(first=0))


class LeasesTwice(Node):
    """A head that takes over does not care for what nodes compute."""

    def take_rows(self, number: int, rows: Rows) -> None:
        super().take_rows(number, rows._replace(doing=None))


class FollowsAnybody(Node):
    """A node computes what an earlier head leases to it."""

    def is_head(self, sender: int) -> bool:
        return True


class CountsHalf(Succession):
    """Half of the ranks are enough for any of them."""

    def _is_majority(self, votes: Any, members: Any, head: int) -> bool:
        counted = set(members) - self.dead
        return 2 * len(counted & set(votes)) >= len(counted)


class NeverAsks(Succession):
    """A head gives the run its result without asking whether it still is the head."""

    def _have_majority(self, votes: Any, roll: Roll) -> bool:
        return roll.final or super()._have_majority(votes, roll)


class CountsHalfNode(Node):
    machine = CountsHalf


class NeverAsksNode(Node):
    machine = NeverAsks


@pytest.mark.parametrize(
    "node", [ForgetsLastRows, MergesTwice, LeasesTwice, FollowsAnybody, CountsHalfNode, NeverAsksNode]
)
def test_a_planted_fault_is_found(node: type[Node]) -> None:
    assert first_fault(range(SEEDS), node)


# --- single steps ---


def test_two_of_two_go_on_where_the_other_is_known_to_be_dead() -> None:
    silent, dead = (Succession(1, 2, 10.0, first_roll(range(2))) for _ in range(2))
    assert not [each for each in silent.lost(0.0, 0) if type(each).__name__ == "Lead"]
    assert "Alone" in str(silent.tick(10.0))
    assert "Lead(term=1)" in str(dead.lost(0.0, 0, dead=True))


def test_a_head_that_was_replaced_is_told_of_the_later_term() -> None:
    head, other = Succession(0, 3, 10.0, first_roll(range(3))), Succession(1, 3, 10.0, first_roll(3))
    other.lost(3.0, 0)
    assert "Lead(term=1)" in str(other.handle(3.0, 2, Vote(2, 1, first_roll(range(3)))))
    (told,) = head.reconnected(1)
    (answer,) = other.handle(30.0, 0, told.message)
    assert "Deposed(term=1)" in str(head.handle(30.0, 1, answer.message))


def test_a_vote_of_one_rank_with_a_bad_link_deposes_no_one() -> None:
    candidate = Succession(1, 3, 10.0, first_roll(range(3)))
    assert candidate.handle(0.0, 2, Vote(2, 1, first_roll(range(3)))) == []
    assert candidate.handle(0.0, 0, Roll(0, 1, (0, 1), (0, 1, 2)))[0].message == Accepted(1, 0, 1)


def test_the_deputy_is_the_next_rank() -> None:
    assert deputy(first_roll(range(3)), 3) == 1
    assert deputy(Roll(1, 4, (1, 2), (1, 2)), 3) == 2
    assert deputy(Roll(4, 1, (1,), (1,)), 3) is None
