"""Where a step goes, and the sentence that says why workers do not pay."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.interfaces.api.comparing.overhead import Case, Step, step, verdict
from paceline.runtime.runs.trace import Kind, Row, Trace


def us(value: float) -> int:
    return int(value * 1000)


def test_a_step_adds_up_to_the_time_there_was() -> None:
    rows = []
    for worker in range(2):
        for number in range(10):
            begin = us(1000 * number)
            rows += [
                Row(Kind.COMPUTE, worker, number, start=begin, end=begin + us(600), samples=5, value=1.0),
                Row(Kind.COLLECTIVE, worker, number, start=begin + us(610), end=begin + us(810), waited=us(150)),
                Row(Kind.APPLY, worker, number, 0, number, number + 1, begin + us(850), begin + us(950)),
            ]
    found = step(Trace.of(rows), 2)
    assert found is not None
    assert (found.compute, found.update, found.communicate, found.wait) == (600, 100, 50, 150)
    assert math.isclose(found.whole * 20, 2 * (9 * 1000 + 950))
    assert step(Trace.of([]), 2) is None


def case(speed: float, ceiling: float, single: float = 1000.0, name: str = "1 thread") -> Case:
    return Case("ring", 2, speed, ceiling, single, name, 100, 100, Step(50_000, 0, 10_000, 70_000, 20_000))


def test_workers_that_pay_need_no_word() -> None:
    assert verdict(case(1500.0, 1900.0)) is None


def test_the_cost_of_communication_is_named_with_the_batch_that_would_pay() -> None:
    said = verdict(case(500.0, 2000.0))
    assert said is not None
    assert "0.50 times as fast as one process" in said
    assert "200,000 µs has 150,000 µs" in said
    assert "waiting for others (70,000 µs)" in said
    assert "batch_size of about 300 (here 100)" in said  # 0.15 s of cost, 0.5 ms saved a sample
    at_300 = 300 / (300 / 2000 + 0.150)
    assert math.isclose(at_300, 1000.0)


def test_where_the_ceiling_is_low_nothing_can_help() -> None:
    said = verdict(case(800.0, 1020.0, name="2 threads"))
    assert said is not None
    assert "keeps several cores busy on its own (2 threads)" in said
    assert "no plan gains more here" in said


def test_rounds_that_differ_settle_nothing() -> None:
    said = verdict(replace(case(900.0, 1000.0), doubt=0.3))
    assert said is not None
    assert "rounds differ by 30%" in said
    assert "not clear whether it is worth it" in said
    assert "no plan gains more here" in (
        verdict(replace(case(500.0, 600.0), doubt=0.3)) or ""
    )  # so far off, it is settled
