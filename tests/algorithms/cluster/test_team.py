"""Every interleaving of a small team: what a leader sums is of its own turn, whoever dies, and its wait ends.

The parameters are numbered as they are written. The sums of a helper stand for what they were made of: the parameters
and the task. What is being written is TORN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

from paceline.algorithms.cluster.team import Answer, Team, Turn

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State

TORN = (-1, -1)
TASKS = 2


class Helper(NamedTuple):
    """What a helper is at."""

    life: int = 1  # 0: it has died, and the agent has not noticed
    turn: Turn | None = None
    #: What it has read the parameters of; None before.
    read: int | None = None
    writing: bool = False


class World(NamedTuple):
    state: tuple[int, ...]
    sums: tuple[tuple[int, int], ...]
    helpers: tuple[Helper, ...]
    parameters: int = 0
    #: The leader's turn, whom it waits for with their lives, and the tasks that are pushed.
    turn: Turn | None = None
    asked: tuple[tuple[int, int], ...] = ()
    pushed: int = 0
    kills: int = 2


class Wrong(Exception):
    pass


def moves(team: Team, world: World) -> Iterator[World]:
    yield from _leader(team, world)
    for number, helper in enumerate(world.helpers, 1):
        yield from _helper(team, world, number, helper)
    if world.kills and world.turn is not None:  # its batch is leased again, to the next leader
        yield world._replace(turn=None, asked=(), kills=world.kills - 1)


def _leader(team: Team, world: World) -> Iterator[World]:
    state = list(world.state)
    if world.turn is None:
        if world.pushed < TASKS:
            turn, asked = team.ask(state, world.pushed)
            # Written before it asks; helpers that are still at an earlier turn may read it at any moment.
            yield world._replace(
                state=tuple(state), parameters=world.parameters + 1, turn=turn, asked=tuple(asked.items())
            )
        return
    if not world.asked:
        yield world._replace(turn=None, pushed=world.pushed + 1)
        return
    (helper, life), *rest = world.asked
    answer = team.answer(state, helper, world.turn, life)
    if answer is Answer.DONE and world.sums[helper - 1] != (world.parameters, world.turn.task):
        raise Wrong(f"turn {world.turn} takes {world.sums[helper - 1]} of helper {helper}")
    # Whether it is done, gone, or late: the leader goes on, with its own sum of the chunk if there is no other.
    yield world._replace(asked=tuple(rest))


def _helper(team: Team, world: World, number: int, helper: Helper) -> Iterator[World]:
    def became(new: Helper, **changes: object) -> World:
        helpers = (*world.helpers[: number - 1], new, *world.helpers[number:])
        return world._replace(helpers=helpers, **changes)  # type: ignore[arg-type]

    def wrote(what: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        return (*world.sums[: number - 1], what, *world.sums[number:])

    state = list(world.state)
    if not helper.life:  # the agent notices, and starts another
        lives = max(world.state[2::3]) + 1
        team.ended(state, number)
        gone = tuple(state)
        team.enter(state, number, lives)
        yield world._replace(state=gone)
        yield became(Helper(lives), state=tuple(state))
        return
    if helper.turn is None:
        if (due := team.due(state, number)) is not None:
            yield became(helper._replace(turn=due))
    elif helper.read is None:
        yield became(helper._replace(read=world.parameters))
    elif not helper.writing:
        yield became(helper._replace(writing=True), sums=wrote(TORN))
    else:
        team.done(state, number, helper.turn)
        yield became(Helper(helper.life), sums=wrote((helper.read, helper.turn.task)), state=tuple(state))
    if world.kills:
        yield became(Helper(0), kills=world.kills - 1)


def walk(team: Team) -> int:
    """Visit every world; raise if a sum is of another turn, or if a world has no way to the end."""
    state = [0] * team.ints
    for helper in range(1, team.processes):
        team.enter(state, helper, 1)
    helpers = (Helper(),) * (team.processes - 1)
    first = World(tuple(state), (TORN,) * len(helpers), helpers)
    seen, queue, into = {first}, deque([first]), dict[World, list[World]]()
    while queue:
        world = queue.popleft()
        for then in moves(team, world):
            into.setdefault(then, []).append(world)
            if then not in seen:
                seen.add(then)
                queue.append(then)
    ends = [world for world in seen if world.pushed == TASKS]
    reached, queue = set(ends), deque(ends)
    while queue:
        for before in into.get(queue.popleft(), ()):
            if before not in reached:
                reached.add(before)
                queue.append(before)
    assert reached == seen, "a team waits for ever"
    return len(seen)


@pytest.mark.parametrize("processes", [2, 3])
def test_a_joint_sum_is_of_its_own_turn_whoever_dies(processes: int) -> None:
    assert walk(Team(processes, processes)) > 300


def test_a_leader_that_reuses_turns_is_found() -> None:
    class Forgets(Team):  # a leader that begins at turn 1, as if there had been none before it
        def ask(self, state: State, task: int) -> tuple[Turn, dict[int, int]]:
            state[0] = state[1] = 0
            return super().ask(state, 0)

    with pytest.raises(Wrong, match="takes"):
        walk(Forgets(2, 2))


def test_a_helper_that_says_done_for_the_one_before_it_is_found() -> None:
    class Hides(Team):
        def enter(self, state: State, helper: int, life: int) -> None:
            super().enter(state, helper, life)
            state[1] = state[0]

    with pytest.raises(Wrong, match="takes"):
        walk(Hides(2, 2))


def test_a_helper_that_was_replaced_is_not_waited_for() -> None:
    team, state = Team(2, 2), [0] * 3
    team.enter(state, 1, 1)
    turn, asked = team.ask(state, 5)
    assert (turn, asked, team.due(state, 1)) == (Turn(1, 5), {1: 1}, turn)
    team.ended(state, 1)
    assert team.answer(state, 1, turn, 1) is Answer.GONE
    team.enter(state, 1, 2)
    assert team.answer(state, 1, turn, 1) is Answer.GONE
    assert team.due(state, 1) == turn


def test_a_helper_that_is_late_is_not_asked_again_before_it_has_finished() -> None:
    team, state = Team(2, 2), [0] * 3
    team.enter(state, 1, 1)
    turn, _ = team.ask(state, 0)
    later, asked = team.ask(state, 1)
    assert asked == {}
    team.done(state, 1, turn)
    assert team.answer(state, 1, later, 1) is Answer.NOT_YET
    assert team.ask(state, 1)[1] == {1: 1}


def test_chunks_are_shared_out_once_for_all() -> None:
    assert [Team(2, 4).process_of(chunk) for chunk in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [Team(3, 3).process_of(chunk) for chunk in range(3)] == [0, 1, 2]
