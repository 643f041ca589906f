"""Files that cannot be relied on, a full disk, no Java: what `paceline prepare` says of each, and its exit code."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CSV = b"id,v\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(100_000))
RECIPE = """
import paceline
recipe = paceline.Recipe({source}, {{"id": "id"}}, {rules})
"""
TEXT, PARQUET = 'paceline.Csv("*.csv*", {"id": "int", "v": "int"})', 'paceline.Parquet("*.parquet")'


def _parquet(path: Path, table: dict[str, Any]) -> None:
    pq.write_table(pa.table(table), path)


def truncated_parquet(folder: Path) -> None:
    _parquet(folder / "a.parquet", {"id": range(1000)})
    (folder / "a.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-500])


def truncated_gzip(folder: Path) -> None:
    (folder / "a.csv.gz").write_bytes(gzip.compress(CSV)[:-2000])


def flipped_gzip(folder: Path) -> None:
    raw = bytearray(gzip.compress(CSV))
    raw[len(raw) // 2] ^= 16
    (folder / "a.csv.gz").write_bytes(raw)


def other_header(folder: Path) -> None:
    (folder / "a.csv").write_bytes(CSV)
    (folder / "b.csv").write_bytes(b"v,id\n1,2\n")


def other_schema(folder: Path) -> None:
    _parquet(folder / "a.parquet", {"id": range(10)})
    _parquet(folder / "b.parquet", {"name": ["x"]})


def stray_file(folder: Path) -> None:
    _parquet(folder / "a.parquet", {"id": range(10)})
    (folder / "b.parquet").write_text('{"id": 1, "and": "so on"}')


def good(folder: Path) -> None:
    (folder / "a.csv").write_bytes(CSV)


#: What makes the files, the source, the rules, the options, and what of the environment is changed.
FAULTS: dict[str, tuple[Callable[[Path], None], str, str, list[str]]] = {
    "truncated Parquet": (truncated_parquet, PARQUET, "{}", []),
    "truncated gz": (truncated_gzip, TEXT, "{}", []),
    "flipped bit in gz": (flipped_gzip, TEXT, "{}", []),
    "a CSV whose fields have moved": (other_header, TEXT, "{}", []),
    "a Parquet file with other fields": (other_schema, PARQUET, "{}", []),
    "a stray file": (stray_file, PARQUET, "{}", []),
    "a rule that rejects everything": (good, TEXT, '{"impossible": "id < 0"}', []),
    "disk full": (good, TEXT, "{}", []),
    "no Java": (good, TEXT, "{}", ["--engine", "spark"]),
}


def measure(folder: Path) -> dict[str, Any]:
    """Return for each fault the exit code and the sentence; and what `--verify` says of a flipped bit."""
    return {name: one(folder / f"fault{at}", name) for at, name in enumerate(FAULTS)} | {
        "flipped bit in a shard": flipped_shard(folder / "flipped")
    }


def one(folder: Path, name: str) -> dict[str, Any]:
    make, source, rules, options = FAULTS[name]
    folder.mkdir()
    make(folder)
    (folder / "recipe.py").write_text(RECIPE.format(source=source, rules=rules))
    command = [sys.executable, "-m", "paceline", "prepare", "recipe.py", "-o", "out", *options]
    if name == "disk full":
        (folder / "out").mkdir()
        small = "mount -t tmpfs -o size=200k none out && exec " + " ".join(command)
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", small]
    environment = {**os.environ, "PATH": str(folder)} if name == "no Java" else dict(os.environ)
    environment.pop("JAVA_HOME", None)
    return said(command, folder, environment) | {"no folder of shards": not (folder / "out/manifest.json").exists()}


def flipped_shard(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    good(folder)
    (folder / "recipe.py").write_text(RECIPE.format(source=TEXT, rules="{}"))
    said([sys.executable, "-m", "paceline", "prepare", "recipe.py", "-o", "out"], folder, dict(os.environ))
    shard = folder / "out/train/00000.id.bin"
    raw = bytearray(shard.read_bytes())
    raw[1000] ^= 1
    shard.write_bytes(raw)
    return said([sys.executable, "-m", "paceline", "data", "out", "--verify"], folder, dict(os.environ))


def said(command: list[str], folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Return a command's exit code, and what it said without the name of its folder."""
    done = subprocess.run(
        command, cwd=folder, env={**environment, "COLUMNS": "400"}, capture_output=True, text=True, check=False
    )
    return {"exit code": done.returncode, "said": done.stderr.strip().replace(f"{folder}/", "").splitlines()}
