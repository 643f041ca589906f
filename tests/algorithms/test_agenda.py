from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paceline.algorithms.agenda import Agenda

equal = st.builds(
    Agenda,
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    epochs=st.integers(1, 3),
    accumulate=st.integers(1, 3),
    parts=st.integers(1, 6),
)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)
agendas = st.one_of(equal, st.builds(lambda a, s: replace(a, parts=len(s), sizes=s), equal, sizes))


@given(agendas)
def test_every_sample_once_per_epoch(agenda: Agenda) -> None:
    places = [(c.epoch, p) for u in range(agenda.updates) for c in agenda.filled(u) for p in range(c.start, c.stop)]
    assert sorted(places) == [(e, p) for e in range(agenda.epochs) for p in range(agenda.samples)]


@given(agendas)
def test_weights_of_an_update_sum_to_one(agenda: Agenda) -> None:
    for update in range(agenda.updates):
        assert abs(sum(c.weight for c in agenda.chunks(update)) - 1) < 1e-12


@given(agendas)
def test_workers_share_out_all_chunks(agenda: Agenda) -> None:
    for update in range(agenda.updates):
        mine = [c for part in range(agenda.parts) for c in agenda.mine(update, part)]
        assert sorted(mine) == sorted(agenda.filled(update))


@given(agendas)
def test_samples_until_counts_what_the_chunks_hold(agenda: Agenda) -> None:
    seen = 0
    for update in range(agenda.updates):
        assert agenda.samples_until(update) == seen
        seen += sum(c.samples for c in agenda.chunks(update))
    assert agenda.samples_until(agenda.updates) == seen


def test_a_batch_that_does_not_divide() -> None:
    agenda = Agenda(samples=10, batch_size=7, epochs=1, parts=3)
    assert [(c.start, c.stop) for c in agenda.chunks(0)] == [(0, 2), (2, 4), (4, 7)]
    assert [(c.start, c.stop) for c in agenda.chunks(1)] == [(7, 8), (8, 9), (9, 10)]


def test_chunks_of_unequal_sizes() -> None:
    agenda = Agenda(samples=10, batch_size=7, epochs=1, parts=3, sizes=(4, 2, 1))
    assert [(c.start, c.stop) for c in agenda.chunks(0)] == [(0, 4), (4, 6), (6, 7)]
    assert [(c.start, c.stop) for c in agenda.chunks(1)] == [(7, 8), (8, 9), (9, 10)]
    assert [c.weight for c in agenda.chunks(0)] == [4 / 7, 2 / 7, 1 / 7]


@given(agendas, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 50)))
def test_parts_of_the_data_share_out_all_updates(agenda: Agenda, parts: int, limit: int | None) -> None:
    cut = replace(agenda, data_parts=parts, limit=limit)
    tasks = [(task, lease) for lease in range(cut.leases) for task in cut.tasks(lease)]
    assert all(cut.lease(task) == lease for task, lease in tasks)
    assert sum(cut.begins(task) for task, _ in tasks) == cut.leases
    if limit is None:
        assert sorted(task for task, _ in tasks) == list(range(agenda.updates))
        assert cut.samples_until(cut.updates) == agenda.samples * agenda.epochs
    for task, lease in tasks:
        low, high = cut.cuts[lease : lease + 2]
        assert all(low <= chunk.start and chunk.stop <= high for chunk in cut.task(task))
    held = sum(chunk.samples for task, _ in tasks for chunk in cut.task(task))
    assert (cut.updates, cut.samples_until(cut.updates)) == (len(tasks), held)


def test_a_long_training_on_parts_of_the_data_is_counted_without_a_walk() -> None:
    """The parent of such a run counted all its updates ten times a second, and did not come to anything else."""
    agenda = Agenda(samples=2005, batch_size=20, epochs=10**12, data_parts=8)
    assert agenda.updates == 101 * 10**12
    assert agenda.samples_until(agenda.updates) == 2005 * 10**12
