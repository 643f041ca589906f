"""Choosing, validating and simulating on a small job, from a card without noise: nothing here depends on speed."""

from __future__ import annotations

import dataclasses
import json
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.errors import PlanError, UsageError
from paceline.interfaces.api.planning.choose import choose
from paceline.interfaces.api.planning.validate import validate
from paceline.interfaces.api.simulate import simulate
from paceline.planning.planner import validating
from paceline.training.jobs.job import Job
from tests.planning.planner.cards import CARD

CLUSTER = """
[[nodes]]
count = 4
gflops = 50
gigabytes = 10
price = 0.1
"""


def _job(width: int = 64) -> Job:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 4))
    data = torch.randn(600, 32), torch.randint(4, (600,))
    return Job(
        model,
        data,
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=60,
        test=data,
        name="small",
        device="cpu",
    )


def test_a_choice_from_a_card_alone() -> None:
    found = choose(_job(), level="calibrated", card=CARD, learning="any", workers=2)
    assert found.ranking[0].seconds <= found.ranking[1].seconds * 1.05
    assert {each.plan.name for each in found.ranking} >= {"sequential", "ring", "ddp", "downpour", "gpipe"}
    assert found.command == f'paceline.train(job, "{found.plan}")'
    assert json.loads(json.dumps(found.as_dict()))["plan"] == found.plan
    assert found.updates_per_epoch == 10


def test_without_a_card_usual_figures_find_the_plans_that_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        "paceline.interfaces.api.planning.choose.measured_card", lambda **_: pytest.fail("it calibrated")
    )
    found = choose(_job().with_(compute="autograd"), workers=2)
    measured = {each.plan.name for each in found.ranking if each.level == "measured"}
    assert "sequential" in measured
    assert any(each.plan.workers == 2 for each in found.ranking if each.level == "measured")
    assert not (tmp_path / "paceline" / "card.json").exists()


def test_a_card_may_lie_in_a_file(tmp_path: Path) -> None:
    CARD.write(tmp_path / "card.json")
    first = choose(_job(), level="calibrated", card=tmp_path / "card.json", workers=1)
    assert first.best.seconds == choose(_job(), level="calibrated", card=CARD, workers=1).best.seconds


def test_a_slower_network_moves_the_choice_to_one_process() -> None:
    slow = tuple(dataclasses.replace(each, latency=1.0) for each in CARD.exchanges)
    found = choose(_job(1024), level="calibrated", card=dataclasses.replace(CARD, exchanges=slow), workers=2)
    assert found.best.plan.workers == 1
    assert any("exchanging" in sentence for sentence in found.sentences)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"goal": "tim"}, "did you mean 'time'"), ({"level": "guess"}, "level"), ({"workers": 0}, "at least 1")],
)
def test_wrong_words_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose(_job(), card=CARD, **given)  # type: ignore[arg-type]


def test_a_cluster_is_priced_and_simulated(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    found = choose(_job(), tmp_path / "cluster.toml", "cost")
    assert len(found.dollars) == len(found.ranking)
    assert list(found.dollars) == sorted(found.dollars)
    assert {each.plan.workers for each in found.ranking} == {1, 2, 3, 4}
    refused = {each.plan.name: each for each in found.ruled_out}
    assert refused["gpipe"].ruled_out == "its stages exchange activations in the memory of one machine"
    assert refused["tensor"].seconds > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no nodes"),
        ("[[nodes]]\ncuont = 2", "did you mean 'count'"),
        ("[[nodes]]\ncount = 0\ngflops = 1\ngigabytes = 1", "count=0"),
        ("[[nodes]]\ngflops = -1\ngigabytes = 1", "above 0"),
        ("[[nodes]]\ngflops = 1\ngigabytes = 1\nsku = 'c5.larg'", "did you mean 'c5.large'"),
        ("[[nodes]]\ngflops = 1\ngigabytes = 1\n[links]\nbandwidth = -5", "above 0"),
        ("[[nodes]]\ngflops = 1\ngigabytes = 1\n[links]\nlatncy = 1", "did you mean 'latency'"),
        ("[[nodes]]\ngflops = 1\ngigabytes = 1\n[failures]\nspeeds = ['lognorml', 0.1]", "did you mean 'lognormal'"),
        ("[[nodes]]\ncount = 2", "give card="),
        ("nodes = [", "not TOML"),
    ],
)
def test_what_is_wrong_in_a_cluster_file_is_said(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(text)
    with pytest.raises(UsageError, match=words):
        choose(_job(), tmp_path / "cluster.toml")


def test_a_model_that_fits_nowhere_is_said(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER + 'memory = "1 MiB"\n')
    with pytest.raises(UsageError, match="no plan fits"):
        choose(_job(4096), tmp_path / "cluster.toml")


def test_hundreds_of_workers_are_simulated_with_and_without_numbers(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER.replace("count = 4", "count = 300"))
    timed = simulate(_job(), "downpour", 300, tmp_path / "cluster.toml", max_updates=3000)
    assert timed.staleness[0] == pytest.approx(299, rel=0.2)
    assert timed.dollars is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learned = simulate(_job(), "downpour", 4, tmp_path / "cluster.toml", max_updates=40, arithmetic=True)
    assert learned.metrics is not None
    assert 0 <= learned.metrics["test_accuracy"] <= 1
    assert learned.updates == 40


def test_more_workers_than_nodes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    with pytest.raises(UsageError, match="5 workers on 4 nodes"):
        simulate(_job(), "downpour", 5, tmp_path / "cluster.toml")
    with pytest.raises(UsageError, match="how it divides the model"):
        simulate(_job(), "tensor", 2, tmp_path / "cluster.toml")
    with pytest.raises(UsageError, match="real processes only"):
        simulate(_job(), "ddp", 2, tmp_path / "cluster.toml")


def test_a_validation_measures_what_was_predicted(tmp_path: Path) -> None:
    table = tmp_path / "validations.jsonl"
    found = validate(
        _job(), ["sequential", "ring:workers=2"], level="calibrated", rounds=2, seconds=0.05, card=CARD, table=table
    )
    assert [each.plan for each in found.checks] == ["sequential", "ring:workers=2"]
    assert found.checks[1].bytes_predicted == found.checks[1].bytes_measured
    assert len(validating.read(table)) == 2
    with pytest.raises(UsageError, match="at least 2"):
        validate(_job(), rounds=1, card=CARD)


def test_a_model_that_fits_nowhere_is_refused_before_it_is_made() -> None:
    giant = _job().with_(model=lambda: nn.Embedding(10**11, 64))
    with pytest.raises(UsageError, match="no plan fits"):
        choose(giant, level="calibrated", card=CARD)


def test_prices_without_machines_are_refused() -> None:
    with pytest.raises(UsageError, match="cluster="):
        choose(_job(), level="calibrated", card=CARD, prices="prices.csv")


def test_a_plan_that_does_not_exist_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(PlanError, match="did you mean 'ring'"):
        validate(_job(), ["rinng"], card=CARD)
