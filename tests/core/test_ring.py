from __future__ import annotations

import pytest
import torch

from paceline.core.meetings import Step
from paceline.core.meetings.ring import Ring
from paceline.core.proof import prove, table_seconds
from paceline.errors import PlanError


def test_the_table_of_three_workers() -> None:
    assert [list(Ring().steps(worker, 3)) for worker in range(3)] == [
        [Step(1, 0, 2, 2, True), Step(1, 2, 2, 1, True), Step(1, 1, 2, 0, False), Step(1, 0, 2, 2, False)],
        [Step(2, 1, 0, 0, True), Step(2, 0, 0, 2, True), Step(2, 2, 0, 1, False), Step(2, 1, 0, 0, False)],
        [Step(0, 2, 1, 1, True), Step(0, 1, 1, 0, True), Step(0, 0, 1, 2, False), Step(0, 2, 1, 1, False)],
    ]


@pytest.mark.parametrize("workers", range(1, 65))
def test_the_closed_form_is_the_tables_time_and_the_table_is_proved(workers: int) -> None:
    args = (workers, 1e6, 1e-5, 1e9)
    assert Ring().seconds(*args) == pytest.approx(table_seconds(Ring(), *args), rel=1e-12)
    assert prove(Ring(), workers) == 2 * (workers - 1)


class SwappedReceive(Ring):
    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        for number, step in enumerate(super().steps(worker, workers)):
            yield step._replace(receive=step.send) if (worker, number) == (1, 0) else step


class LostStep(Ring):
    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        steps = list(super().steps(worker, workers))
        yield from steps[:-1] if worker == 2 else steps


class NeverReduces(Ring):
    def steps(self, worker, workers):  # type: ignore[no-untyped-def]
        return (step._replace(reduce=False) for step in super().steps(worker, workers))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (SwappedReceive, "both wait for ever"),
        (LostStep, "missing for worker 2"),
        (NeverReduces, "instead of one contribution"),
    ],
)
def test_a_broken_table_is_refused_with_its_story(broken: type[Ring], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        prove(broken(), 4)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_executing_the_table_sums_and_leaves_the_same_bits_everywhere(workers: int) -> None:
    from paceline.compute.layout import lay_out
    from paceline.engines.arithmetic import execute

    layout = lay_out(torch.nn.Linear(7, 3), 1, ())
    flats = [torch.randn(103) for _ in range(workers)]
    total = torch.stack(flats).sum(0)
    execute(Ring(), flats, layout)
    assert torch.allclose(flats[0], total, atol=1e-5)
    assert all(torch.equal(flat, flats[0]) for flat in flats)
