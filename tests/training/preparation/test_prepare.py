"""Every row that comes in is kept, rejected under a rule, or a duplicate; and the same rows give the same bits."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.errors import DataError
from paceline.training.data.shards import Shards
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe, Words
from paceline.training.preparation.sources import Csv, Images, JsonLines, Lines, Parquet
from paceline.training.shards.manifest import Manifest, read_manifest
from tests.training.preparation.dirty import SCHEMA, write_dirty

pytest.importorskip("duckdb")


def digests(manifest: Manifest) -> list[str]:
    return [f.sha256 for split in manifest.splits.values() for shard in split.shards for f in shard.files.values()]


def rejected(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "rejected.parquet").to_pylist()
    return rows


def shards(folder: Path, **options: Any) -> Shards:
    return Shards(folder, **options)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_bad_line_of_a_dirty_file_is_listed_with_its_rule(seed: int, breaks: bool, tmp_path: Path) -> None:
    truth = write_dirty(tmp_path / "dirty.csv", rows=3000, bad=60, seed=seed, breaks=breaks)
    recipe = Recipe(Csv(tmp_path / "dirty.csv", SCHEMA), columns={"x": ["a", "b"], "id": "id", "name": "name"})
    manifest = prepare(recipe, tmp_path / "out")
    assert manifest.account.balanced
    assert manifest.account.read == 3000
    assert manifest.account.kept == 3000 - 60
    assert {row["line"]: row["rule"] for row in rejected(tmp_path / "out")} == truth
    assert manifest.account.rejected == dict(Counter(truth.values()))
    kept = sorted(shards(tmp_path / "out", columns=["id"])._columns[0].values.tolist())  # type: ignore[union-attr]
    assert len(set(kept)) == 2940


def test_the_bits_depend_on_neither_threads_nor_memory_nor_the_order_of_rows(tmp_path: Path) -> None:
    write_dirty(tmp_path / "a.csv", rows=20_000, bad=20, seed=1)
    lines = (tmp_path / "a.csv").read_bytes().split(b"\n")
    columns = {"x": ["a", "b"], "word": Words("name"), "text": "name"}
    splits = {"train": 0.7, "test": 0.3}
    found = [
        digests(
            prepare(
                Recipe(Csv(tmp_path / "a.csv", SCHEMA), columns, splits=splits, shard_rows=4096),
                tmp_path / f"out{threads}",
                threads=threads,
                memory="200MB" if threads == 2 else None,
            )
        )
        for threads in (1, 2, 4)
    ]
    assert found[0] == found[1] == found[2]
    plain = [line for line in lines[1:] if line.count(b",") == 3 and b'"' not in line and line]
    for name, rows in (("forward", plain), ("backward", plain[::-1])):
        (tmp_path / f"{name}.csv").write_bytes(b"\n".join([lines[0], *rows, b""]))
    both = [
        digests(prepare(Recipe(Csv(tmp_path / f"{name}.csv", SCHEMA), columns, shard_rows=4096), tmp_path / name))
        for name in ("forward", "backward")
    ]
    assert both[0] == both[1]
    other = prepare(Recipe(Csv(tmp_path / "forward.csv", SCHEMA), columns, shard_rows=4096, seed=1), tmp_path / "other")
    assert digests(other) != both[0]


def test_of_rows_with_one_key_one_is_kept_and_a_split_depends_on_the_key_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n" + "".join(f"{n % 500},{n}\n" for n in range(1200)))
    recipe = Recipe(
        Csv(tmp_path / "a.csv", {"id": "int", "v": "int"}),
        columns={"id": "id"},
        key="id",
        splits={"train": 0.8, "test": 0.2},
    )
    manifest = prepare(recipe, tmp_path / "out")
    assert (manifest.account.kept, manifest.account.duplicates) == (500, 700)
    train, test = (set(_ids(tmp_path / "out", split)) for split in ("train", "test"))
    assert len(train) + len(test) == 500
    assert not train & test
    assert 0.7 < len(train) / 500 < 0.9


def _ids(folder: Path, split: str) -> list[int]:
    found = shards(folder, split=split, columns=["id"])
    return [int(found[at][0]) for at in range(len(found))]


def test_json_lines_and_rules_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"id": 1, "n": "x"}\nnope\n\n{"id": "z"}\n[1]\n{"id": 30, "n": null}\n{"n": "q", "id": 4, "more": {"a": 1}}\n'
    )
    recipe = Recipe(
        JsonLines(tmp_path / "a.jsonl", {"id": "int", "n": "text?"}),
        columns={"id": "id", "n": "coalesce(n, '')"},
        rules={"id is small": "id < 10"},
    )
    manifest = prepare(recipe, tmp_path / "out")
    assert manifest.account.balanced
    assert {row["line"]: row["rule"] for row in rejected(tmp_path / "out")} == {
        2: "not a JSON object",
        4: "id is not an int",
        5: "not a JSON object",
        6: "id is small",
    }
    rows = shards(tmp_path / "out")
    texts = {int(i): bytes(t[:n].numpy()).decode() for i, t, n in (rows[at] for at in range(len(rows)))}
    assert texts == {1: "x", 4: "q"}


def test_parquet_vectors_lists_and_normalization(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    values = chance.normal(3, 2, 5000)
    lists = [list(range(n % 4)) for n in range(5000)]
    table = pa.table({"id": range(5000), "v": values, "l": lists, "w": [f"w{n % 7}" for n in range(5000)]})
    for part in range(2):
        pq.write_table(table.slice(part * 2500, 2500), tmp_path / f"{part}.parquet")
    recipe = Recipe(
        Parquet(tmp_path / "*.parquet"),
        columns={"id": "id", "v": "v", "l": "l", "w": Words("w"), "pair": ["v", "id"]},
        rules={"v is known": "v > -2"},
        shard_rows=4096,
    )
    manifest = prepare(recipe, tmp_path / "out")
    assert manifest.account.rejected == {"v is known": int((values <= -2).sum())}
    assert [len(split.shards) for split in manifest.splits.values()] == [2]
    rows = shards(tmp_path / "out", normalize=["v", "pair"])
    ids, v, padded, lengths, words, pairs = rows.batch(_numbers(len(rows)), 0)
    good = np.stack([values[ids.numpy()], ids.numpy()], axis=1)
    expected = (good - good.mean(axis=0)) / good.std(axis=0)  # each place of a vector by figures of its own
    np.testing.assert_allclose(v.numpy(), expected[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pairs.numpy(), expected, rtol=1e-4, atol=1e-4)
    whole = np.float32(good).astype(np.float64)
    found = rows.manifest.columns["pair"].statistics
    assert found is not None
    np.testing.assert_allclose([found.mean, found.std], [whole.mean(), whole.std()])
    assert all(lists[i] == row[:n].tolist() for i, row, n in zip(ids, padded, lengths, strict=True))
    assert all(rows.words("w")[w - 1] == f"w{i % 7}" for i, w in zip(ids.tolist(), words.tolist(), strict=True))


def _numbers(count: int) -> Any:
    import torch

    return torch.arange(count)


def test_images_and_lines_and_a_transform(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for n in range(3):
            (tmp_path / "images" / label / f"{n}.png").write_bytes(f"{label}{n}".encode())
    recipe = Recipe(Images(tmp_path / "images"), columns={"image": "image", "label": Words("label")})
    prepare(recipe, tmp_path / "pictures")
    rows = shards(tmp_path / "pictures")
    found = {bytes(image[:n].numpy()).decode(): rows.words("label")[label - 1] for image, n, label in rows}
    assert found == {f"{label}{n}": label for label in ("cat", "dog") for n in range(3)}
    (tmp_path / "a.txt").write_text("one\ntwo three\n")

    def upper(table: pa.Table) -> pa.Table:
        lines = [line.upper() for line in table["line"].to_pylist()]
        return pa.table({"line": pa.array(lines), "words": pa.array([len(line.split()) for line in lines])})

    columns = {"line": "line", "omitted": "length(line)"}
    prepare(Recipe(Lines(tmp_path / "a.txt"), columns=columns, transform=upper), tmp_path / "lines")
    rows = shards(tmp_path / "lines")
    assert {(bytes(text[:n].numpy()).decode(), int(words)) for text, n, words in rows} == {("ONE", 1), ("TWO THREE", 2)}


def test_what_sql_cannot_compute_is_missing_in_that_row_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n;v\n1;0,5\n2;x\n0;1\n3;1e999\n")
    source = Csv(tmp_path / "a.csv", {"n": "int", "v": "text"}, delimiter=";")
    columns = {"v": "CAST(replace(v, ',', '.') AS FLOAT)", "part": "CAST(1 / n AS FLOAT)"}
    manifest = prepare(Recipe(source, columns), tmp_path / "out")
    assert manifest.account.balanced
    rules = {row["line"]: row["rule"] for row in rejected(tmp_path / "out")}
    assert (rules[3], rules[4]) == ("column v is missing", "column part is missing")
    assert manifest.account.kept == 4 - len(rules)
    infinite = Csv(tmp_path / "a.csv", {"n": "int", "v": "float?"}, delimiter=";")
    prepare(Recipe(infinite, {"n": "n"}), tmp_path / "numbers")
    assert {row["line"] for row in rejected(tmp_path / "numbers")} == {2, 3, 5}


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    "": lambda raw: raw,
    ".zst": lambda raw: pa.compress(raw, "zstd", asbytes=True),
}


def test_text_of_any_encoding_and_packing_is_read_alike(tmp_path: Path) -> None:
    good = "id,name\n1,Zo\u00eb\n\n2,\u00c6r\u00f8\n"
    bad = {"cp1252": b"3,\x81\n", "utf-16-le": b"3\0,\0\0\xd8\n\0", "utf-8": b"3,\xeb\n", "latin-1": b"", "utf-16": b""}
    found = []
    for (encoding, line), (suffix, packed) in zip(bad.items(), PACK.items(), strict=True):
        path, out = tmp_path / f"{encoding}.csv{suffix}", tmp_path / f"out-{encoding}"
        path.write_bytes(packed(good.encode(encoding) + line))
        source = Csv(path, {"id": "int", "name": "text"}, encoding=encoding)
        found.append(digests(prepare(Recipe(source, {"id": "id", "name": Words("name")}), out)))
        wrong = {5: f"not {encoding.upper()}"} if line else {}
        assert {row["line"]: row["rule"] for row in rejected(out)} == wrong
    assert all(each == found[0] for each in found)
    (tmp_path / "a.csv").write_bytes(good.encode("utf-16"))
    with pytest.raises(DataError, match=r"a.csv begins with .* of UTF-16; give its source encoding='utf-16'$"):
        prepare(Recipe(Csv(tmp_path / "a.csv", {"id": "int", "name": "text"}), {"id": "id"}), tmp_path / "out")
    with pytest.raises(DataError, match="encoding='latin99' is not an encoding that Python has"):
        Lines(tmp_path / "a.csv", encoding="latin99")


KILLED = """
import os, signal, sys
from pathlib import Path
from paceline.training.preparation import prepare as module
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Csv

class Killed(module.FinishedShards):
    def add(self, split, number, shard):
        super().add(split, number, shard)
        if (split, number) == (sys.argv[2], int(sys.argv[3])):
            os.kill(os.getpid(), signal.SIGKILL)

module.FinishedShards = Killed
folder = Path(sys.argv[1])
recipe = Recipe(Csv(folder / "a.csv", {"id": "int"}), {"id": "id"}, splits={"train": 0.8, "test": 0.2}, shard_rows=4096)
module.prepare(recipe, folder / "out")
"""


@pytest.mark.parametrize(("split", "number"), [("train", 0), ("train", 2), ("test", 0)])
def test_after_a_kill_the_rest_is_made_and_the_bits_are_the_same(split: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(20_000)))
    recipe = Recipe(
        Csv(tmp_path / "a.csv", {"id": "int"}), {"id": "id"}, splits={"train": 0.8, "test": 0.2}, shard_rows=4096
    )
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), split, str(number)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(DataError, match="not finished"):
        read_manifest(tmp_path / "out")
    progress = json.loads((tmp_path / "out" / "unfinished" / "progress.json").read_bytes())
    assert len(progress["shards"][split]) == number + 1
    written = {path: os.stat(path).st_ino for path in (tmp_path / "out").glob("t*/*.bin")}
    after = prepare(recipe, tmp_path / "out")
    assert all(os.stat(path).st_ino == node for path, node in written.items()), "a finished shard was written again"
    assert digests(after) == digests(prepare(recipe, tmp_path / "undisturbed"))
    assert not (tmp_path / "out" / "unfinished").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id\n", "no row is left of 0: the files are empty"),
        ("id\nx\ny\n", "no row is left of 2: most broke the rule 'id is not an int'"),
    ],
)
def test_a_folder_without_rows_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        prepare(Recipe(Csv(tmp_path / "a.csv", {"id": "int"}), {"id": "id"}), tmp_path / "out")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet")
    raw = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match="Parquet"):
        prepare(Recipe(Parquet(tmp_path / "a.parquet"), {"id": "id"}), tmp_path / "out")
    (tmp_path / "b.csv").write_text("id\n1\n")
    with pytest.raises(DataError, match="nope"):
        prepare(Recipe(Csv(tmp_path / "b.csv", {"id": "int"}), {"id": "nope + 1"}), tmp_path / "out2")
    with pytest.raises(DataError, match="no file matches"):
        prepare(Recipe(Csv(tmp_path / "c.csv", {"id": "int"}), {"id": "id"}), tmp_path / "out3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {}}, "columns= is empty"),
        ({"key": ["nope"]}, "key names 'nope'"),
        ({"splits": {"train": 0.5}}, "shares that sum to 1"),
        ({"shard_rows": 1000}, "multiple of 4096"),
        ({"seed": -1}, "seed=-1"),
        ({"columns": {"_x": "id"}}, "'_x' cannot name a column"),
        ({"splits": {"../x": 0.5, "unfinished": 0.5}}, "'../x' cannot name a split"),
        ({"sources": Csv("a", {"a": "int", "A": "int"})}, "differ in capitals alone"),
        ({"sources": [Csv("a", {"a": "int"}), JsonLines("a", {"a": "int"})]}, "of different kinds"),
        ({"sources": [Csv("a", {"a": "int"}), Csv("a", {"a": "int"}, missing=["NA"])]}, "different missing="),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"sources": Csv(tmp_path / "a.csv", {"id": "int"}), "columns": {"id": "id"}}
    with pytest.raises(DataError, match=message):
        Recipe(**(given | change))
