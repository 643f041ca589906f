"""Records short runs with one state of the code, and says whether another state computes the same bits.

python benchmarks/same_bits/run.py record FOLDER     train every case; keep each run's folder
python benchmarks/same_bits/run.py compare FOLDER    train again what has an order, replay everything
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import jobs
import torch
from cases import all_cases

import paceline as pl

HERE = Path(__file__).parent
cloudpickle.register_pickle_by_value(jobs)  # so that a folder's job needs no file of this benchmark
SAME, REPLAYS, REFUSED, DIFFERS, SKIPPED = "same", "replays", "refused", "DIFFERS", "-"
OF_A_VERSION = re.compile(r"schema|version|format", re.IGNORECASE)  # what a refusal for the folder's age speaks of
FIGURES = ("seconds", "bytes_sent", "staleness", "deaths")  # of a summary; as fixed as the bits on the virtual clock


class Verdict(NamedTuple):
    word: str
    why: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="cases whose name this regular expression is found in")
    parser.add_argument("--alone", action="store_true", help="replay from the folders alone, with the jobs they keep")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.what == "record":
        return record(options.folder, options.only)
    return compare(options.folder, options.only, options.alone)


def record(folder: Path, only: str) -> int:
    """What the folder holds already is left as it is."""
    file = folder / "cases.json"
    done: dict[str, Any] = json.loads(file.read_text())["cases"] if file.exists() else {}
    for case in all_cases():
        if case.name in done or not re.search(only, case.name):
            continue
        begun = time.monotonic()
        run = train(case.as_dict(), folder / case.name)
        assert run.path is not None
        assert run.summary()["compute"] == case.compute, f"{case.name} was computed by {run.summary()['compute']}"
        done[case.name] = {**case.as_dict(), "run": str(run.path.relative_to(folder)), **outcome(run)}
        file.write_text(json.dumps({"versions": versions(), "cases": done}, indent=1) + "\n")
        print(f"{len(done):>3} {case.name}  {time.monotonic() - begun:.1f} s", flush=True)
    kinds = Counter(f"{case['engine']}, {'in order' if case['fixed'] else 'in any order'}" for case in done.values())
    print(f"{len(done)} runs in {folder}: {told(kinds)}")
    return 0


def compare(folder: Path, only: str, alone: bool) -> int:
    """1 where anything differs."""
    recorded = json.loads((folder / "cases.json").read_text())
    if recorded["versions"] != versions():
        print(f"recorded with {recorded['versions']}, now {versions()}: that alone may change bits")
    cases = {name: case for name, case in recorded["cases"].items() if re.search(only, name)}
    width, trained, replayed = max(map(len, cases), default=0), Counter[str](), Counter[str]()
    print(f"{'case':<{width}}  {'trained':<8} {'replayed':<8}")
    for name, case in cases.items():
        again = judged(trained_again if case["fixed"] else trained_anew, case)
        old = judged(replayed_again, case, folder / case["run"], alone) if case["replays"] else Verdict(SKIPPED)
        trained[again.word] += 1
        replayed[old.word] += 1
        print(f"{name:<{width}}  {again.word:<8} {old.word:<8} {again.why} {old.why}".rstrip(), flush=True)
    print(f"{len(cases)} cases; trained again: {told(trained)}; replayed: {told(replayed)}")
    return int(DIFFERS in trained or DIFFERS in replayed)


def train(case: dict[str, Any], folder: Path) -> pl.Run:
    world = {**case["world"], "deaths": dict(case["world"].get("deaths", ()))}
    return pl.train(
        jobs.JOBS[case["job"]](), case["plan"].replace("{here}", str(HERE)), engine=case["engine"], folder=folder,
        compute=case["compute"], max_updates=case["updates"], world=pl.World(**world) if case["world"] else None,
    )  # fmt: skip


def outcome(run: pl.Run) -> dict[str, Any]:
    """What a run with an order gives each time."""
    summary = run.summary()
    wanted = FIGURES if summary["engine"] == "virtual" else ()
    scores = [{key: value for key, value in each.items() if key != "seconds"} for each in run.history]
    return {
        "parameters_sha256": summary["parameters_sha256"],
        "figures": {key: summary[key] for key in wanted},
        "scores": scores,
    }


def trained_again(case: dict[str, Any]) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(train(case, Path(folder)))
    wrong = [f"{key} is {found[key]}, was {case[key]}" for key in found if found[key] != case[key]]
    return Verdict(DIFFERS, "; ".join(wrong)) if wrong else Verdict(SAME)


def trained_anew(case: dict[str, Any]) -> Verdict:
    """A run that has an order of its own each time is compared with its own replay."""
    with tempfile.TemporaryDirectory() as folder:
        return Verdict(REPLAYS if pl.replay(train(case, Path(folder))).matches else DIFFERS)


def replayed_again(case: dict[str, Any], run: Path, alone: bool) -> Verdict:
    found = pl.replay(run, job=None if alone else jobs.JOBS[case["job"]]())
    if found.matches and found.parameters_sha256 == case["parameters_sha256"]:
        return Verdict(SAME)
    return Verdict(DIFFERS, f"replayed to {found.parameters_sha256}, was {case['parameters_sha256']}")


def judged(compute: Callable[..., Verdict], *given: Any) -> Verdict:
    """What was raised counts as a difference, but for a refusal of a folder of another version."""
    try:
        return compute(*given)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        refused = getattr(error, "exit_code", 1) == 2 and OF_A_VERSION.search(str(error))
        if not hasattr(error, "exit_code"):  # which all of Paceline's own have
            traceback.print_exc()
        return Verdict(REFUSED if refused else DIFFERS, why)


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}


def told(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
