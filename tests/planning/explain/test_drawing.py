"""The output of `draw` and `prove` for every plan."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline.algorithms.collectives.rings import Ring
from paceline.algorithms.exploration import Explored
from paceline.algorithms.server.gates import Asynchronous, Backup
from paceline.errors import PlanError
from paceline.planning.explain import small_worlds
from paceline.planning.explain.drawing import draw
from paceline.planning.explain.proving import FAULTS, prove_cluster, prove_plan
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.server import ParameterServer
from paceline.plans.plan import RECIPES, Plan
from tests.algorithms.cluster.planted_faults import PLANTED
from tests.each import each

# --- `prove --machines` says what was walked, tells the story of a fault, and refuses plans without shard servers -----


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["downpour", "ssp:bound=1"])
def test_a_plan_with_shard_servers_is_proved(plan: str) -> None:
    found = prove_cluster(Plan.parse(plan), 3)
    assert found.holds, str(found)
    assert len([line for line in found.says if line.startswith("every interleaving")]) == len(FAULTS)
    assert found.figures["states"] > 100_000
    assert found.as_dict()["machines"] == 3


def test_a_fault_is_told_as_a_story() -> None:
    said: list[str] = []
    found = prove_cluster(Plan.parse("downpour"), 3, PLANTED["KnowsBatchesByWorker"].machines, said.append)
    assert found.holds is False
    assert said[0] == f"walking every interleaving in which {next(iter(FAULTS))} ..."
    assert "A small cluster goes wrong:" in found.says
    assert found.says[-1].endswith("applies batch 0 as version 2 of [0]")


@pytest.mark.parametrize("plan", ["ring", "backup", "hogwild", "easgd:mode=asynchronous"])
def test_a_plan_without_shard_servers_is_refused(plan: str) -> None:
    with pytest.raises(PlanError, match="use downpour, ssp or dc_asgd"):
        prove_cluster(Plan.parse(plan, 2), 3)


def test_a_proof_needs_several_machines() -> None:
    with pytest.raises(PlanError, match="from 2 to 64"):
        prove_cluster(Plan.parse("downpour"), 1000)


RING = """\
ring:workers=3: synchronous all-reduce around a ring

step   worker 0   worker 1   worker 2
   0   a>1 +c<2   b>2 +a<0   c>0 +b<1
   1   c>1 +B<2   a>2 +C<0   b>0 +A<1
   2   B>1 A<2    C>2 B<0    A>0 C<1
   3   A>1 C<2    B>2 A<0    C>0 B<1

  a>1    sends segment a to worker 1
  +a<1   takes segment a from worker 1 and adds it to its own
  a<1    takes segment a from worker 1 in place of its own
  A      a capital: the sum of all workers

4 steps; the worker that sends most sends 1.33 times the vector."""


def lines(plan: str) -> list[str]:
    return [line.split(" ", 2)[2].strip() for line in draw(Plan.parse(plan)).splitlines() if line.startswith("worker")]


def test_the_ring_is_the_table_of_its_docstring() -> None:
    assert draw(Plan.parse("ring", 3)) == RING


@each("workers", [1, 2, 4])
@each("name", RECIPES)
def test_every_plan_has_a_picture_that_fits_on_a_page(name: str, workers: int) -> None:
    if (name, workers) in (("hierarchical", 1), ("cannon", 2)):
        return
    picture = draw(Plan.parse(name, workers))
    assert picture.startswith(name)
    assert RECIPES[name].about in picture.splitlines()[0]
    assert max(map(len, picture.splitlines())) <= 150
    assert not any(line != line.rstrip() for line in picture.splitlines())


@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "hierarchical", "central"])
def test_a_table_ends_with_capitals_only(name: str) -> None:
    """The last part that each worker receives is a complete sum."""
    head, *rows = draw(Plan.parse(name, 6)).splitlines()[2:]
    for worker in range(6):
        place = head.index(f"worker {worker}")
        cells = [row[place:].split("   ")[0] for row in rows if row[:4].strip().isdigit()]
        taken = [word for cell in cells for word in cell.split() if "<" in word]
        assert taken[-1].partition("<")[0].strip("+").isupper(), f"worker {worker}"


def test_who_sits_out_is_explained_only_where_somebody_does() -> None:
    assert "sits this step out" in draw(Plan.parse("tree", 4))
    assert "sits this step out" not in draw(Plan.parse("ring", 4))


def test_under_a_bound_the_fast_worker_waits_and_without_one_it_does_not() -> None:
    fast, _, slow = lines("ssp:workers=3,bound=1")
    assert "..." in fast
    assert "." not in slow
    assert not any("." in line for line in lines("downpour:workers=3"))


def test_the_marks_are_the_versions_each_once() -> None:
    made = sorted(int(version) for line in lines("downpour:workers=3") for version in re.findall(r"\d+", line))
    assert made == list(range(1, 16))


def test_hogwild_has_no_versions_to_show() -> None:
    assert all("*" in line for line in lines("hogwild:workers=2"))
    assert "no versions" in draw(Plan.parse("hogwild"))


def test_local_steps_are_counted_between_meetings_and_long_rounds_are_shortened() -> None:
    for line in lines("local_sgd:workers=3,every=4"):
        assert [part.count("o") for part in line.split("M")] == [4, 4, 0]
    columns = {tuple(place for place, sign in enumerate(line) if sign == "M") for line in lines("local_sgd:workers=3")}
    assert len(columns) == 1, "all meet at one time"
    assert "every=10 instead of 50" in draw(Plan.parse("diloco", 3))


def test_a_crowd_does_not_fit_on_a_page() -> None:
    with pytest.raises(PlanError, match="draw at most 26"):
        draw(Plan.parse("ring", 27))


@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "hierarchical", "central", "gossip", "local_sgd"])
def test_tables_are_proved(name: str) -> None:
    found = prove_plan(Plan.parse(name, 6))
    assert found.holds, str(found)
    assert found.figures["steps"] > 0
    assert "no waiting circle" in str(found)


def test_a_gate_is_walked_through_every_interleaving() -> None:
    found = prove_plan(Plan.parse("ssp:bound=0", 2))
    assert found.holds, str(found)
    assert found.figures["states"] > 200
    assert found.figures["closed"] > 0
    assert "never closed" in str(prove_plan(Plan.parse("downpour", 2)))


def test_a_plan_with_backups_is_walked_under_the_gate_of_so_few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gate waits for as many gradients as the shard of the small world gathers, not for those of the plan."""
    worlds: list[tuple[int, object, int]] = []

    def explored(workers: int, batches: int, shards: int, deaths: int, gate: Any, gathers: int) -> Explored:
        worlds.append((workers, gate.gate, gathers))
        return Explored(1, 0, None)

    monkeypatch.setattr(small_worlds, "explore", explored)
    assert "every version is made of 2 gradients" in str(prove_plan(Plan.parse("backup:workers=4")))
    assert worlds == [(3, Backup(2), 2)]


@pytest.mark.parametrize("name", ["sequential", "ceiling", "ddp"])
def test_where_nothing_is_to_be_proved_it_says_so(name: str) -> None:
    found = prove_plan(Plan.parse(name))
    assert found.holds is None
    assert "nothing to prove" in str(found)


def test_a_gate_that_shuts_somebody_out_is_told_as_a_story() -> None:
    class Never(Asynchronous):
        def open(self, state, at, worker):  # type: ignore[no-untyped-def]
            return worker == 0

    found = prove_plan(Plan("made up", ParameterServer(Never()), workers=2))
    assert found.holds is False
    assert "wait for ever" in str(found)
    assert found.as_dict()["holds"] is False


def test_a_closed_form_that_is_not_the_tables_time_is_found() -> None:
    class Boasts(Ring):
        def seconds(self, workers, size, latency, bandwidth):  # type: ignore[no-untyped-def]
            return super().seconds(workers, size, latency, bandwidth) * 0.9

    found = prove_plan(Plan("made up", AllReduce(Boasts()), workers=3))
    assert found.holds is False
    assert "IS NOT the table's time" in str(found)


def test_rounds_that_are_not_the_tables_are_found() -> None:
    class Boasts(Ring):
        def rounds(self, workers):  # type: ignore[no-untyped-def]
            return (each._replace(sends=[0] * workers) for each in super().rounds(workers))

    found = prove_plan(Plan("made up", AllReduce(Boasts()), workers=3))
    assert found.holds is False
    assert "ARE NOT the table's" in str(found)
