"""Rooms: no one ever writes where another looks, in every order of pushes and deaths."""

from __future__ import annotations

from paceline.algorithms.server.version_slots import VersionSlots


def test_the_next_version_is_made_where_nobody_looks() -> None:
    """Walk every state that three workers can reach."""
    workers = 3
    rooms = VersionSlots(workers)
    start = [0] * rooms.ints
    rooms.init(start)
    seen, queue = {tuple(start)}, [start]
    while queue:
        state = queue.pop()
        for worker in range(workers):
            then = list(state)
            newest, others = rooms.newest(state), {rooms.of(state, w) for w in range(workers) if w != worker}
            source, target = rooms.move(then, worker)
            assert source == newest
            assert target != newest, "the newest version must stay whole until the next one is"
            assert target not in others, "another worker computes there"
            assert rooms.newest(then) == rooms.of(then, worker) == target
            if tuple(then) not in seen:
                seen.add(tuple(then))
                queue.append(then)
    assert len(seen) > 10


def test_a_worker_keeps_its_room_while_it_alternates_with_another() -> None:
    rooms, state = VersionSlots(2), [0] * 4
    rooms.init(state)
    places = [rooms.move(state, worker)[1] for worker in (0, 1, 0, 1, 0, 1)]
    assert places == [0, 1, 0, 1, 0, 1]
