"""Old names of arguments keep working with a warning, run folders of older versions stay readable."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from paceline.errors import PacelineDeprecationWarning, UsageError
from paceline.errors.renames import JOB_FIELDS, JOB_VALUES, RENAMED_ARGUMENTS, accepts_old_names, gathers_arguments
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.engines.cluster import NodeOptions
from paceline.runtime.runs.record import read_record
from paceline.training.jobs.job import Job

VALUES: dict[str, Any] = {
    "accumulate": 2,
    "clip_norm": 0.5,
    "loader_workers": 1,
    "schedule": lambda optimizer: None,
    "transform": lambda batch: batch,
    "weight": lambda batch: 1.0,
}


def test_the_values_cover_the_table() -> None:
    assert set(VALUES) == set(JOB_FIELDS)


@pytest.mark.parametrize("old", JOB_FIELDS)
def test_an_old_field_is_given_changed_and_read_with_a_warning_that_names_the_new_one(old: str) -> None:
    new, value = JOB_FIELDS[old], VALUES[old]
    with pytest.warns(PacelineDeprecationWarning, match=f"{old}= of Job\\(\\) is called {new}= now") as given:
        job = Job(nn.Linear(2, 1), (torch.zeros(4, 2),), loss=nn.MSELoss(), optimizer=torch.optim.SGD, **{old: value})
    assert given[0].filename == __file__
    assert getattr(job, new) is value
    with pytest.warns(PacelineDeprecationWarning, match=f"Job.{old} is called Job.{new} now") as read:
        assert getattr(job, old) is value
    assert read[0].filename == __file__
    with pytest.warns(PacelineDeprecationWarning, match=f"{new}="):
        assert getattr(JOBS["mlp"]().with_(**{old: value}), new) is value


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(TypeError, match="got clip_norm= and gradient_clip_norm=, which is its new name"):
        JOBS["mlp"]().with_(clip_norm=1.0, gradient_clip_norm=2.0)


@pytest.mark.parametrize(("old", "new"), JOB_VALUES["precision"].items())
def test_an_old_precision_is_taken(old: str, new: str) -> None:
    with pytest.warns(PacelineDeprecationWarning, match=f"'{new}' now"):
        job = Job(nn.Linear(2, 1), (torch.zeros(4, 2),), loss=nn.MSELoss(), optimizer=torch.optim.SGD, precision=old)
    assert job.precision == new


@pytest.mark.parametrize(("function", "old"), [(f, old) for f, table in RENAMED_ARGUMENTS.items() for old in table])
def test_an_old_argument_is_passed_on_by_its_new_name(function: str, old: str) -> None:
    new = RENAMED_ARGUMENTS[function][old]
    taken: dict[str, int] = {}

    @accepts_old_names(RENAMED_ARGUMENTS[function])
    def same(**given: int) -> None:
        taken.update(given)

    with pytest.warns(PacelineDeprecationWarning, match=f"{old}= of same\\(\\) is called {new}= now"):
        same(**{old: 3})
    assert taken == {new: 3}


def test_fields_of_an_object_are_taken_as_arguments_and_one_of_the_two_is_enough() -> None:
    @gathers_arguments("nodes", NodeOptions)
    def train(plan: str, nodes: NodeOptions | None = None) -> tuple[str, NodeOptions | None]:
        return plan, nodes

    with pytest.warns(
        PacelineDeprecationWarning, match=r"backups= of train\(\) is called nodes=NodeOptions\(backups=\)"
    ):
        assert train("ring", backups=2) == ("ring", NodeOptions(backups=2))  # type: ignore[call-arg]
    assert train("ring") == ("ring", None)
    with pytest.raises(TypeError, match="got keys= and nodes=, which has it"):
        train("ring", nodes=NodeOptions(), keys="keys")  # type: ignore[call-arg]


def test_tune_takes_its_old_arguments() -> None:
    with (
        pytest.warns(PacelineDeprecationWarning, match=r"address= of tune\(\) is called nodes=NodeOptions\(address=\)"),
        pytest.raises(UsageError, match="needs engine='ray'"),
    ):
        paceline.tune(objective=lambda trial: 0.0, space={"lr": [0.1]}, folder=None, address="auto")  # type: ignore[call-arg]


def test_train_takes_its_old_arguments() -> None:
    with pytest.warns(PacelineDeprecationWarning, match="updates= of train"):
        run = paceline.train(JOBS["mlp"](), engine="virtual", folder=None, updates=3)  # type: ignore[call-arg]
    assert run.summary()["updates"] == 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [("bacth_size", "did you mean 'batch_size'"), ("max_epochs", "that is epochs= here"), ("lr", "that is optimizer=")],
)
def test_an_unknown_field_is_refused_with_what_was_meant(wrong: str, says: str) -> None:
    with pytest.raises(TypeError, match=f"Job\\(\\) has no argument '{wrong}'; .*{says}"):
        Job(nn.Linear(2, 1), (torch.zeros(4, 2),), loss=nn.MSELoss(), optimizer=torch.optim.SGD, **{wrong: 1})


def test_a_run_folder_of_the_version_before_is_read_and_replayed(tmp_path: Path) -> None:
    made = JOBS["mlp"]().with_(accumulate_grad_batches=2, gradient_clip_norm=0.5)
    run = paceline.train(made, "downpour", workers=2, engine="virtual", folder=tmp_path, max_updates=6)
    assert run.path is not None
    _age(run.path)
    job = read_record(run.path).job
    assert (job.accumulate_grad_batches, job.gradient_clip_norm, job.precision) == (2, 0.5, "32-true")
    assert paceline.replay(run.path).matches


def _age(path: Path) -> None:
    """Rewrite a run's folder as version 2 wrote it."""
    before = {new: old for old, new in JOB_FIELDS.items()}
    record = json.loads((path / "run.json").read_text())
    record["schema_version"] = 2
    record["job"] = {before.get(name, name): value for name, value in record["job"].items()} | {"precision": "float32"}
    (path / "run.json").write_text(json.dumps(record))
    job = pickle.loads((path / "job.pickle").read_bytes())
    for new, old in before.items():
        vars(job)[old] = vars(job).pop(new)
    vars(job)["precision"] = "float32"
    (path / "job.pickle").write_bytes(pickle.dumps(_Reduced(vars(job))))


class _Reduced:
    """Pickles as a Job with this state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return object.__new__, (Job,), self.state
