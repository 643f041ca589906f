"""Every interleaving of a small group with deaths, false alarms, newcomers and messages from the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.algorithms.cluster.group import (
    AbortFlag,
    Accuse,
    Excluded,
    GroupMember,
    Head,
    Output,
    Regroup,
    Report,
    SendToMember,
)
from tests.algorithms.cluster.groups import explore


@pytest.mark.parametrize(
    ("deaths", "alarms", "repeats", "updates", "ranks"),
    [(0, 0, 2, 2, 3), (1, 0, 0, 2, 3), (0, 1, 0, 1, 3), (1, 0, 1, 2, 2), (1, 1, 0, 1, 2)],
)
def test_every_interleaving(deaths: int, alarms: int, repeats: int, updates: int, ranks: int) -> None:
    assert explore(deaths, alarms, repeats, updates, ranks) > 300


def test_every_interleaving_in_which_the_head_is_replaced() -> None:
    assert explore(1, ranks=2, updates=1, heads=2) > 300


@pytest.mark.soak
def test_every_interleaving_of_three_ranks_in_which_the_head_is_replaced() -> None:
    assert explore(1, updates=1, heads=2) > 10_000


@pytest.mark.soak
@pytest.mark.parametrize(("deaths", "alarms", "repeats", "updates"), [(2, 0, 0, 2), (1, 0, 1, 2), (0, 1, 0, 2)])
def test_every_interleaving_of_three_ranks(deaths: int, alarms: int, repeats: int, updates: int) -> None:
    assert explore(deaths, alarms, repeats, updates) > 10_000


@pytest.mark.parametrize(("deaths", "ranks", "heads"), [(1, 2, 1), (0, 3, 1), (0, 2, 2)])
def test_every_interleaving_in_which_a_rank_comes(deaths: int, ranks: int, heads: int) -> None:
    assert explore(deaths, ranks=ranks, updates=1, heads=heads, comes=1) > 300


@pytest.mark.soak
@pytest.mark.parametrize(
    ("deaths", "alarms", "repeats", "updates", "ranks", "heads", "comes", "least"),
    [
        (1, 0, 0, 1, 3, 1, 1, 10_000),
        (0, 1, 0, 1, 3, 1, 1, 10_000),
        (0, 0, 1, 1, 3, 1, 1, 4_000),
        (0, 0, 0, 2, 3, 1, 2, 10_000),
        (1, 0, 0, 2, 2, 2, 1, 10_000),
        (1, 1, 1, 1, 2, 1, 1, 10_000),
    ],
)
def test_every_interleaving_of_more_in_which_ranks_come(
    deaths: int, alarms: int, repeats: int, updates: int, ranks: int, heads: int, comes: int, least: int
) -> None:
    assert explore(deaths, alarms, repeats, updates, ranks, heads=heads, comes=comes) > least


# --- planted faults: the exploration finds each of them ---


class TakesOldReports(Head):
    """A report of an earlier epoch counts."""

    def report(self, now: float, rank: int, message: Report) -> list[Output]:
        return super().report(now, rank, message._replace(epoch=self.epoch))


class GivesNothing(Head):
    """Survivors that lack the last sum make it again by themselves."""

    def _form_if_complete(self, now: float) -> list[Output]:
        return [
            SendToMember(each.to, each.message._replace(giver=-1, takers=()))
            if isinstance(each, SendToMember) and isinstance(each.message, Regroup)
            else each
            for each in super()._form_if_complete(now)
        ]


class GoesOnWithoutAll(Head):
    """The next group is formed by the first that reports."""

    def _form_if_complete(self, now: float) -> list[Output]:
        everybody, self.alive = self.alive, set(self.reports) or self.alive
        found = super()._form_if_complete(now)
        self.alive = everybody
        return found


class SharesNothingOut(Head):
    """The shares of the group before stay as they are."""

    def _form_if_complete(self, now: float) -> list[Output]:
        return [
            SendToMember(each.to, each.message._replace(since=99))
            if isinstance(each, SendToMember) and isinstance(each.message, Regroup) and each.message.epoch > 1
            else each
            for each in super()._form_if_complete(now)
        ]


class BelievesAnybody(Head):
    """A rank that was accused in another epoch is excluded, and only those that answer are told."""

    def gone(self, now: float, rank: int, why: str) -> list[Output]:
        self.alive.discard(rank)
        return []


class CountsOnFromZero(Head):
    """A head that takes over gives epochs that its members have had."""

    def __post_init__(self) -> None:
        self.epoch = 0
        super().__post_init__()


class ReportsInside(GroupMember):
    """A report that was made within the collective is not final: the collective may still be finished."""

    def handle(self, message: Any) -> Report | None:
        fresh = isinstance(message, AbortFlag) and message.epoch == self.epoch and not self.aborted
        found = super().handle(message)
        return self._report() if fresh else found

    def leave(self, number: int | None = None) -> Report | None:
        super().leave(number)
        return None


class EntersOldGroups(GroupMember):
    """A collective may begin over connections of an earlier epoch."""

    def enter(self, epoch: int) -> bool:
        return super().enter(self.epoch)


class HearsOldCallOffs(GroupMember):
    """A call-off of an earlier epoch counts."""

    def handle(self, message: Any) -> Report | None:
        return super().handle(AbortFlag(self.epoch) if isinstance(message, AbortFlag) else message)


def _regrouped(outputs: list[Output], change: Callable[[int, Regroup], Regroup]) -> list[Output]:
    """Change what the head says to each rank of a group that grows."""
    return [
        SendToMember(each.to, change(each.to, each.message))
        if isinstance(each, SendToMember) and isinstance(each.message, Regroup) and each.message.newcomers
        else each
        for each in outputs
    ]


class TellsTheNewcomerAlone(Head):
    """The others do not know that the group has grown."""

    def _form_if_complete(self, now: float) -> list[Output]:
        def change(to: int, group: Regroup) -> Regroup:
            old = tuple(rank for rank in group.ranks if rank not in group.newcomers)
            return group if to in group.newcomers else group._replace(ranks=old)

        return _regrouped(super()._form_if_complete(now), change)


class SharesOutTwice(Head):
    """The others go on with the shares of the group before, in which a part of the newcomer was theirs."""

    def _form_if_complete(self, now: float) -> list[Output]:
        def change(to: int, group: Regroup) -> Regroup:
            return group if to in group.newcomers else group._replace(since=group.since + 1)

        return _regrouped(super()._form_if_complete(now), change)


class GivesTheStateAlone(Head):
    """A newcomer has the state of the others, but not the sum, which another rank may ask of it."""

    def _form_if_complete(self, now: float) -> list[Output]:
        def change(to: int, group: Regroup) -> Regroup:
            return group._replace(takers=tuple(rank for rank in group.takers if rank not in group.newcomers))

        return _regrouped(super()._form_if_complete(now), change)


class CountsOnNewcomers(Head):
    """A newcomer counts as a member that holds what it says."""

    def report(self, now: float, rank: int, message: Report) -> list[Output]:
        return super().report(now, rank, message._replace(new=False))


class StartsEarly(GroupMember):
    """A newcomer begins with the update whose sum is in the state that it has taken."""

    def leave(self, number: int | None = None) -> Report | None:
        return super().leave(number - 1 if self.new and number is not None else number)


class IsNewForever(GroupMember):
    """A newcomer asks for a state again, though it has begun an update."""

    def leave(self, number: int | None = None) -> Report | None:
        new = self.new
        super().leave(number)
        self.new = new
        return self._report() if self.aborted and not self.dismissed else None


@pytest.mark.parametrize(
    ("head", "deaths", "updates", "ranks"),
    [
        (TellsTheNewcomerAlone, 1, 1, 2),
        (SharesOutTwice, 1, 1, 2),
        (CountsOnNewcomers, 1, 2, 2),
        pytest.param(GivesTheStateAlone, 1, 1, 3, marks=pytest.mark.soak),
    ],
)
def test_the_exploration_finds_faults_of_a_head_that_lets_ranks_join(
    head: type[Head], deaths: int, updates: int, ranks: int
) -> None:
    with pytest.raises(AssertionError) as found:
        explore(deaths, updates=updates, ranks=ranks, comes=1, head=head, deep=True)
    assert f"the head welcomes {ranks - 1}" in str(found.value)


@pytest.mark.parametrize(("member", "deaths", "ranks", "comes"), [(StartsEarly, 1, 2, 1), (IsNewForever, 0, 3, 2)])
def test_the_exploration_finds_faults_of_a_newcomer(
    member: type[GroupMember], deaths: int, ranks: int, comes: int
) -> None:
    with pytest.raises(AssertionError) as found:
        explore(deaths, updates=1, ranks=ranks, comes=comes, member=member, deep=True)
    assert f"the head welcomes {ranks - 1}" in str(found.value)


def test_a_newcomer_takes_the_state_and_the_sum_that_another_rank_lacks() -> None:
    head = Head({0, 1}, 2.5)
    for rank in range(2):
        head.report(0.0, rank, GroupMember().ready())
    head.join(2)
    assert [each.message for each in head.report(1.0, 2, GroupMember(new=True).ready())] == [AbortFlag(1)] * 3  # type: ignore[union-attr]
    for rank, report in enumerate([Report(1, 17, 18), Report(1, 16, 17), Report(1, -1, 0, new=True)]):
        outputs = head.report(1.0, rank, report)
    group = Regroup(2, (0, 1, 2), 18, 18, giver=0, takers=(1, 2), held=(17, 16, -1), newcomers=(2,))
    assert [each.message for each in outputs if isinstance(each, SendToMember)] == [group] * 3


def test_the_run_ends_where_only_newcomers_are_left() -> None:
    head = Head({0}, 2.5)
    head.report(0.0, 0, GroupMember().ready())
    head.join(1)
    head.report(1.0, 1, GroupMember(new=True).ready())
    head.report(1.0, 1, Report(1, -1, 0, new=True))
    assert [each.rank for each in head.gone(1.0, 0, "has died") if isinstance(each, Excluded)] == [0, 1]
    assert not head.alive


@pytest.mark.parametrize("head", [TakesOldReports, GivesNothing, GoesOnWithoutAll, SharesNothingOut, BelievesAnybody])
def test_the_exploration_finds_faults_of_the_head(head: type[Head]) -> None:
    with pytest.raises(AssertionError) as found:
        explore(1, 0, int(head is TakesOldReports), 2, head=head, deep=True)
    assert "the head hears" in str(found.value)  # a story


def test_the_exploration_finds_a_head_that_counts_on_from_zero() -> None:
    with pytest.raises(AssertionError) as found:
        explore(0, ranks=2, updates=1, head=CountsOnFromZero, heads=2, deep=True)
    assert "the head is replaced" in str(found.value)


@pytest.mark.parametrize("member", [ReportsInside, EntersOldGroups, HearsOldCallOffs])
def test_the_exploration_finds_faults_of_a_member(member: type[GroupMember]) -> None:
    with pytest.raises(AssertionError) as found:
        explore(1, 0, int(member is HearsOldCallOffs), 2, member=member, deep=True)
    assert "the head hears" in str(found.value)


@pytest.mark.parametrize(("silent", "seconds"), [(False, 2.5), (True, 2.5 / 8)])
def test_a_rank_that_was_silent_already_is_waited_for_once_more_and_shortly(silent: bool, seconds: float) -> None:
    head = Head({0, 1, 2}, 2.5)
    for rank in range(3):
        head.report(0.0, rank, GroupMember().ready())
    head.accuse(10.0, 0, Accuse(1, 1, silent))
    for rank in (0, 2):
        head.report(10.0, rank, Report(1, 0, 1))
    assert not head.tick(10.0 + seconds - 0.01)
    assert [each.rank for each in head.tick(10.0 + seconds) if isinstance(each, Excluded)] == [1]
