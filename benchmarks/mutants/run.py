"""Draws mutants of the code, and finds which tests kill them.

python benchmarks/mutants/run.py FOLDER --mutants 200 --select tests
python benchmarks/mutants/run.py FOLDER --mutants 200 --select 'tests -m "not soak"' --then tests
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from mapping import Map, make_map
from mutations import Mutant, draw
from trying import run_tests, take_tree

PACKAGE = "src/paceline"
PARTS = ("algorithms", "runtime/engines", "runtime/backend", "kernels")
STARTING = 60.0  # seconds that a run of pytest may take besides its tests
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what is known is kept there, and not done again")
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", default=PARTS, help=f"folders or files of {PACKAGE} that get mutants")
    parser.add_argument("--select", default="tests", help="pytest's arguments for the tests that are tried")
    parser.add_argument("--then", help="those for the tests that survivors are tried on, besides")
    parser.add_argument("--jobs", type=int, default=1, choices=(1, 2))
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of tests that one mutant is tried on")
    parser.add_argument("--patience", type=float, default=1.0, help="how many times longer a test may take")
    parser.add_argument("--confirm", action="store_true", help="run the test that killed a mutant without it, too")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tree = folder / "tree"
    take_tree(tree)
    mutants = draw(tree, [f"{PACKAGE}/{part}" for part in options.parts], options.seed, options.mutants)
    tests = make_map(folder / "select.json", tree, shlex.split(options.select))
    how = options.budget, options.patience, options.confirm
    survived = Trial(folder, "select", tests, *how).run(mutants, range(len(mutants)), options.jobs)
    if options.then:
        rest = make_map(folder / "then.json", tree, shlex.split(options.then), [*tests.seconds, *tests.unfit])
        Trial(folder, "then", rest, *how).run(mutants, survived, options.jobs)


@dataclass
class Trial:
    """Mutants tried on one selection of tests."""

    folder: Path
    stage: str  # "select" or "then"
    tests: Map
    budget: float
    patience: float
    confirm: bool

    def run(self, mutants: Sequence[Mutant], numbers: Iterable[int], jobs: int) -> list[int]:
        """The numbers of those that no test has killed."""
        known, wanted = self._known(mutants), list(numbers)
        trees = Queue[Path]()
        for job in range(jobs):
            own = self.folder / f"tree-{job}"
            shutil.rmtree(own, ignore_errors=True)  # a mutant may be left in it
            trees.put(shutil.copytree(self.folder / "tree", own))
        with ThreadPoolExecutor(jobs) as pool:
            todo = [number for number in wanted if number not in known]
            for number, row in zip(todo, pool.map(lambda number: self._try(mutants[number], trees), todo), strict=True):
                known[number] = {"mutant": number, "stage": self.stage, **row}
                with (self.folder / "result.jsonl").open("a") as file:
                    file.write(json.dumps(known[number]) + "\n")
                print(told(known[number]), flush=True)
        rows = [known[number] for number in wanted]
        print(f"{self.stage}: {len(rows)} mutants, {len(self.tests.seconds)} tests: {counted(rows)}")
        return [row["mutant"] for row in rows if row["verdict"] not in KILLED]

    def _known(self, mutants: Sequence[Mutant]) -> dict[int, Row]:
        file = self.folder / "result.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        known = {row["mutant"]: row for row in rows if row["stage"] == self.stage and row["mutant"] < len(mutants)}
        for number, row in known.items():
            if (row["file"], row["line"], row["after"]) != (*mutants[number][:2], mutants[number].after):
                raise SystemExit(f"{file} holds other mutants: of another seed, or other parts; give another folder")
        return known

    def _try(self, mutant: Mutant, trees: Queue[Path]) -> Row:
        begun, noticing, chosen, spent = time.monotonic(), self.tests.tests(mutant), dict[str, float](), 0.0
        for test in noticing:
            spent += self.tests.seconds[test]
            if spent > self.budget:
                break
            chosen[test] = self.patience * (10 + 5 * self.tests.seconds[test])
        row = {"verdict": "uncovered", "by": "", "ran": 0, "of": len(noticing)}
        if chosen:
            tree = trees.get()
            try:
                row |= self._verdict(tree, mutant, chosen, self.patience * (STARTING + 3 * spent))
                if self.confirm and row["verdict"] in KILLED and self._fails_anyway(tree, str(row["by"]), chosen):
                    row["verdict"] = "unsure"
            finally:
                trees.put(tree)
        facts = {name: getattr(mutant, name) for name in ("file", "line", "kind", "before", "after")}
        return {**row, "seconds": round(time.monotonic() - begun, 1), **facts}

    def _verdict(self, tree: Path, mutant: Mutant, chosen: dict[str, float], limit: float) -> Row:
        place = tree / mutant.file
        source = place.read_bytes()
        files = sorted({test.partition("::")[0] for test in chosen})
        place.write_bytes(mutant.apply(source))
        try:
            ran = run_tests(tree, ["-x", *files], {"only": chosen}, limit)
        finally:
            place.write_bytes(source)
        if ran.overdue:
            return {"verdict": "timeout", "by": ran.overdue}
        for test, (_, outcome) in ran.tests.items():
            if outcome in ("failed", "timeout"):
                return {"verdict": "killed" if outcome == "failed" else outcome, "by": test, "ran": len(ran.tests)}
        if not ran.tests:  # not even a report: the process has died
            return {"verdict": "killed", "by": f"pytest ended: {ran.said[-300:]}"}
        return {"verdict": "survived", "ran": len(ran.tests)}

    def _fails_anyway(self, tree: Path, test: str, chosen: dict[str, float]) -> bool:
        if test not in chosen:  # not even the tests' files could be read: no matter of chance
            return False
        ran = run_tests(tree, [test.partition("::")[0]], {"only": {test: chosen[test]}}, STARTING + chosen[test])
        return ran.tests.get(test, (0, "timeout"))[1] != "passed"


KILLED = ("killed", "timeout")


def told(row: Row) -> str:
    by = row["by"] or f"{row['ran']} of {row['of']} tests"
    what = f"{row['kind']}: {row['before']} -> {row['after']}"
    return f"{row['mutant']:>4} {row['verdict']:<9} {row['seconds']:>6} s  {row['file']}:{row['line']} {what}  [{by}]"


def counted(rows: Sequence[Row]) -> str:
    kinds = Counter(row["verdict"] for row in rows)
    dead = sum(kinds[word] for word in KILLED)
    part = sum(row["verdict"] == "survived" and row["ran"] < row["of"] for row in rows)
    words = ", ".join(f"{count} {word}" for word, count in sorted(kinds.items()))
    return f"{dead} of {len(rows)} killed ({words}; {part} survivors not tried on all tests that run them)"


if __name__ == "__main__":
    main()
