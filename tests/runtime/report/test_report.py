"""The page and the files for other tools: pure parts on made-up traces, and whole pages of real run folders."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import statistics
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import paceline as pl
from paceline.errors import RunFolderError, UsageError
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.engines.record import outline
from paceline.runtime.report import charts, exports, formatting, write
from paceline.runtime.report.curves import AXES, envelope, evaluation_curve, histogram, loss_curve
from paceline.runtime.report.overview import speeds
from paceline.runtime.report.page import page
from paceline.runtime.report.reading import Lane, Reading, binned, lanes, lanes_of, merged, open_all, packed, run_stats
from paceline.runtime.report.sections import cluster_events
from paceline.runtime.runs.comparison import ComparisonRecord, FailedPlan, read_comparison
from paceline.runtime.runs.comparison import Row as ComparisonRow
from paceline.runtime.runs.live import EventKind, RunEvent
from paceline.runtime.runs.record import Evaluation, RunRecord, Summary
from paceline.runtime.runs.schema import to_dict, write_json
from paceline.runtime.runs.time_accounting import Time
from paceline.runtime.runs.trace import Kind, Row, Trace
from paceline.runtime.runs.verdict import decided, difference_of_accuracies, median_interval
from paceline.training.data.opening import open_source
from paceline.training.jobs.built_ins import built_in

NASTY = "<script>alert(1)</script>\"'&"


def job(**changes: Any) -> pl.Job:
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    data = x, x.argmax(1) % 3
    made = pl.Job(
        lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)),
        data,
        test=data,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        batch_size=20,
        epochs=3,
        name="small",
    )
    return made.with_(**changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, of the virtual engine: no processes, the same folders."""
    folder = tmp_path_factory.mktemp("runs")
    for plan in ("sequential", "ring:workers=3", "downpour:workers=3,shards=2"):
        pl.train(job(), plan, engine="virtual", folder=folder)
    return folder


# --- lanes ----------------------------------------------------------------------------------------------------------

ROWS = [
    Row(Kind.COMPUTE, 0, 0, start=100, end=200, samples=10, value=2.0),
    Row(Kind.COLLECTIVE, 0, 0, start=200, end=260, waited=20),
    Row(Kind.APPLY, 0, 0, 0, 0, 1, start=260, end=300),
    Row(Kind.COMPUTE, 0, 1, start=350, end=400, waited=30, samples=10, value=1.0),
]


def test_a_lane_covers_its_time_without_gaps() -> None:
    (lane,) = lanes(Trace.of(ROWS))
    assert lane.edges.tolist() == [100, 200, 220, 260, 300, 320, 350, 400]
    names = [Time(kind).name for kind in lane.kinds.tolist()]
    assert names == ["COMPUTE", "WAIT", "COMMUNICATE", "UPDATE", "OTHER", "WAIT", "COMPUTE"]
    assert (lane.seconds * 1e9).round().tolist() == [150, 40, 40, 50, 20, 0]


def test_bins_share_out_every_kind() -> None:
    (lane,) = lanes(Trace.of(ROWS))
    table = binned(lane, 400, 4)
    assert table.sum(1).tolist() == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert table[2, Time.COMMUNICATE] == pytest.approx(0.4)
    assert table[3].tolist() == pytest.approx([0.5, 0.0, 0.0, 0.3, 0.2, 0.0])


spans = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 4)), min_size=1, max_size=300)


def a_lane(parts: list[tuple[int, int]], first: int = 0) -> Lane:
    lengths, kinds = zip(*parts, strict=True)
    return Lane(0, first + np.concatenate(([0], np.cumsum(lengths))), np.array(kinds))


@given(spans, st.integers(5, 100))
def test_merging_keeps_every_kinds_time(parts: list[tuple[int, int]], most: int) -> None:
    lane = a_lane(parts)
    small = merged(lane, most)
    assert len(small.kinds) <= max(most, len(Time))
    assert small.edges[-1] - small.edges[0] == lane.edges[-1] - lane.edges[0]
    assert np.abs(small.seconds - lane.seconds).max() * 1e9 <= most + 1  # a nanosecond's rounding each


def unfolded(text: str) -> tuple[list[int], list[int]]:
    """What page.js makes of a packed lane."""
    raw, at = zlib.decompress(base64.b64decode(text)), 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (raw[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not raw[at - 1] & 0x80:
                return value

    count, first = number(), number()
    kinds = list(raw[at : at + count])
    at += count
    edges = [first]
    for _ in range(count):
        edges.append(edges[-1] + number())
    assert at == len(raw)
    return edges, kinds


@given(spans, st.integers(0, 10**9), st.sampled_from([1, 7, 1000]))
def test_a_packed_lane_unfolds_to_what_it_was(parts: list[tuple[int, int]], first: int, unit: int) -> None:
    lane = a_lane(parts, first)
    edges, kinds = unfolded(packed(lane, unit))
    assert abs(edges[-1] * unit - int(lane.edges[-1])) <= unit
    assert all(a != b for a, b in pairwise(kinds))
    if unit == 1:
        again = Lane(0, np.array(edges), np.array(kinds, np.int64))
        assert np.array_equal(again.seconds, lane.seconds)


# --- curves and charts ----------------------------------------------------------------------------------------------


SUMMARY = partial(Summary, "ring", "local", 2, samples=40, seconds=3.0, samples_per_second=10.0)


def reading(rows: list[Row], **record: Any) -> Reading:
    known = RunRecord(plan="ring:workers=2", workers=2, **record)
    return Reading(Path("run"), known, Trace.of(rows), None, (), "ring ×2")


def test_the_loss_is_weighted_and_lies_where_the_batch_was_done() -> None:
    rows = [
        Row(Kind.COMPUTE, 0, 0, end=10**9, samples=30, value=1.0),
        Row(Kind.COMPUTE, 1, 0, end=2 * 10**9, samples=10, value=3.0),
        Row(Kind.COMPUTE, 0, 1, end=3 * 10**9, samples=20, value=float("nan")),
        Row(Kind.COMPUTE, 1, 1, end=3 * 10**9, samples=0, value=9.0),
    ]
    curve = loss_curve(reading(rows, summary=SUMMARY(updates=1)))
    assert [c.tolist() for c in curve] == [[2.0], [1.0], [40.0], [1.5]]


def test_an_evaluation_lies_over_all_three_axes() -> None:
    history = (Evaluation(5, 1.0, {"test_accuracy": 0.5}), Evaluation(10, 2.0, {"test_accuracy": 0.7}))
    curve = evaluation_curve(reading([], history=history, summary=SUMMARY(samples=200, updates=10)), "test_accuracy")
    assert [curve.over(axis).tolist() for axis in AXES] == [[1.0, 2.0], [5.0, 10.0], [100.0, 200.0]]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(1, 50))
def test_an_envelope_encloses_the_curve(values: list[float], bins: int) -> None:
    y = np.array(values)
    found = envelope(np.arange(len(y), dtype=float), y, bins)
    assert len(found.x) <= max(bins, 1) or len(y) <= bins
    assert found.low.min() == y.min()
    assert found.high.max() == y.max()
    assert (found.low <= found.mean + 1e-6).all()
    assert (found.mean <= found.high + 1e-6).all()


def test_a_histogram_counts_all() -> None:
    assert histogram(np.array([0.0, 1, 1, 3])) == [(0, 0, 1), (1, 1, 2), (2, 2, 0), (3, 3, 1)]
    wide = histogram(np.arange(1000.0))
    assert len(wide) <= 24
    assert sum(count for *_, count in wide) == 1000
    assert histogram(np.zeros(0)) == []


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (0, 1, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 2500, ["0", "500", "1,000", "1,500", "2,000", "2,500"]),
        (0.101, 0.109, ["0.102", "0.104", "0.106", "0.108"]),
        (3, 3, ["3.00"]),
    ],
)
def test_ticks_are_round(low: float, high: float, says: list[str]) -> None:
    assert [text for _, text in charts.ticks(low, high)] == says


def test_a_logarithmic_axis_of_less_than_a_decade_has_more_than_one_tick() -> None:
    assert [text for _, text in charts.Scale(1.1, 2.4, log=True).ticks()] == ["1.5", "2.0"]
    assert [text for _, text in charts.Scale(0.9, 240, log=True).ticks()] == ["1", "10", "100"]


def test_numbers_have_sensible_digits() -> None:
    said = [formatting.number(v) for v in (0, 1234.5, 12.345, 0.012345, 1e-7, None, float("nan"))]
    assert said == ["0", "1,234", "12.3", "0.0123", "1.00e-07", "–", "–"]
    assert [formatting.duration(s) for s in (2e-6, 0.0123, 1.5, 125, 7260)] == [
        "2.00 µs",
        "12.3 ms",
        "1.50 s",
        "2 min 5 s",
        "2 h 1 min",
    ]
    assert [formatting.share(s) for s in (0.004, 0.0096, 0.5, 1.0)] == ["0.4%", "1%", "50%", "100%"]


# --- whole pages ----------------------------------------------------------------------------------------------------


class Seen(HTMLParser):
    """Elements opened and closed, and their attributes."""

    VOID = ("meta", "input", "path", "circle", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [f"{tag} {key}" for key, _ in attrs if key in ("src", "href", "action", "onclick", "onload")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_a_page_of_one_run_is_whole_without_its_script(runs: Path) -> None:
    (one,) = (folder for folder in runs.iterdir() if "downpour" in folder.name)
    text = page(open_all([one]))
    seen = Seen(text)
    assert seen.links == []
    assert seen.tags.count("script") == 1
    for title in (
        "Summary",
        "Learning",
        "Glossary",
        "Timeline",
        "Where the time went",
        "Staleness",
        "Model",
        "Settings",
    ):
        assert f"<h2>{title}</h2>" in text
    assert "Three workers under downpour trained small for 30 updates, 600 samples," in text
    assert text.count('class="lane"') == 3
    for said in ("SGD(lr=0.1, momentum=0.9", "torch", "seed", "Tanh", "30"):
        assert said in text


def test_a_run_that_a_callback_stopped_is_told_as_such(tmp_path: Path) -> None:
    run = pl.train(job(), "ring:workers=2", engine="virtual", folder=tmp_path)
    assert run.path is not None
    record = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**record, "status": "stopped", "error": "stopped: enough"}))
    text = page(open_all([run.path]))
    assert "Two workers under ring trained small for 30 updates in" in text
    assert "and the run was stopped: enough." in text


def test_several_runs_are_set_against_the_single_process(runs: Path) -> None:
    opened = open_all([runs])
    found = {f.name: f for f in run_stats(opened, lanes_of(opened))}
    assert set(found) == {"sequential", "ring ×3", "downpour ×3 shards=2"}
    single = found["sequential"].samples_per_second
    assert single
    for f in found.values():
        assert f.speedup == pytest.approx((f.samples_per_second or 0) / single)
        assert f.timed is False
    slow = [replace(f, speedup=0.2, ceiling_share=0.5) for f in found.values()]
    assert '<u style="left:98.04%">' in speeds(slow), "the line of one process is on the chart of slower plans, too"
    seen = Seen(text := page(opened))
    assert seen.links == []
    assert text.count("<tr data-name") == 3
    assert text.count("<details><summary>") == 3 + 1  # the runs, and the settings that they share
    assert text.count("<h2>Model</h2>") == 1  # the same for all
    titles = re.findall("<h2>(.*?)</h2>", re.sub("<details>.*?</details>", "", text, flags=re.DOTALL))
    assert titles == ["Summary", "Runs", "Learning", "Timeline", "Staleness", "Model", "Glossary"]
    assert '<section class="answer' not in text  # they were not timed side by side


def test_nothing_of_the_users_gets_out_of_its_place(tmp_path: Path) -> None:
    run = pl.train(job(), "ring:workers=2", engine="virtual", folder=tmp_path)
    assert run.path is not None
    record = json.loads((run.path / "run.json").read_text())
    record["job"]["name"] = record["job"]["optimizer"] = NASTY
    record["status"], record["error"], record["notes"] = "failed", NASTY, [NASTY]
    record["model"][0]["name"] = record["model"][0]["type"] = NASTY
    record["history"][0][NASTY] = 1.0
    for number in range(2):
        twin = tmp_path / f"twin{number}"
        shutil.copytree(run.path, twin)
        (twin / "run.json").write_text(json.dumps(record))
    for folders in ([tmp_path / "twin0"], [tmp_path / "twin0", tmp_path / "twin1"]):
        text = page(open_all(folders))
        assert NASTY not in text
        assert "&lt;script&gt;alert(1)" in text
        assert Seen(text).tags.count("script") == 1


def test_an_old_or_broken_folder_is_read_and_what_is_missing_is_said(tmp_path: Path) -> None:
    run = pl.train(job(), "ring:workers=2", engine="virtual", folder=tmp_path)
    assert run.path is not None
    record = json.loads((run.path / "run.json").read_text())
    for key in ("model", "started", "history", "summary"):
        del record[key]
    (run.path / "run.json").write_text(json.dumps({**record, "status": "running"}))
    whole = (run.path / "trace.arrow").read_bytes()
    (run.path / "trace.arrow").write_bytes(whole[: len(whole) // 2])
    assert "without the model" in page(open_all([run.path]))
    (run.path / "trace.arrow").unlink()
    text = page(open_all([run.path]))
    assert "trace cannot be read" in text
    assert "had not ended" in text
    (run.path / "run.json").write_text("{")
    with pytest.raises(RunFolderError, match="damaged"):
        open_all([run.path])


def test_chromium_has_nothing_to_complain_of(runs: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on this machine to open the page with")
    (file,) = write([runs], tmp_path / "report.html")
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--v=0",
        "--timeout=5000",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        f"file://{file}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert "<button>workers</button>" in done.stdout  # the script ran


def test_many_runs_can_be_filtered(runs: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on this machine to open the page with")
    readings = open_all([runs]) * 3
    typing = """<script>const field = document.querySelector(".filter input"); field.value = "ring WORKERS=3";
        field.dispatchEvent(new Event("input"));</script></body>"""
    file = tmp_path / "report.html"
    text = re.sub('<meta http-equiv="Content-Security-Policy".*?>', "", page(readings))  # which forbids the typing
    file.write_text(text.replace("</body>", typing))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([chromium, *options, file.as_uri()], capture_output=True, text=True, timeout=300)
    assert " 3 of 9 runs</output>" in done.stdout
    rows = re.findall(r'<tr data-name="([^"]*)" data-place="\d+"( hidden="")?>', done.stdout)
    assert [bool(hidden) for _, hidden in rows] == ["ring" not in name for name, _ in rows]


def test_only_settings_that_differ_are_set_against_one_another(runs: Path) -> None:
    text = page(open_all([runs]))
    (table,) = re.findall('<table class="cards differs">.*?</table>', text, re.DOTALL)
    names = re.findall("<tr><th scope=row>(.*?)</th>", table)
    assert names[:2] == ["plan", "workers"]
    assert not {"seed", "batch_size", "started", "folder"} & set(names)
    (shared,) = re.findall("Settings that all runs share.*?</details>", text, re.DOTALL)
    assert "<dt>batch_size</dt><dd>20</dd>" in shared


def test_a_loss_is_drawn_on_both_scales_and_axes_are_named(runs: Path) -> None:
    text = page(open_all([runs]))
    for axis in AXES:
        (part,) = re.findall(f'<div class="charts over-{axis}">.*?</figure></div>', text, re.DOTALL)
        assert part.count("logarithmic scale") == 2  # of the training and of the test loss
        assert part.count('class="chart linear"') == 2
        assert part.count(f'<div class="axis">{axis}</div>') == part.count("<figure")
    assert '<ul class="legend"><li>plan:</li>' in text


def test_figures_of_the_users_own_are_wherever_the_accuracy_is(tmp_path: Path) -> None:
    made = job(metrics={"share_of_0": lambda output, _: (output.argmax(1) == 0).float().mean()})
    written = [pl.train(made, plan, engine="virtual", folder=tmp_path) for plan in ("sequential", "ring:workers=2")]
    value = written[1].summary()["share_of_0"]
    opened = open_all([tmp_path])
    assert all(f.metrics["share_of_0"] > 0 for f in run_stats(opened, lanes_of(opened)))
    several, one = page(opened), page(opened[1:])
    assert f'data-label="share of 0" data-v="{value:.6g}"' in several
    assert "<figcaption>Share of 0" in several
    assert f"<dt>share of 0</dt><dd>{formatting.number(value)}</dd>" in one
    assert f"On the test data: share_of_0 {formatting.number(value)}." in one
    table, _ = exports.write_csv(opened, tmp_path / "r.csv")
    assert float(list(csv.DictReader(io.StringIO(table.read_text())))[1]["share_of_0"]) == value


def test_what_was_not_measured_is_hatched_and_named(tmp_path: Path) -> None:
    run = pl.train(job(), "ring:workers=2", engine="virtual", folder=tmp_path)
    assert run.path is not None
    record = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**record, "plan": "ddp:workers=2"}))
    opened = open_all([run.path])
    (stats,) = run_stats(opened, lanes_of(opened))
    assert stats.shares["compute"] == 0
    assert stats.shares["unmeasured"] > 0
    assert (stats.wait_fraction, stats.bytes_sent) == (None, None)
    text = page(opened)
    assert text.count('class="strip hatched"') == 2
    assert '<td data-label="compute">–</td>' in text
    assert "not measured" in text
    assert "computing, communicating and waiting is not measured" in text


# --- a comparison ---------------------------------------------------------------------------------------------------


def compared(runs: Path, folder: Path, *ratios: float) -> Path:
    """The folder of a comparison of the runs: in each round the others were so many times as fast as one process."""
    opened = open_all([runs])
    rows = []
    for r in opened:
        shutil.copytree(r.path, folder / r.path.name)
        each = (1.0,) * len(ratios) if r.workers == 1 else ratios
        middle = statistics.median(each)
        rows.append(
            ComparisonRow(
                r.plan,
                r.workers,
                100 * middle,
                (100 * min(each), 100 * max(each)),
                middle,
                middle / r.workers,
                test_accuracy=0.9,
                run=r.path.name,
                speedup_interval=tuple(median_interval(each)),
            )
        )
    found = ComparisonRecord("small", "1 thread", 100.0, 5, tuple(rows), test_samples=200, command=f"train {NASTY}")
    write_json(folder / "comparison.json", to_dict(decided(found)))
    return folder


def test_the_page_of_a_comparison_begins_with_the_answer(runs: Path, tmp_path: Path) -> None:
    text = page(open_all([compared(runs, tmp_path / "fast", 1.5, 1.5, 1.6, 1.5, 1.55)]))
    assert '<h1>small: 3 plans compared</h1></header>\n<section class="answer recommended"' in text
    assert "<dd>1.50\u00a0±3%</dd>" in text
    assert f"<dd>+0.0 ±{100 * difference_of_accuracies(0.9, 0.9, 200).half:.1f}</dd>" in text
    assert NASTY not in text
    assert "<code>train &lt;script&gt;" in text
    assert Seen(text).links == []
    slow = page(open_all([compared(runs, tmp_path / "slow", 0.5, 0.5, 0.5, 0.5, 0.5)]))
    assert '<section class="answer single"' in slow
    wild = page(open_all([compared(runs, tmp_path / "wild", 0.5, 2.5, 1.5, 1.5, 0.7)]))
    assert '<section class="answer undecided"' in wild
    assert "The rounds disagree by up to ±67%" in wild
    assert "0.50 to 2.50" in wild
    assert "times as fast as the best single process" not in wild
    (ring,) = (reading for reading in open_all([tmp_path / "wild"]) if reading.method == "ring")
    assert "In rounds that disagree, it was 0.50 to 2.50 times as fast as the best single process" in page([ring])
    assert "<dt>times one process</dt><dd>0.50 to 2.50</dd>" in page([ring])


def test_the_page_of_a_comparison_names_a_plan_that_failed_and_claims_nothing_where_nothing_is_settled(
    runs: Path, tmp_path: Path
) -> None:
    folder = compared(runs, tmp_path / "failed", 0.5, 0.5, 0.5, 0.5, 0.5)
    opened = open_all([folder])
    lost = next(r.path.name for r in opened if r.method == "ring")
    known = read_comparison(folder)
    assert known is not None
    rows = tuple(row for row in known.plans if row.name != "ring")
    failed = (FailedPlan("ring:workers=2", 2, "WorkerFailed: worker 1 failed first", f"elsewhere/{lost}"),)
    write_json(folder / "comparison.json", to_dict(decided(replace(known, plans=rows, failed=failed))))
    text = page(open_all([folder]))
    assert '<section class="answer single"' in text, "the answer stays although one of the runs was not timed"
    assert "Ring x2 failed: WorkerFailed: worker 1 failed first." in text
    assert "as fast as the best single process" in text
    write_json(folder / "comparison.json", to_dict(decided(replace(known, plans=rows, failed=failed, core_wait=0.4))))
    text = page(open_all([folder]))
    assert '<section class="answer undecided"' in text
    assert "as fast as the best single process" not in text


def test_a_report_is_written_into_the_folder_of_the_run(runs: Path) -> None:
    one = min(runs.iterdir())
    try:
        assert write([one]) == [one / "report.html"]
        assert write([one, *runs.iterdir()], form="json") == [runs / "report.json"]
    finally:
        for file in (one / "report.html", runs / "report.json"):
            file.unlink(missing_ok=True)


# --- other formats --------------------------------------------------------------------------------------------------


def test_json_and_csv_say_the_same(runs: Path, tmp_path: Path) -> None:
    opened = open_all([runs])
    exports.write_json(opened, tmp_path / "r.json")
    told = json.loads((tmp_path / "r.json").read_text())["runs"]
    rows, curves = exports.write_csv(opened, tmp_path / "r.csv")
    table = list(csv.DictReader(io.StringIO(rows.read_text())))
    assert [row["name"] for row in table] == [run["figures"]["name"] for run in told]
    assert [float(row["speedup"]) for row in table] == [run["figures"]["speedup"] for run in told]
    losses = [
        row
        for row in csv.DictReader(io.StringIO(curves.read_text()))
        if row["curve"] == "train_loss" and row["run"] == "ring ×3"
    ]
    (ring,) = (run for run in told if run["figures"]["name"] == "ring ×3")
    assert [float(row["value"]) for row in losses] == ring["curves"]["train_loss"]["values"]
    assert len(losses) == 30


def records(raw: bytes) -> list[bytes]:
    """The messages of an event file, each checked."""
    found, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        message = raw[at + 12 : at + 12 + length]
        sums = struct.unpack_from("<I", raw, at + 8)[0], struct.unpack_from("<I", raw, at + 12 + length)[0]
        assert sums == (exports.masked_crc(raw[at : at + 8]), exports.masked_crc(message))
        found.append(message)
        at += 16 + length
    return found


def test_event_files_are_as_tensorboard_writes_them(runs: Path, tmp_path: Path) -> None:
    crc = (exports.masked_crc(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert (crc >> 17 | crc << 15) & 0xFFFFFFFF == 0xE3069283  # CRC-32C's own check value
    # What the writer of TensorBoard 2.21 makes of this scalar.
    golden = "1b000000000000001a0d9e1309000000000000f83f10ac022a0d0a0b0a046c6f7373150000003f69f9315b"
    made = exports.tensorboard_events([("loss", 300, 0.5, 0.5)], 1.0)
    assert made.endswith(bytes.fromhex(golden))
    assert records(made)[0] == b"\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0dbrain.Event:2"
    files = exports.write_events(open_all([runs]), tmp_path)
    assert len(files) == 3
    for file in files:
        assert len(records(file.read_bytes())) > 30


def test_a_perfetto_trace_holds_every_row_on_one_clock(runs: Path, tmp_path: Path) -> None:
    opened = open_all([runs])
    (file,) = exports.write_trace(opened, tmp_path / "t.json")
    told = json.loads(file.read_text())["traceEvents"]
    slices = [event for event in told if event["ph"] == "X" and event["name"] != "wait"]
    assert len(slices) == sum(len(r.trace) for r in opened)
    assert {e["args"]["name"] for e in told if e["name"] == "process_name"} == {r.name for r in opened}
    for number, r in enumerate(opened):
        ends = [e["ts"] + e["dur"] for e in slices if e["pid"] == number]
        assert max(ends) == pytest.approx(r.trace.rows["end"].max() / 1e3)
        waits = sum(e["dur"] for e in told if e["ph"] == "X" and e["name"] == "wait" and e["pid"] == number)
        assert waits == pytest.approx(r.trace.rows["waited"].sum() / 1e3)
    allowed = {
        "X": {"name", "ts", "dur", "pid", "tid"},
        "C": {"name", "ts", "pid", "args"},
        "M": {"name", "pid", "args"},
    }
    assert all(allowed[event["ph"]] <= set(event) for event in told)


def test_a_perfetto_trace_has_an_event_for_a_row_of_every_kind(runs: Path) -> None:
    whole = open_all([runs])[0]
    for kind in Kind:
        row = Row(kind, 0, 1, shard=0, base=0, version=1, samples=1, start=5_000, end=9_000, value=0.5)
        told = list(exports.trace_events(replace(whole, trace=Trace.of([row])), 0))
        assert any(event.get("ts") == pytest.approx(5) for event in told), kind.name


def test_the_stages_of_a_pipeline_have_slices(tmp_path: Path) -> None:
    run = pl.train(job(), "gpipe:workers=2", engine="virtual", folder=tmp_path)
    assert run.path is not None
    (file,) = exports.write_trace(open_all([run.path]), tmp_path / "t.json")
    assert "stage" in {event["name"] for event in json.loads(file.read_text())["traceEvents"]}


def test_a_wrong_format_or_folder_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'html'"):
        write([runs], tmp_path / "x", "htm")
    with pytest.raises(RunFolderError, match="contains no run folder"):
        write([tmp_path])
    with pytest.raises(RunFolderError, match="another -o"):
        write([runs], tmp_path / "no" / "such" / "x.html")


def test_the_report_does_not_need_torch(runs: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from paceline.runtime import report as r;"
        f"r.write([Path({str(runs)!r})], Path('r.html'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + "; sys.exit('torch' in sys.modules)"], cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0
    assert re.search("<h2>Runs</h2>", (tmp_path / "r.html").read_text())


# --- the model's outline --------------------------------------------------------------------------------------------


def test_an_outline_finds_residual_connections() -> None:
    made = built_in("cifar-resnet")
    module = made.make_model()
    found = outline(made, module, open_source(made.data, 0))
    assert sum(layer.parameters for layer in found) == sum(p.numel() for p in module.parameters())
    by_name = {layer.name: layer for layer in found}
    assert by_name["0"].output == (100, 16, 16, 16)
    first = [found[number].name for number in by_name["3.body.0"].after]
    assert first == ["1", "2.body.4"]  # what goes round the first block, and through it


def test_a_model_that_cannot_be_looked_into_still_has_its_sizes() -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        raise RuntimeError("not outside a training")

    made = job(loss=None, step=step)
    found = outline(made, made.make_model(), open_source(made.data, 0))
    assert [(layer.type, layer.parameters, layer.output) for layer in found] == [
        ("Linear", 36, None),
        ("Tanh", 0, None),
        ("Linear", 15, None),
    ]


def test_a_process_that_hung_is_among_the_events_of_any_run() -> None:
    hung = RunEvent(EventKind.HUNG, 7.0, why="deadlocked: worker 1 waits for <itself>")
    shown = cluster_events([RunEvent(EventKind.STARTED, 5.0), hung, RunEvent(EventKind.ENDED, 8.0)])
    assert shown == "<table><tr><td>2.00 s<td>hangs, deadlocked: worker 1 waits for &lt;itself&gt;</tr></table>"


@pytest.mark.parametrize(
    ("plan", "says"),
    [("tensor:workers=2", 2), ("one_f_one_b:workers=2,balance=operations", 1), ("ampnet:workers=2", 1), ("ring", 0)],
)
def test_the_page_shows_who_holds_what(plan: str, says: int, tmp_path: Path) -> None:
    run = pl.train(JOBS["mlp"](), plan, engine="virtual", folder=tmp_path, max_updates=1)
    assert run.path is not None
    held = {layer.name: layer.held for layer in run.record.model if any(layer.held)}
    text = page(open_all([run.path]))
    assert ("Who holds what" in text) == bool(says)
    if says:
        assert sum(map(sum, held.values())) >= 8 * 411  # all parameters, in double precision
        assert all(sum(map(bool, mine)) >= 1 for mine in held.values())
        assert {sum(map(bool, mine)) for mine in held.values()} == {says}
