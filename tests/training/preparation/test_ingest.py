"""A stream: rows that keep coming, sealed shard by shard, and read in the order in which they came."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import paceline
from paceline.errors import DataError
from paceline.training.data.shards import Stream
from paceline.training.preparation.ingest import ingest
from paceline.training.preparation.recipe import Recipe, Words
from paceline.training.preparation.sources import Csv, JsonLines
from paceline.training.shards.files import damaged_stream
from paceline.training.shards.sealed import MOVED, Note, Sealed, SealedList, has_writer, note_position

pytest.importorskip("duckdb")
RECIPE = Recipe(Csv("-", {"id": "int", "v": "float"}, header=False), columns={"id": "id", "v": ["v"]})


def lines(first: int, stop: int, scale: float = 1.0) -> list[bytes]:
    return [f"{n},{scale * (n % 100)}".encode() for n in range(first, stop)]


def ids(folder: Path, samples: int | None = None) -> list[int]:
    stream = Stream(folder, samples)
    found: list[int] = stream.batch(torch.arange(len(stream)), 0)[0].tolist()
    return found


def written(path: Path, rows: list[bytes]) -> Path:
    path.write_bytes(b"\n".join([b"id,v", *rows, b""]))
    return path


def test_samples_keep_their_numbers_while_the_stream_grows(tmp_path: Path) -> None:
    folder = tmp_path / "stream"
    ingest(RECIPE, folder, {"a": lines(0, 250)}, rows=100)
    before = ids(folder)
    assert sorted(before) == list(range(250))
    growing = Stream(folder, 500)
    ingest(RECIPE, folder, {"b": lines(250, 600)}, rows=100)
    assert growing.batch(torch.arange(500), 0)[0].tolist() == ids(folder, 500)
    assert ids(folder)[:250] == before
    numbers = torch.tensor([410, 3, 299])
    assert growing.batch(numbers, 0)[0].tolist() == [ids(folder, 500)[n] for n in numbers]
    loader = torch.utils.data.DataLoader(growing, batch_size=100)  # type: ignore[arg-type]
    assert torch.cat([found for found, _ in loader]).tolist() == ids(folder, 500)


def test_bad_lines_are_set_aside_with_their_line_in_the_source(tmp_path: Path) -> None:
    given = lines(0, 300)
    given[150], given[290] = b"x,1", b"1,2,3"
    account = ingest(RECIPE, tmp_path / "s", {"a": given}, rows=100)
    found = {
        row["line"]: (row["file"], row["rule"])
        for file in (tmp_path / "s" / "rejected").glob("*.parquet")
        for row in pq.read_table(file).to_pylist()
    }
    assert found == {151: ("a", "id is not an int"), 291: ("a", "too many fields")}
    assert account.balanced
    assert (account.read, account.kept) == (300, 298)


def test_a_column_that_moves_is_told_by_its_drift(tmp_path: Path) -> None:
    given = [*lines(0, 1000), *lines(1000, 1500, scale=3), b"1500,5", b"1501,20", b"1502,35"]
    ingest(RECIPE, tmp_path / "s", {"a": given}, rows=500)
    first, same, moved, few = (shard.drift["v"] for shard in SealedList(tmp_path / "s").shards)
    for drift in (first, same):
        assert drift.population_stability < 0.05
        assert drift.kolmogorov_smirnov < 0.05
    assert moved.moved
    assert few.population_stability > MOVED
    assert not few.moved
    assert moved.kolmogorov_smirnov == pytest.approx(0.66, abs=0.02)


def test_inputs_take_turns_and_a_source_that_stops_or_fails_is_named_while_the_others_go_on(tmp_path: Path) -> None:
    held, events = threading.Event(), list[Any]()

    def stopped(taken: int) -> Iterator[bytes]:
        yield from lines(1000, 1100)[taken:]
        held.wait()
        yield from lines(1100, 1200)

    def broken() -> Iterator[bytes]:
        yield from lines(2000, 2100)
        raise OSError("the line is dead")

    def note(event: Sealed | Note) -> None:
        events.append(event)
        if sum(isinstance(each, Sealed) and each.source == "a" for each in events) == 5:
            held.set()

    inputs: Any = {"a": lines(0, 500), "b": stopped, "c": broken(), "d": [b"x,1"] * 100}
    with pytest.raises(DataError, match="c cannot be read: the line is dead"):
        ingest(RECIPE, tmp_path / "s", inputs, rows=100, patience=1.0, on_event=note)
    sealed = SealedList(tmp_path / "s")
    assert [shard.source for shard in sealed.shards] == ["a", "b", "c", "d", "a", "a", "a", "a", "b"]
    notes = {each.source: each.what for each in sealed.notes}
    assert notes == {
        "b": "has brought nothing for 1 s",
        "c": "cannot be read: the line is dead",
        "d": "is noisy: 100 of 100 rows are rejected, most as 'id is not an int'",
    }
    assert sorted(ids(tmp_path / "s")) == [*range(500), *range(1000, 1200), *range(2000, 2100)]
    assert not list(damaged_stream(tmp_path / "s", sealed))


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"id": 1}\n{"id": 2}')

    def log_message(self, *_: object) -> None:
        pass


def test_files_gzip_and_http(tmp_path: Path) -> None:
    recipe = Recipe(JsonLines("-", {"id": "int"}), columns={"id": "id"})
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"id": 3}\n{"id": 4}\n'))
    server = HTTPServer(("127.0.0.1", 0), _Page)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    inputs = [str(tmp_path / "a.jsonl.gz"), f"http://127.0.0.1:{server.server_port}/rows"]
    try:
        for _ in range(2):  # what has been taken is not taken again
            ingest(recipe, tmp_path / "s", inputs)
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert sorted(ids(tmp_path / "s")) == [1, 2, 3, 4]
    whole = (tmp_path / "a.jsonl.gz").read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"b\.jsonl\.gz cannot be read: .*end-of-stream"):
        ingest(recipe, tmp_path / "s", [tmp_path / "b.jsonl.gz"])


KILLED = """
import os, signal, sys
from pathlib import Path
from paceline.training.preparation import ingest as module
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Csv
recipe = Recipe(Csv("-", {"id": "int", "v": "float"}, header=False), columns={"id": "id", "v": ["v"]})
folder, moment, whole = Path(sys.argv[1]), sys.argv[2], module.append
def kill(): os.kill(os.getpid(), signal.SIGKILL)
def append(root, item):
    if isinstance(item, module.Sealed) and item.position == 300:
        if moment == "half":
            with open(root / "stream.jsonl", "ab") as file:
                file.write(b'{"shard": {"rows": 10')
            kill()
        if moment == "after":
            whole(root, item)
        kill()
    whole(root, item)
module.append = append
rows = [f"{n},{1.0 * (n % 100)}".encode() for n in range(1000)]
module.ingest(recipe, folder, {"a": lambda taken: rows[taken:]}, rows=100)
"""


@pytest.mark.parametrize("moment", ["before", "half", "after"])
def test_after_a_kill_no_row_is_lost_or_doubled(moment: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "s"), moment]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    for name in ("s", "undisturbed"):
        ingest(RECIPE, tmp_path / name, {"a": lambda taken: lines(taken, 1000)}, rows=100)
    assert SealedList(tmp_path / "s").shards == SealedList(tmp_path / "undisturbed").shards
    assert sorted(ids(tmp_path / "s")) == list(range(1000))


def _job(data: Any) -> paceline.Job:
    return paceline.Job(
        model=lambda: nn.Linear(1, 1),
        data=data,
        step=lambda model, batch: (model(batch[1] / 100) - batch[1] / 50).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=50,
    )


def test_a_training_waits_for_a_writer_that_holds_back_and_is_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    ingest(RECIPE, folder, {"a": lines(0, 200)}, rows=100)
    writer = threading.Thread(target=lambda: ingest(RECIPE, folder, {"b": lines(200, 1000)}, rows=100, ahead=100))
    writer.start()
    try:
        run = paceline.train(_job(Stream(folder, 900)), "downpour:workers=2", folder=tmp_path / "runs")
    finally:
        note_position(folder, 1000)
        writer.join()
    assert run.summary()["samples"] == 900
    assert run.path is not None
    assert paceline.replay(run.path).matches


def test_a_writer_holds_back_until_a_training_wants_more(tmp_path: Path) -> None:
    folder, sealed = tmp_path / "s", threading.Semaphore(0)
    arguments: Any = {"rows": 100, "ahead": 150, "on_event": lambda event: sealed.release()}
    writer = threading.Thread(target=ingest, args=(RECIPE, folder, {"a": lines(0, 500)}), kwargs=arguments)
    writer.start()
    try:
        for _ in range(2):
            sealed.acquire()
        assert has_writer(folder)
        with pytest.raises(DataError, match="another `paceline ingest`"):
            ingest(RECIPE, folder, {"b": lines(0, 1)})
        assert not sealed.acquire(timeout=0.2)  # 200 rows are there, and none is wanted
        assert len(Stream(folder, 500).batch(torch.tensor([300]), 0)) == 2
    finally:
        note_position(folder, 500)
        writer.join()
    assert sorted(ids(folder)) == list(range(500))


def test_what_cannot_be_done_is_named(tmp_path: Path) -> None:
    ingest(RECIPE, tmp_path / "s", {"sensor-7": lines(0, 100)}, rows=100)
    with pytest.raises(DataError, match=r"sample 500 of the stream .*holds 100, and no `paceline ingest` is adding"):
        Stream(tmp_path / "s", 1000, timeout=0.05).batch(torch.tensor([500]), 0)
    with pytest.raises(DataError, match="is no stream"):
        Stream(tmp_path, 10)
    with pytest.raises(DataError, match="one source of lines"):
        ingest(Recipe([Csv("a", {"id": "int"}), Csv("b", {"id": "int"})], {"id": "id"}), tmp_path / "t", {})
    with pytest.raises(DataError, match="words of a stream"):
        ingest(Recipe(Csv("a", {"id": "text"}), {"id": Words("id")}), tmp_path / "t", {})
    with pytest.raises(DataError, match="there is no file nope"):
        ingest(RECIPE, tmp_path / "t", ["nope"])
    with pytest.raises(DataError, match="another recipe"):
        ingest(Recipe(Csv("-", {"id": "int"}), columns={"id": "id"}), tmp_path / "s", {})
    header = Recipe(Csv("-", {"id": "int", "v": "float"}), columns={"id": "id"})
    moved = tmp_path / "moved.csv"
    moved.write_text("v,id\n1,2\n")
    good = written(tmp_path / "good.csv", lines(0, 10))
    with pytest.raises(DataError, match=r"moved\.csv begins with the fields v, id, but the schema has id, v"):
        ingest(header, tmp_path / "u", [moved, good])
    assert sorted(ids(tmp_path / "u")) == list(range(10))


def test_json_lines_of_standard_input(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(
        "import paceline\nrecipe = paceline.Recipe(paceline.JsonLines('-', {'id': 'int'}), columns={'id': 'id'})\n"
    )
    command = [sys.executable, "-m", "paceline", "ingest", "recipe.py", "-o", "s", "--json"]
    done = subprocess.run(command, cwd=tmp_path, input=b'{"id": 1}\nnope\n{"id": 2}', capture_output=True, check=True)
    assert b'"read": 3, "kept": 2, "rejected": {"not a JSON object": 1}' in done.stdout
    command = [sys.executable, "-m", "paceline", "data", "s", "--verify"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True).stderr
    assert "3 rows = 2 kept + 1 rejected" in shown
    assert "every file holds what was written" in shown
