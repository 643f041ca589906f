"""run.json: what is written is read back, old files open, newer ones are refused by name."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline import moved
from paceline.errors import RunFolderError
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.report.reading import open_all
from paceline.runtime.runs import trace
from paceline.runtime.runs.comparison import ComparisonRecord, Row, StepTimes, read_comparison
from paceline.runtime.runs.live import LiveRecord, Phase, ProcessRecord, WorkerLive, WorkerStatus
from paceline.runtime.runs.record import (
    AttemptRecord,
    CheckpointInterval,
    Evaluation,
    FailureRecord,
    JobRecord,
    LayerRecord,
    RunFolder,
    RunRecord,
    Status,
    Summary,
    read_record,
)
from paceline.runtime.runs.schema import INLINE, SCHEMA_VERSION, from_dict

FULL = RunRecord(
    plan="downpour:workers=2",
    status=Status.DONE,
    workers=2,
    checkpoint_every=CheckpointInterval(0, 30.0),
    lives=(AttemptRecord("downpour:workers=2", 0), AttemptRecord("downpour:workers=2", 40)),
    job=JobRecord(name="job", seed=0, gradient_clip_norm=None, shuffle=True),
    model=(LayerRecord("0", "Linear", 12, {"weight": (3, 4)}, (10, 3), ()), LayerRecord("1", "Tanh", after=(0,))),
    history=(Evaluation(40, 1.5, {"test_loss": 0.25}),),
    summary=Summary(
        "downpour:workers=2",
        "local",
        2,
        80,
        800,
        2.0,
        400.0,
        stragglers={1: 0.5},
        deaths=(1,),
        metrics={"test_loss": 0.25},
        run="runs/x",
    ),
    failure=FailureRecord(1, "died (SIGKILL)", 3, samples=(4, 5), victims=(0,)),
)


@pytest.mark.parametrize("record", [RunRecord(plan="ring"), FULL], ids=["empty", "full"])
def test_what_is_written_is_read_back(record: RunRecord, tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write(record)
    assert read_record(tmp_path) == record


def test_metrics_lie_beside_the_other_figures_of_the_file() -> None:
    told = FULL.as_dict()
    assert told["schema_version"] == SCHEMA_VERSION
    assert told["history"] == [{"updates": 40, "seconds": 1.5, "test_loss": 0.25}]
    assert told["summary"]["test_loss"] == 0.25
    assert told["checkpoint_every"] == [0, 30.0]


def test_a_loss_of_nan_is_null_in_the_file_and_nan_again(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write(RunRecord(plan="ring", history=(Evaluation(1, 1.0, {"test_loss": math.nan}),)))
    assert json.loads((tmp_path / "run.json").read_text())["history"][0]["test_loss"] is None
    assert math.isnan(read_record(tmp_path).history[0].metrics["test_loss"])


def edited(path: Path, **changes: Any) -> Path:
    """Change a run's run.json; None deletes the key."""
    record = json.loads((path / "run.json").read_text()) | changes
    (path / "run.json").write_text(json.dumps({key: value for key, value in record.items() if value is not None}))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = pl.train(JOBS["mlp"](), "downpour", 2, engine="virtual", folder=tmp_path_factory.mktemp("runs")).path
    assert path is not None
    return path


def test_a_folder_without_a_version_opens_and_replays(made: Path) -> None:
    """As the code before versions wrote it: some keys are missing, too."""
    edited(made, schema_version=None, table=None, error=None, failure=None)
    assert read_record(made).schema_version == 1
    assert pl.replay(made).matches
    assert open_all([made])[0].record.status == "done"


def test_a_job_of_an_older_version_is_read_by_its_new_names(made: Path, tmp_path: Path) -> None:
    """The pickle has the modules' old names; a name that is nowhere now is refused with advice."""
    old = tmp_path / "old"
    shutil.copytree(made, old)
    now = (made / "job.pickle").read_bytes()
    assert b"\x8c\x1apaceline.training.jobs.job" in now
    (old / "job.pickle").write_bytes(_with_module(now, b"paceline.job"))
    assert pl.replay(old).matches
    (old / "job.pickle").write_bytes(_with_module(now, b"paceline.nowhere"))
    with pytest.raises(RunFolderError, match=r"No module named 'paceline.nowhere'; give the job, as in"):
        pl.replay(old)


def _with_module(pickled: bytes, name: bytes) -> bytes:
    """Write another module where the pickle has that of `Job`, without the frame, whose length would be wrong."""
    assert pickled[2:3] == b"\x95"
    return pickled[:2] + pickled[11:].replace(
        b"\x8c\x1apaceline.training.jobs.job", b"\x8c" + bytes([len(name)]) + name
    )


@pytest.mark.parametrize("use", [pl.replay, lambda path: open_all([path]), lambda path: pl.train(resume=path)])
def test_a_newer_schema_is_refused_by_name(use: Any, made: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "run.json").write_text((made / "run.json").read_text())
    edited(newer, schema_version=SCHEMA_VERSION + 5)
    expected = (
        f"run.json has schema version {SCHEMA_VERSION + 5}; this paceline reads up to {SCHEMA_VERSION}; install a"
    )
    with pytest.raises(RunFolderError, match=expected):
        use(newer)


def test_a_newer_comparison_is_refused_by_name(made: Path) -> None:
    file = made.parent / "comparison.json"
    file.write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1}))
    try:
        with pytest.raises(RunFolderError, match=r"comparison.json has schema version"):
            read_comparison(made.parent)
    finally:
        file.unlink()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"workers": "two"}, "workers is 'two', which is not of type int"),
        ({"job": {"seed": True}}, "job.seed is True, which is not of type int"),
        ({"lives": [{"plan": "ring"}]}, "lives.updates is missing"),
        ({"status": "elsewhere"}, "'elsewhere' is not a valid Status"),
        ({"history": {}}, "history is {}, which is not of type list"),
    ],
)
def test_a_value_that_does_not_fit_is_named(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        from_dict(RunRecord, RunRecord().as_dict() | changes)


def test_a_key_that_is_not_known_is_ignored() -> None:
    assert from_dict(RunRecord, RunRecord().as_dict() | {"colour": "red"}) == RunRecord()


PAGE = (Path(__file__).parents[3] / "docs" / "internals" / "run-folder.md").read_text()
RECORDS = (
    RunRecord,
    JobRecord,
    LayerRecord,
    AttemptRecord,
    Summary,
    FailureRecord,
    LiveRecord,
    WorkerLive,
    ProcessRecord,
)


@pytest.mark.parametrize("kind", [*RECORDS, ComparisonRecord, Row, StepTimes], ids=lambda kind: kind.__name__)
def test_every_field_is_in_the_documentation(kind: Any) -> None:
    names = {each.name for each in fields(kind) if each.metadata != INLINE}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_every_column_and_word_of_a_status_is_in_the_documentation() -> None:
    words = {*trace.Row._fields, *Status, *Phase, *WorkerStatus} - {Status.UNKNOWN}
    assert {str(word) for word in words if f"`{word}`" not in PAGE} == set()
    assert all(f"{kind.value} {kind.name}" in PAGE for kind in trace.Kind)


def test_every_module_that_has_moved_is_there() -> None:
    assert all(importlib.util.find_spec(name) for name in (f"paceline.{now}" for now in moved.MOVED.values()))
