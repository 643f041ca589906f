"""Lines in which a quote is not closed are set aside one by one, and hide no other line."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from paceline.training.preparation.duckdb_reading import write_closed
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Csv

pytest.importorskip("duckdb")


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
