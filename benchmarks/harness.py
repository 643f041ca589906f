"""What benchmarks share: a corpus in one file, rounds in turn, figures with machine and command, tables of a README.

A benchmark is run as a file, `python benchmarks/NAME/run.py`; what it writes goes into the folder of that file.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from paceline.runtime.runs.record import this_machine
from paceline.runtime.runs.schema import to_dict

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")
HEAD = "##### "  # begins a program of a corpus
COLUMNS = 120
#: Of the benchmark that runs: its figures and its README are there.
FOLDER = Path(sys.argv[0]).resolve().parent


# --- figures ---


def write(figures: dict[str, Any], name: str = "result.json", folder: Path = FOLDER, print_path: bool = True) -> None:
    """Write figures with machine, date and command."""
    record = {
        "command": "python " + " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "machine": to_dict(this_machine()),
        **figures,
    }
    (folder / name).write_text(laid_out(json.loads(json.dumps(record))) + "\n")
    if print_path:
        print(f"written to {folder / name}")


def read(name: str = "result.json") -> dict[str, Any]:
    """The figures of the last time; nothing if there are none."""
    file = FOLDER / name
    return dict(json.loads(file.read_text())) if file.exists() else {}


def laid_out(value: Any, indent: int = 0) -> str:
    """JSON in which what fits is on one line; what is longer fills lines with its numbers and words."""
    line = json.dumps(value)
    if len(line) + indent <= COLUMNS or not isinstance(value, (dict, list)):
        return line
    begin, end = line[0], line[-1]
    items = value.items() if isinstance(value, dict) else [("", each) for each in value]
    rows, is_open = list[str](), False
    for name, each in items:
        part = (f"{json.dumps(name)}: " if begin == "{" else "") + laid_out(each, indent + 1)
        is_group = isinstance(each, dict) or "\n" in part
        if is_open and not is_group and len(rows[-1]) + len(part) + indent < COLUMNS:
            rows[-1] += f", {part}"
        else:
            rows.append(part)
        is_open = not is_group
    margin = "\n" + " " * indent
    return begin + margin + " " + f",{margin} ".join(rows) + margin + end


def rows_of(name: str, keys: Iterable[Any], measure: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for every key: those that a file of lines has, and the others as they are measured and added to it.

    A long measurement that was interrupted thus goes on where it was.
    """
    file = FOLDER / name
    rows = lines_of(file)
    known = {json.dumps(row["key"]) for row in rows}
    for key in keys:
        if json.dumps(key) not in known:
            rows.append({"key": key, **measure(key)})
            add_line(file, rows[-1])
    return rows


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def add_line(file: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a file of JSON lines."""
    with file.open("a") as lines:
        lines.write(json.dumps(row) + "\n")


# --- rounds ---


def in_turn(
    ways: Mapping[Name, Callable[[], Result]], rounds: int, warm_up: int = 0, to_and_fro: bool = False
) -> dict[Name, list[Result]]:
    """The results of every way, round after round, so that what disturbs one of them disturbs all alike.

    The first `warm_up` rounds do not count; with `to_and_fro` every second round goes backwards.
    """
    results: dict[Name, list[Result]] = {name: [] for name in ways}
    for number in range(-warm_up, rounds):
        for name in reversed(ways) if to_and_fro and number % 2 else ways:
            result = ways[name]()
            if number >= 0:
                results[name].append(result)
    return results


def seconds(do: Callable[[], object]) -> float:
    """The seconds of one call."""
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def median(values: Iterable[float], digits: int | None = None) -> float:
    """The median, rounded to so many digits."""
    return statistics.median(values) if digits is None else round(statistics.median(values), digits)


def spread(values: Iterable[float]) -> list[float]:
    """The least and the greatest."""
    ordered = sorted(values)
    return [ordered[0], ordered[-1]]


#: Two-sided 95% quantiles of Student's t, by degrees of freedom.
STUDENT = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95% interval; not a number where one value says nothing of it."""
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    quantile = STUDENT[min(len(values), len(STUDENT)) - 1]
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep so many cores busy with another program until the block ends."""
    pool = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in pool:
            process.kill()
            process.wait()


# --- pages ---


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown; a column whose name ends with a colon is aligned to the right."""
    names = [name.rstrip(":") for name in header]
    rules = ["---:" if name.endswith(":") else "---" for name in header]
    lines = [" | ".join(map(str, row)) for row in (names, rules, *rows)]
    return "".join(f"| {line} |\n" for line in lines)


def into_page(text: str, mark: str = "table", page: Path = FOLDER / "README.md") -> None:
    """Put a text between `<!-- mark -->` and `<!-- end of mark -->` of a page."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    before, _, rest = page.read_text().partition(begin)
    page.write_text(before + begin + text + end + rest.partition(end)[2])


# --- corpora ---


def corpus(file: Path) -> dict[str, str]:
    """The programs of a corpus by their names: each follows a line `##### NAME`."""
    programs: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in file.read_text().splitlines(keepends=True):
        if line.startswith(HEAD):
            lines = programs.setdefault(line.removeprefix(HEAD).rstrip("\n"), [])
        else:
            lines.append(line)
    return {name: "".join(lines) for name, lines in programs.items()}


def unpack(file: Path, into: Path) -> Path:
    """Write the programs of a corpus as files of a folder."""
    for name, text in corpus(file).items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return into
