"""The section about the data of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import paceline
from paceline.runtime.report import write
from paceline.training.data.shards import Shards, Stream
from paceline.training.preparation.ingest import ingest
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Csv

pytest.importorskip("duckdb")


def _trained(data: object, folder: Path) -> Path:
    job = paceline.Job(
        model=lambda: nn.Linear(1, 1),
        data=data,
        step=lambda model, batch: model(batch[0]).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
        batch_size=50,
    )
    run = paceline.train(job, "sequential", folder=folder)
    assert run.path is not None
    return run.path


def test_the_page_tells_of_every_row_of_the_data(tmp_path: Path) -> None:
    rows = [f"{n},{n % 50}".encode() for n in range(400)]
    rows[7] = b"7,<b>abc"
    (tmp_path / "rows.csv").write_bytes(b"id,v\n" + b"\n".join(rows))
    columns = {"v": ["v"]}
    prepare(Recipe(Csv(tmp_path / "rows.csv", {"id": "int", "v": "float"}), columns), tmp_path / "prepared")
    ingest(
        Recipe(Csv("-", {"id": "int", "v": "float"}, header=False), columns),
        tmp_path / "grown",
        {"sensor": rows},
        rows=100,
    )
    for data, told in (
        (Shards(tmp_path / "prepared"), ["rows.csv:9 7,&lt;b&gt;abc", "399 samples of", ">24.5</td>"]),
        (
            Stream(tmp_path / "grown"),
            ["sensor:8 7,&lt;b&gt;abc", "Population stability index", "<th scope=row>sensor</th>"],
        ),
    ):
        run = _trained(data, tmp_path / "runs" / type(data).__name__)
        (page,) = write([run])
        text = page.read_text()
        for part in (
            "400 rows = 399 kept + 1 rejected",
            "v is not a float",
            "This folder is not part of the run: its columns, sources and rejected rows are copied into this page.",
            '<th scope=row>worker 0</th><td data-label="samples">399</td><td data-label="batches">8</td>',
            *told,
        ):
            assert part in text, part
    (tmp_path / "grown" / "stream.jsonl").unlink()
    (page,) = write([run])
    assert "so it is no folder of shards" in page.read_text()
