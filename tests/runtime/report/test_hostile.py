"""The folder of a run from another person: no text of it runs a script, moves a terminal or is written elsewhere."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.compression.page import page_of
from paceline.compression.result import Bounds, Compression
from paceline.errors import PacelineError, RunFolderError
from paceline.interfaces.api.planning.planner_page import choice_page, validation_page
from paceline.planning.explain.drawing import draw_page
from paceline.planning.planner.choosing import Layer, choose
from paceline.planning.planner.methods import predict
from paceline.planning.planner.validating import check, validation
from paceline.planning.tuner.space import Float, Int, Space
from paceline.planning.tuner.trial import Trial
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.virtual import World, simulate
from paceline.runtime.report import FORMATS, write
from paceline.runtime.report.page import page
from paceline.runtime.report.reading import open_all
from paceline.runtime.runs.comparison import ComparisonRecord, Row
from paceline.runtime.runs.live import EventKind, RunEvent
from paceline.runtime.runs.schema import to_dict, write_json
from paceline.runtime.runs.trace import Kind, Trace, TraceWriter
from paceline.runtime.runs.trace import Row as TraceRow
from paceline.runtime.runs.verdict import decided
from tests.hostile_texts import NASTY, SCRIPT, harmless, leaves, spoiled
from tests.interfaces.api.test_compress import point
from tests.interfaces.api.test_planner_page import FACTS
from tests.planning.planner.cards import costs
from tests.planning.tuner.test_page import written


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run within a comparison, with an event and a hang."""
    folder = tmp_path_factory.mktemp("runs")
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    job = pl.Job(
        lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)),
        (x, x.argmax(1) % 3),
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=20,
        test=(x, x.argmax(1) % 3),
    )
    made = pl.train(job, "downpour:workers=2", engine="virtual", folder=folder)
    assert made.path is not None
    row = Row(
        "downpour:workers=2",
        2,
        1.0,
        (1.0, 1.0),
        1.0,
        1.0,
        test_accuracy=0.5,
        run=made.path.name,
        speedup_interval=(1.0, 1.0),
    )
    compared = ComparisonRecord("job", "1 thread", 100.0, 3, (row,), notes=("a note",), command="train x")
    write_json(folder / "comparison.json", to_dict(decided(compared)))
    (made.path / "hang.txt").write_text(NASTY.replace("\udcff", ""))
    return made.path


@pytest.mark.parametrize("name", ["run.json", "comparison.json"])
def test_no_text_of_a_run_gets_out_of_its_place(name: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run.parent, tmp_path / "all")
    folder = tmp_path / "all" / run.name
    file = folder / name if name == "run.json" else folder.parent / name
    record = json.loads(file.read_text())
    assert len(leaves(record)) > 8
    pages: list[str] = []

    def refused(record: Any) -> bool:
        file.write_text(json.dumps(record))
        try:
            pages.append(page(open_all([folder])))
        except PacelineError:  # where only some words are allowed
            return True
        return False

    for _ in spoiled(record, refused):
        harmless(pages[-1])
    assert any("&lt;script&gt;alert(1)" in each for each in pages)


def test_events_and_shards_of_a_run_are_texts(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    events = [RunEvent(kind, 1.0, why=NASTY) for kind in EventKind]
    (tmp_path / "run" / "events.jsonl").write_text("".join(json.dumps(to_dict(each)) + "\n" for each in events))
    harmless(page(open_all([tmp_path / "run"])))
    harmless(page(open_all([run, tmp_path / "run"])))


def test_pages_that_are_no_reports() -> None:
    ring, one = make("ring", workers=2), make("sequential")
    found = choose([predict(plan, costs(), FACTS) for plan in (one, ring)], "time", 8 << 30)
    layers, spoiled = (Layer(NASTY, 1e6, 1e5, 1e-3),), replace(predict(ring, costs(), FACTS), ruled_out=NASTY)
    found = replace(
        found, sentences=(NASTY, NASTY), command=NASTY, layers=layers, roofs=(50.0, 10.0), ruled_out=(spoiled,)
    )
    harmless(choice_page(NASTY, found))
    trace = simulate(ring, ring.agenda(400, 100), World(compute=1e-4, jitter=0.0), 40_000)
    checked = validation(NASTY, [check(predict(ring, costs(), FACTS), [0.001, 0.0011])])
    harmless(validation_page(checked, [(NASTY, trace, trace)]))
    points = (point(0.9, 900, 9.0), replace(point(0.898, 100, 9.0), precision=NASTY, kernel=NASTY))
    harmless(page_of(Compression(NASTY, "here", Bounds(), points, points[1], 0.9)))
    harmless(draw_page(Plan.parse("gpipe:workers=2"), [NASTY.replace("\udcff", "")]), scripts=0)


def test_settings_and_reasons_of_trials_are_texts() -> None:
    def objective(trial: Trial) -> float:
        if trial["n"] == 2:
            raise ValueError(NASTY)
        return float(trial["lr"])

    space = Space({"lr": Float(1e-4, 1.0, log=True), "n": Int(1, 3), "kind": [NASTY, "b"], SCRIPT: Float(0, 1)})
    made = written(space, "random", objective, 8)
    harmless(made)
    assert "&lt;script&gt;alert(1)" in made


def test_a_script_that_is_not_the_pages_own_is_forbidden(run: Path) -> None:
    """Whatever escaping may miss: the policy names the digest of the only script."""
    text = page(open_all([run]))
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in text
    assert "default-src 'none'; base-uri 'none'; form-action 'none'" in text


def test_no_cell_is_a_formula_and_no_name_leaves_its_folder(run: Path, tmp_path: Path) -> None:
    for name in ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1", "../../x", "a\udcff", "x" * 5000):
        folder = tmp_path / "run"
        shutil.copytree(run, folder)
        record = json.loads((folder / "run.json").read_text())
        record["job"]["name"], record["history"][0]["metrics"] = name, {name: 0.5}
        (folder / "run.json").write_text(json.dumps(record))
        for form in FORMATS:
            files = write([folder], form=form)
            assert all(file.is_relative_to(folder) for file in files)
            if form == "csv":
                cells = [
                    cell for file in files for row in csv.reader(io.StringIO(file.read_text(), "")) for cell in row
                ]
                assert not any(cell.startswith(("=", "+", "@", "\t", "-1")) for cell in cells)
        shutil.rmtree(folder)


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_is_not_written_through_a_link(form: str, run: Path, tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine", tmp_path / "run"
    mine.write_text("mine")
    shutil.copytree(run, folder)
    (output,) = {FORMATS[form][1]}
    for link in (folder / output, folder / "report-curves.csv") if form == "csv" else (folder / output,):
        link.symlink_to(mine)
        with pytest.raises(RunFolderError, match="is a link"):
            write([folder], form=form)
        link.unlink()
    assert mine.read_text() == "mine"


def test_a_hang_that_is_a_link_is_not_shown(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "secret").write_text("a key of mine")
    (tmp_path / "run" / "hang.txt").unlink()
    (tmp_path / "run" / "hang.txt").symlink_to(tmp_path / "secret")
    assert "a key of mine" not in page(open_all([tmp_path / "run"]))


def test_a_damaged_trace_is_named_and_fills_no_memory(run: Path, tmp_path: Path) -> None:
    """Numbers of workers, times and kinds that no run writes; each had memory reserved for it, or was waited for."""
    shutil.copytree(run, tmp_path / "run")
    file, chance = tmp_path / "run" / "trace.arrow", random.Random(3)
    whole, refused = file.read_bytes(), 0
    for number in range(24):
        damaged = bytearray(whole)
        for _ in range(6):
            damaged[chance.randrange(len(whole))] = chance.randrange(256)
        file.write_bytes(damaged[: len(whole) - 40 * (number % 3)])
        harmless(made := page(open_all([tmp_path / "run"])))
        refused += "Its trace cannot be read" in made
    assert refused > 2


@pytest.mark.parametrize(
    "field", [{"kind": 99}, {"worker": 1 << 40}, {"worker": -2}, {"shard": 1 << 50}, {"end": -1}, {"samples": -5}]
)
def test_rows_that_no_run_writes_are_refused(field: dict[str, int], tmp_path: Path) -> None:
    row = TraceRow(Kind.COMPUTE, 0, 0, start=1, end=2)
    for name, each in (("right", row), ("wrong", row._replace(**field))):
        writer = TraceWriter(tmp_path / name, 0)
        writer.append(Trace.of([each]).rows)
        writer.close()
    assert len(Trace.open(tmp_path / "right")) == 1
    with pytest.raises(ValueError, match="is none that a run writes"):
        Trace.open(tmp_path / "wrong")
