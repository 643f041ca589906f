"""Files of another person: each is prepared with an account of its rows, or refused in a sentence that names it.

None ends the process, is waited for, fills the memory or leads a write elsewhere.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.errors import DataError
from paceline.training.preparation.duckdb_reading import write_closed
from paceline.training.preparation.ingest import PART_BYTES, InputReader, ingest
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Arrow, Csv, Idx, Images, JsonLines, Lines, Parquet
from paceline.training.preparation.text import LONGEST_LINE, lines_of_blocks

# --- Lines in which a quote is not closed are set aside one by one, and hide no other line ----------------------------


def test_an_open_quote_costs_its_own_line(tmp_path: Path) -> None:
    text = b'"a,b\n1,"x, y"\n2,"open\n3,"two\nlines"\r\n4,"a ""word"""\n\n5, "spaces" \n6,5\'10"\n7,"a"b\n8,"open'
    (tmp_path / "a.csv").write_bytes(text)
    found = write_closed(tmp_path / "a.csv", tmp_path / "b.csv", ",", '"', header=True)
    assert found == [(3, b'2,"open\n'), (10, b'7,"a"b\n'), (11, b'8,"open')]
    assert (tmp_path / "b.csv").read_bytes() == b"".join(
        line for number, line in enumerate(text.splitlines(keepends=True), 1) if number not in {3, 10, 11}
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_no_line_is_hidden_where_other_names_have_no_quotes(threads: int, tmp_path: Path) -> None:
    rows = [f'{n},{n}.5,"a\n' if n % 1000 == 500 else f"{n},{n}.5,name {n % 100}\n" for n in range(60_000)]
    rows[700] = "700,x,b\n"
    (tmp_path / "a.csv").write_text("id,v,name\n" + "".join(rows))
    source = Csv(tmp_path / "a.csv", {"id": "int", "v": "float", "name": "text"})
    account = prepare(Recipe(source, {"id": "id", "name": "name"}), tmp_path / "out", threads=threads).account
    assert (account.read, account.kept) == (60_000, 59_939)
    assert account.rejected == {"a quote is not closed": 60, "v is not a float": 1}
    rejected = pq.read_table(tmp_path / "out" / "rejected.parquet").to_pylist()
    assert [row["line"] for row in rejected] == sorted([702, *range(502, 60_000, 1000)])
    assert {row["record"] for row in rejected[:2]} == {'500,500.5,"a', "700,x,b"}


def end_of_record(text: str, at: int) -> int | None:
    """Return where the record that begins here ends, walking from character to character; None if none begins here."""
    while True:
        start = at + (text[at : at + 2] == ' "')
        if text[start : start + 1] == '"':
            at = start + 1
            while text[at : at + 1] != '"' or text[at : at + 2] == '""':
                if at >= len(text):
                    return None
                at += 2 if text[at : at + 2] == '""' else 1
            at += 1
            while text[at : at + 1] == " ":
                at += 1
        else:
            while text[at : at + 1] not in {",", "\n", ""}:
                at += 1
        if text[at : at + 1] in {"\n", ""}:
            return at + 1
        if text[at] != ",":
            return None
        at += 1


@pytest.mark.parametrize("seed", range(20))
def test_every_line_of_a_file_without_sense_is_in_the_account(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    lines = ["".join(chance.choices(',"ab ', [4, 1, 2, 2, 1], k=chance.randrange(1, 12))) for _ in range(400)]
    text = "\n".join(["a,b", '"x","y"', *lines, ""])
    (tmp_path / "a.csv").write_text(text)
    at, records, unclosed = 4, 0, []
    while at < len(text):
        if (end := end_of_record(text, at)) is None:
            unclosed.append(1 + text.count("\n", 0, at))
            end = text.index("\n", at) + 1
        records, at = records + 1, end
    recipe = Recipe(Csv(tmp_path / "a.csv", {"a": "text?", "b": "text?"}), {"a": "coalesce(a, '')"})
    assert prepare(recipe, tmp_path / "out").account.read == records
    rejected = pq.read_table(tmp_path / "out" / "rejected.parquet").to_pylist()
    assert [row["line"] for row in rejected if row["rule"] == "a quote is not closed"] == unclosed


pytest.importorskip("duckdb")
NUMBERS, TEXTS = {"id": "int", "v": "int"}, {"id": "int", "v": "text"}


def _csv(raw: bytes, schema: dict[str, str] = NUMBERS, **more: Any) -> Callable[[Path], Recipe]:
    def make(folder: Path) -> Recipe:
        (folder / "a.csv").write_bytes(raw)
        return Recipe(Csv(folder / "a.csv", schema, **more), {"x": "id", "v": "v"})

    return make


def _packed(blocks: Iterable[bytes]) -> Callable[[Path], Recipe]:
    def make(folder: Path) -> Recipe:
        with gzip.open(folder / "a.csv.gz", "wb", 1) as file:
            file.writelines(blocks)
        return Recipe(Csv(folder / "a.csv.gz", NUMBERS), {"x": "id"})

    return make


def _archive(folder: Path) -> Recipe:
    """Nothing is unpacked from an archive: it is a text that is none."""
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        for name, kind, link in (
            ("../../out", tarfile.REGTYPE, ""),
            ("/tmp/out", tarfile.REGTYPE, ""),
            ("a", tarfile.SYMTYPE, "/etc"),
            ("b", tarfile.LNKTYPE, "/etc/passwd"),
            ("c", tarfile.CHRTYPE, ""),
            ("d", tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, 4 * (kind == tarfile.REGTYPE)
            archive.addfile(member, io.BytesIO(b"1,2\n") if member.size else None)
    return Recipe(Csv(folder / "a.tar.gz", NUMBERS), {"x": "id"})


def _named(name: str) -> Callable[[Path], Recipe]:
    """A file whose name is a pattern or SQL, beside one that the pattern fits."""

    def make(folder: Path) -> Recipe:
        (folder / name).write_bytes(b"id,v\n1,1\n")
        (folder / "xa.csv").write_bytes(b"id,v\n6,6\n6,6\n")
        return Recipe(Csv(folder / glob_escape(name), NUMBERS), {"x": "id", "v": "v"})

    return make


def glob_escape(name: str) -> str:
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)


def _parquet(**columns: Any) -> Callable[[Path], Recipe]:
    def make(folder: Path) -> Recipe:
        pq.write_table(pa.table(columns), folder / "a.parquet")
        return Recipe(Parquet(folder / "a.parquet"), {"x": "id"})

    return make


def _folders_are_no_columns(folder: Path) -> Recipe:
    (folder / "id=9").mkdir()
    pq.write_table(pa.table({"id": [1]}), folder / "id=9" / "x*.parquet")
    pq.write_table(pa.table({"id": [6, 6]}), folder / "id=9" / "xa.parquet")
    return Recipe(Parquet(folder / "id=9" / "x[*].parquet"), {"x": "id"})


def _image(make: Callable[[Path], object]) -> Callable[[Path], Recipe]:
    def recipe(folder: Path) -> Recipe:
        (folder / "images" / "cat").mkdir(parents=True)
        make(folder / "images" / "cat" / "1.png")
        return Recipe(Images(folder / "images"), {"x": "image", "v": "label"})

    return recipe


def _idx(images: bytes, name: str = "images", labels: bytes = b"\0\0\x08\x01\0\0\0\2ab") -> Callable[[Path], Recipe]:
    def make(folder: Path) -> Recipe:
        (folder / name).write_bytes(images)
        (folder / "labels").write_bytes(labels)
        return Recipe(Idx(folder / name, folder / "labels"), {"x": "image", "v": "label"})

    return make


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


WIDE = b"id,v\n1,2\n" + b"," * 60_000 + b"\n"
PREPARED = {  # how many rows are kept, and how many lines are rejected
    "a huge field": (_csv(b"id,v\n1," + b"9" * (LONGEST_LINE + 9) + b"\n2,3\n"), 1, 1),
    "zero bytes": (_csv(b"id,v\n1,\0002\n\0\n3,4\n" + b"\0" * 5000 + b"\n5,6\n"), 2, 3),
    "a formula": (_csv(b"id,v\n1,\"=cmd|' /C calc'!A0\"\n2,@SUM(1)\n3,\x1b[2J\n", TEXTS), 3, 0),
    "many quotes": (_csv(b"id,v\n" + b'"' * 200_001 + b"\n1,2\n"), 1, 1),
    "separators of its own": (_csv(b"id,v\n1,\x1d\n\x1e,\x1f\n1,2\n"), 1, 2),
    "half a character": (_csv("id,v\n1,2\n3,4\n".encode("utf-16")[:-1] + b"\xd8", encoding="utf-16"), 1, 1),
    "escapes that are none": (_csv(b"id,v\n1,2\n\\N{x\\u12\n3,4\n", encoding="unicode_escape"), 1, 1),
    "a pattern as a name": (_named("x[ab]*.csv"), 1, 0),
    "SQL as a name": (_named("xa'); DROP TABLE raw;--.csv"), 1, 0),
    "a name of two lines": (_named("xa\n\x1b[2J.csv"), 1, 0),
    "folders that look like columns": (_folders_are_no_columns, 1, 0),
    "columns as Paceline calls its own": (
        _parquet(**{"id": [1, 2], "_row": [1, 2], "_file": [5, 6], '"; DROP TABLE kept;--': [1, 2], "": [0, 0]}),
        2,
        0,
    ),
    "NaN": (_parquet(id=[float("nan"), float("inf"), 1.0]), 3, 0),
}
REFUSED = {
    "only zero bytes": (_csv(b"\0" * 1_000_000), r"a\.csv does not begin with a line of text"),
    "a bomb without lines": (_packed([b"\0" * LONGEST_LINE] * 3), r"first line of .*a\.csv\.gz has more than 16,777"),
    "a million fields": (_csv(WIDE), r"a\.csv, line 3: it has 60,001 fields, and the schema 2"),
    "a line break of Macintosh": (_csv(b"id,v\r\n1,2\r\r\n5,6\r7,8\n"), r"a\.csv, line 2: a carriage return stands"),
    "an archive": (_archive, r"no row is left of"),
    "an encoding that cannot go on": (_csv(b"id,v\n1,2\n", encoding="idna"), r"encoding='idna' is not an encoding"),
    "an encoding that is none": (_csv(b"id,v\n1,2\n", encoding="undefined"), r"encoding='undefined' is not an"),
    "an encoding with a zero": (_csv(b"id,v\n1,2\n", encoding="a\0"), r"is not an encoding that Python has"),
    "a name that is no text": (_named(os.fsdecode(b"x\xff.csv")), r"is not UTF-8; rename the file"),
    "lists of lists": (_parquet(id=[[[1], [2, 3]]]), r"the column 'x' is of type list<.*which cannot be stored"),
    "lists of texts": (_parquet(id=[["a", "b"]]), r"the column 'x' is of type list<.*which cannot be stored"),
    "lists of structs": (_parquet(id=[[{"a": 1}]]), r"the column 'x' is of type struct.*which cannot be stored"),
    "nothing but nulls": (_parquet(id=pa.nulls(3)), r"no row is left of 3"),
    "a pipe": (_image(os.mkfifo), r"holds no images in a folder per class"),
    "a device": (_image(lambda path: path.symlink_to("/dev/zero")), r"holds no images in a folder per class"),
    "a folder as an image": (_image(Path.mkdir), r"holds no images in a folder per class"),
    "a huge image": (_image(_sparse), r"1\.png has more than 268,435,456 bytes"),
    "a shape beyond memory": (_idx(b"\0\0\x08\x03" + struct.pack(">III", 2, 1 << 31, 1 << 31)), "larger than the mem"),
    "255 dimensions": (_idx(b"\0\0\x08\xff" + b"\xff" * 1020), "is not an IDX file of bytes"),
    "no dimension": (_idx(b"\0\0\x08\0a"), "no labelled images"),
    "dimensions of 0": (_idx(b"\0\0\x08\x03" + struct.pack(">III", 2, 0, 0)), "no labelled images"),
    "a bomb of pixels": (_idx(gzip.compress(b"\0\0\x08\x02\0\0\0\2\0\0\0\2" + bytes(1 << 26)), "i.gz"), "is not an ID"),
    "damaged pixels": (_idx(gzip.compress(b"\0\0\x08\x01\0\0\0\2ab")[:-9] + bytes(9), "i.gz"), r"i\.gz cannot be read"),
    "a field that is always there": (_parquet(id=[1], filename=["a"]), r'adds column "filename"'),
}


@pytest.mark.parametrize("name", PREPARED)
def test_bad_lines_are_set_aside(name: str, tmp_path: Path) -> None:
    make, kept, rejected = PREPARED[name]
    account = prepare(make(tmp_path), tmp_path / "out", threads=1).account
    assert (account.kept, sum(account.rejected.values())) == (kept, rejected)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_prepared_is_refused(name: str, tmp_path: Path) -> None:
    make, says = REFUSED[name]
    with pytest.raises(DataError, match=says):
        prepare(make(tmp_path), tmp_path / "out", threads=1)
    assert not (tmp_path.parent / "out").exists()
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("form", [pa.ipc.new_file, pa.ipc.new_stream])
def test_damaged_arrow_files_are_refused_and_end_no_process(form: Callable[..., Any], tmp_path: Path) -> None:
    """Offsets that lead out of the file read anywhere in memory where they are believed."""
    chance, file = random.Random(1), tmp_path / "a.arrow"
    table = pa.table({"id": range(300), "s": [f"a{n}" for n in range(300)], "l": [[n] for n in range(300)]})
    with form(str(file), table.schema) as written:
        written.write_table(table)
    whole, refused = file.read_bytes(), 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(4):
            damaged[chance.randrange(8, len(whole))] = chance.randrange(256)
        size = chance.randrange(len(whole) // 2, len(whole) + 1) if chance.random() < 0.2 else len(whole)
        file.write_bytes(damaged[:size])
        source = Arrow(file)
        try:
            rows = sum(batch.num_rows for path in source.paths() for batch in source.batches(path))
        except DataError:
            refused += 1
        else:
            assert rows <= 300
    assert refused > 75


@pytest.mark.parametrize("place", ["unfinished", "train", "spool", "rows", "rejected", "manifest.json"])
def test_nothing_is_written_or_removed_through_a_link(place: str, tmp_path: Path) -> None:
    mine, out = tmp_path / "mine", tmp_path / "out"
    (mine / "spilled").mkdir(parents=True)
    for name in ("closed0.txt", "unpacked0.txt", "work.duckdb", "spilled/file"):
        (mine / name).write_text("mine")
    (out / "unfinished").mkdir(parents=True)
    if place == "unfinished":
        (out / "unfinished").rmdir()
    (out / place).symlink_to(mine)
    before = sorted(mine.rglob("*"))
    recipe = _csv(b"id,v\n1,2\n")(tmp_path)
    for use in (lambda: prepare(recipe, out), lambda: ingest(recipe, out, [tmp_path / "a.csv"])):
        with pytest.raises(DataError, match="is a link, and rows would be written to where it leads"):
            use()
    assert sorted(mine.rglob("*")) == before


def test_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    recipe = _csv(b"id,v\n1,2\n")(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "odd" / "unfinished").mkdir(parents=True)
    (tmp_path / "odd" / "unfinished" / "progress.json").write_text("[1]")
    for use in (lambda: prepare(recipe, tmp_path / "file"), lambda: ingest(recipe, tmp_path / "file", [])):
        with pytest.raises(DataError, match="is a file; give a folder"):
            use()
    assert prepare(recipe, tmp_path / "odd").account.kept == 1


# --- streams ---


def test_a_line_without_an_end_is_cut() -> None:
    blocks = [b"a\nb", b"x" * LONGEST_LINE, b"y" * LONGEST_LINE, b"z\nc\n", b"d"]
    first, second, *others = lines_of_blocks(iter(blocks))
    assert (first, len(second), others) == (b"a", LONGEST_LINE + 1, [b"c", b"d"])
    endless = (b"\0" * LONGEST_LINE for _ in iter(int, 1))
    assert len(next(lines_of_blocks(endless))) == LONGEST_LINE + 1


def test_long_lines_are_not_read_far_ahead() -> None:
    line = b"x" * (PART_BYTES // 8)
    taken: list[int] = []
    reader = InputReader("a", lambda: (taken.append(n) or line for n in range(10_000)), 1000)
    part = reader.take(60.0)
    reader.close()
    assert part is not None
    assert len(part.lines) >= 8
    assert len(taken) <= 3 * 8 + 2


@pytest.mark.parametrize("source", [Csv("-", TEXTS), JsonLines("-", TEXTS), Lines("-")], ids=lambda each: each.kind)
def test_lines_of_any_bytes_are_accounted_for(source: Csv | JsonLines | Lines, tmp_path: Path) -> None:
    chance = random.Random(2)
    lines = [chance.randbytes(chance.randrange(60)).replace(b"\n", b"").replace(b"\r", b"") for _ in range(300)]
    lines += [b'{"id": ' + b"[" * 20_000, b'{"id": 1e999, "v": "\\ud800"}', b"1," + b"x" * 100_000, b'1,"', b"=1,2"]
    lines = [line or b"-" for line in lines]
    name = "v" if not isinstance(source, Lines) else "line"
    account = ingest(Recipe(source, {"x": name}), tmp_path / "out", {"a": [b"id,v", *lines]}, rows=1000)
    assert account.balanced
    assert account.read in (len(lines), len(lines) + 1)
    wide = {"a": lambda taken: [(b"," if isinstance(source, Csv) else b"\x1e") * 60_000]}
    with pytest.raises(DataError, match=r"^a, in the lines from 307 on: .*line 1: it has 60,001 fields"):
        ingest(Recipe(source, {"x": name}), tmp_path / "out", wide, rows=1000)
