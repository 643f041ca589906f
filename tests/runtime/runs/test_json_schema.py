"""The published schemas accept what is written, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import paceline as pl
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.runs.comparison import ComparisonRecord, FailedPlan, Row
from paceline.runtime.runs.json_schema import FILES, json_schema
from paceline.runtime.runs.live import Heartbeat, Phase, ProcessRecord, WorkerLive, WorkerStatus
from paceline.runtime.runs.schema import to_dict, write_json


def check(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text())
    jsonschema.Draft202012Validator(json_schema(file.stem)).validate(document)
    return document


@pytest.mark.parametrize("name", FILES)
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema(name))


@pytest.mark.parametrize("plan", ["sequential", "downpour:workers=2", "gpipe:workers=2,micro_batches=2"])
def test_runs_are_as_their_schemas_say(plan: str, tmp_path: Path) -> None:
    run = pl.train(JOBS["mlp"](), plan, engine="virtual", max_updates=3, folder=tmp_path).path
    assert run is not None
    written = check(run / "run.json")
    for wrong in ({"workers": "2"}, {"status": "over"}, {"job": {}}, {"history": [{"updates": 1.5, "seconds": 0}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**written, **wrong}, json_schema("run"))
    with Heartbeat(run, 10) as heart:
        process = ProcessRecord(1, 2.0)
        heart.beat(Phase.TRAINING, 3, lambda: [WorkerLive(0, process, WorkerStatus.WAITING, 7)], now=True)
        check(run / "live.json")


def test_a_comparison_is_as_its_schema_says(tmp_path: Path) -> None:
    row = Row("ring:workers=2", 2, 10.0, (9.0, 11.0), float("nan"), 0.5, speedup_interval=(0.5, 2.0))
    record = ComparisonRecord("digits", "1 thread", 7.0, 5, (row,), failed=(FailedPlan("tree", 2, "no"),))
    write_json(tmp_path / "comparison.json", to_dict(record))
    check(tmp_path / "comparison.json")
