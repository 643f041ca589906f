"""Whoever dies, sleeps or is cut off: one head at a time, and every row once in the trace of the one that finishes."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.algorithms.cluster.succession import NO_ROLL, Accepted, Roll, Succession, Vote, deputy, first_roll
from tests.algorithms.cluster.heads import Node, Rows, World

SEEDS = 400


def first_fault(seeds: range, node: type[Node] = Node, orderly: bool = False) -> str:
    """Return the first history in which something goes wrong, as a story; empty if nothing does."""
    for seed in seeds:
        world = World(seed, node, orderly)
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


@pytest.mark.parametrize("seeds", [range(SEEDS), pytest.param(range(SEEDS, 40_000), marks=pytest.mark.soak)], ids=str)
def test_a_run_whose_nodes_sleep_one_after_another_goes_on(seeds: range) -> None:
    assert not (story := first_fault(seeds, orderly=True)), story


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


class ForgetsEarlierLives(Node):
    """A node has no rows of earlier lives before it is the deputy."""

    def __init__(self, world: World, number: int, roll: Roll) -> None:
        super().__init__(world, number, roll)
        self.copy.rows.clear()


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


class NeverGivesUp(Succession):
    """A head that has taken over waits for ever for a member that it has never heard of."""

    def tick(self, now: float) -> list[Any]:
        unheard, self.unheard = self.unheard, set()
        outputs = super().tick(now)
        self.unheard = unheard
        return outputs


class CopiesToAnybody(Succession):
    """The deputy is a member that does not follow yet, so it is not sent the beginning of the copy."""

    @property
    def deputy(self) -> int | None:
        return deputy(self.roll, self.nodes)


class MergesWhoWentOn(Succession):
    """A node that has gone on with an earlier head is taken as one of the others."""

    def _take_roll(self, sender: int, roll: Roll) -> list[Any]:
        return super()._take_roll(sender, roll._replace(base=(roll.term, roll.number)))


class LetsInTwice(Node):
    """A head that takes over lets in who has asked it before, though an earlier head has done so meanwhile."""

    def answer(self, before: Node) -> None:
        number = self.newest[before.rank] + self.world.nodes
        self.world.all.setdefault(number, Node(self.world, number, NO_ROLL)).alive = False
        there = self.peers.get(before.rank, before.number)
        self.welcome(number)
        self.peers[before.rank] = there


class LearnsNothing(Node):
    """A candidate takes a vote, and not what the voter knows of nodes that have joined."""

    def learn(self, newest: dict[int, int]) -> None:
        """Forget it."""


def node_with(fault: type[Succession]) -> type[Node]:
    return type(fault.__name__, (Node,), {"machine": fault})


@pytest.mark.parametrize(
    ("node", "seeds"),
    [
        (ForgetsLastRows, range(SEEDS)),
        (MergesTwice, range(SEEDS)),
        (ForgetsEarlierLives, range(SEEDS)),
        (LeasesTwice, range(1000, 1100)),
        (FollowsAnybody, range(500, 600)),
        (node_with(CountsHalf), range(SEEDS)),
        (node_with(NeverAsks), range(SEEDS)),
        (node_with(NeverGivesUp), range(SEEDS)),
        (node_with(CopiesToAnybody), range(2200, 2300)),
        (node_with(MergesWhoWentOn), range(1000, 1100)),
        (LearnsNothing, range(3200, 3300)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_fault_is_found(node: type[Node], seeds: range) -> None:
    assert first_fault(seeds, node)
    assert not first_fault(seeds)


def test_a_node_that_is_let_in_twice_is_found_where_nodes_sleep_one_after_another() -> None:
    assert first_fault(range(SEEDS), LetsInTwice, orderly=True)


# --- single steps ---


def test_two_of_two_go_on_where_the_other_is_known_to_be_dead() -> None:
    silent, dead = (Succession(1, 2, 10.0, first_roll(range(2))) for _ in range(2))
    assert not [each for each in silent.lost(0.0, 0) if type(each).__name__ == "Lead"]
    assert "Alone" in str(silent.tick(10.0))
    assert "Lead(term=1)" in str(dead.lost(0.0, 0, dead=True))


def test_a_head_that_was_replaced_is_told_of_the_later_term() -> None:
    head, other = Succession(0, 3, 10.0, first_roll(range(3))), Succession(1, 3, 10.0, first_roll(range(3)))
    other.lost(3.0, 0)
    assert "Lead(term=1)" in str(other.handle(3.0, 2, Vote(2, 1, first_roll(range(3)))))
    (told,) = head.reconnected(1)
    (answer,) = other.handle(30.0, 0, told.message)
    assert "Deposed(term=1)" in str(head.handle(30.0, 1, answer.message))


def test_a_node_that_has_sought_in_vain_learns_at_once_that_the_head_has_gone_on_without_it() -> None:
    node = Succession(2, 3, 10.0, first_roll(range(3)))
    node.lost(3.0, 0)
    assert node.handle(4.0, 0, Roll(0, 1, (0, 1), (0, 1, 2))) == []
    assert "Deposed" in str(node.handle(4.0, 0, Roll(0, 1, (0, 1), (0, 1))))


def test_a_vote_of_one_rank_with_a_bad_link_deposes_no_one() -> None:
    candidate = Succession(1, 3, 10.0, first_roll(range(3)))
    assert candidate.handle(0.0, 2, Vote(2, 1, first_roll(range(3)))) == []
    assert candidate.handle(0.0, 0, Roll(0, 1, (0, 1), (0, 1, 2)))[0].message == Accepted(1, 0, 1)


def test_the_vote_of_a_node_is_none_of_the_node_that_has_its_rank_by_now() -> None:
    """Rank 2 of three has its second node, of the number 5; the first one wakes, and votes."""
    roll = Roll(0, 2, (0, 1, 5), (0, 1, 5))
    for voter, leads in ((2, False), (5, True)):
        candidate = Succession(1, 3, 10.0, roll)
        candidate.lost(3.0, 0)
        outputs = candidate.handle(3.0, 2, Vote(voter, 1, first_roll(range(3)) if voter == 2 else roll))
        assert ("Lead(term=1)" in str(outputs)) is leads


def test_a_node_that_joins_is_awaited_and_one_that_left_its_rank_is_not() -> None:
    head = Succession(0, 3, 10.0, Roll(0, 0, (0, 1, 2), (0, 1, 2)))
    head.lost(1.0, 2)
    head.handle(1.0, 1, Accepted(1, 0, 1))
    assert head.roll.members == head.roll.before == (0, 1)
    head.join(2.0, 5)
    assert head.roll == Roll(0, 2, (0, 1, 5), (0, 1))
    head.handle(2.0, 2, Accepted(2, 0, 2))
    assert not head.roll.confirmed
    head.handle(2.0, 2, Accepted(5, 0, 2))
    assert head.roll.confirmed


def test_the_deputy_is_the_next_rank() -> None:
    assert deputy(first_roll(range(3)), 3) == 1
    assert deputy(Roll(1, 4, (1, 2), (1, 2)), 3) == 2
    assert deputy(Roll(4, 1, (1,), (1,)), 3) is None
