"""Two million rows of Parquet: bad rows out, duplicates out, shuffled by a hash of the key, written; with each peer.

Every program is written as its documentation suggests. It gives what a training needs and no account: the rows that
break the rule are lost, except by Paceline and by the first of the two programs of DuckDB.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cost import measured
from harness import in_turn, median

FLOATS = [f"f{number}" for number in range(16)]
FIELDS = ", ".join(FLOATS)
RECIPE = f"""
import paceline
recipe = paceline.Recipe(
    paceline.Parquet("rows.parquet"), {{"x": {FLOATS}, "y": "y"}}, {{"f0 is in range": "f0 BETWEEN -3 AND 3"}}, "id")
"""
#: What Paceline does, by hand: bad rows set aside, the first of rows with one key, ordered by a hash.
DUCKDB = f"""
import duckdb
c, rows = duckdb.connect(), "read_parquet('rows.parquet', file_row_number=true)"
c.execute("SET threads = 2")
c.execute(f"COPY (FROM {{rows}} WHERE NOT coalesce(f0 BETWEEN -3 AND 3, false)) TO 'bad.parquet'")
c.execute(f'''COPY (SELECT {FIELDS}, y FROM (FROM {{rows}} WHERE f0 BETWEEN -3 AND 3
    QUALIFY row_number() OVER (PARTITION BY id ORDER BY file_row_number) = 1) ORDER BY md5(concat(id, '0')))
    TO 'out.parquet' ''')
"""
PEERS = {
    "DuckDB, without an account": f"""
import duckdb
duckdb.execute("SET threads = 2")
duckdb.execute('''COPY (SELECT {FIELDS}, y FROM (SELECT DISTINCT ON (id) * FROM 'rows.parquet'
    WHERE f0 BETWEEN -3 AND 3) ORDER BY md5(concat(id, '0'))) TO 'out.parquet' ''')
""",
    "Polars": """
import polars as p
rows = p.scan_parquet("rows.parquet").filter(p.col("f0").is_between(-3, 3)).unique("id", keep="first")
rows.sort(p.col("id").hash(0)).drop("id").collect().write_parquet("out.parquet")
""",
    "Daft": """
import daft
rows = daft.read_parquet("rows.parquet").where((daft.col("f0") >= -3) & (daft.col("f0") <= 3)).distinct("id")
rows.sort(daft.col("id").hash()).exclude("id").write_parquet("out-daft")
""",
    "Dask": """
import dask.dataframe as d
rows = d.read_parquet("rows.parquet", split_row_groups=4)
rows = rows[rows.f0.between(-3, 3)].drop_duplicates(subset=["id"], split_out=8)
rows["place"] = rows.id.map_partitions(lambda part: __import__("pandas").util.hash_pandas_object(part, index=False),
    meta=("place", "uint64"))
rows.sort_values("place").drop(columns=["id", "place"]).to_parquet("out-dask")
""",
    "Ray Data": """
import ray
ray.init(num_cpus=2, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = ray.data.read_parquet("rows.parquet", override_num_blocks=8).filter(expr="f0 >= -3 and f0 <= 3")
rows.random_shuffle(seed=0).drop_columns(["id"]).write_parquet("out-ray")
""",
    "Spark": """
from pyspark.sql import SparkSession, functions as f
s = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 8).getOrCreate()
rows = s.read.parquet("rows.parquet").where("f0 BETWEEN -3 AND 3").dropDuplicates(["id"])
rows.orderBy(f.md5(f.concat(f.col("id"), f.lit("0")))).drop("id").write.parquet("out-spark")
""",
}


def write(file: Path, rows: int) -> None:
    """Write 16 columns of floats, a label, and a key of which one in a hundred is doubled."""
    chance, writer = np.random.default_rng(0), None
    for first in range(0, rows, 500_000):
        ids = np.arange(first, min(rows, first + 500_000))
        ids[chance.random(len(ids)) < 0.01] -= 1
        columns = {"id": ids} | {name: chance.normal(size=len(ids)).astype(np.float32) for name in FLOATS}
        table = pa.table(columns | {"y": chance.integers(0, 2, len(ids))})
        writer = writer or pq.ParquetWriter(file, table.schema)
        writer.write_table(table, row_group_size=100_000)
    assert writer is not None
    writer.close()


def paceline(python: str, out: str, *options: str) -> list[str]:
    return [python, "-m", "paceline", "prepare", "recipe.py", "-o", out, *options]


def measure(folder: Path, python: str, peers: str, names: Sequence[str] = (), rounds: int = 3) -> dict[str, Any]:
    """Return seconds and CPU seconds of each program: medians of rounds in which all take turns."""
    write(folder / "rows.parquet", 2_000_000)
    (folder / "recipe.py").write_text(RECIPE)
    programs = {"DuckDB, bare": [python, "-c", DUCKDB]}
    programs |= {name: [peers, "-W", "ignore", "-c", PEERS[name]] for name in names or PEERS}
    programs = {"Paceline": paceline(python, "out-paceline", "--threads", "2"), **programs}

    def cost(name: str) -> dict[str, Any]:
        for left in folder.glob("out-*"):
            shutil.rmtree(left)
        found = measured(programs[name], folder)
        print(json.dumps({name: found}), flush=True)
        return found

    taken = in_turn({name: partial(cost, name) for name in programs}, rounds)
    found = {name: {what: median(one[what] for one in each) for what in each[0]} for name, each in taken.items()}
    ratios = [a["cpu s"] / b["cpu s"] for a, b in zip(taken["Paceline"], taken["DuckDB, bare"], strict=True)]
    return {"rows": 2_000_000, "rounds": rounds, "programs": found, "CPU of Paceline over bare DuckDB": ratios}
