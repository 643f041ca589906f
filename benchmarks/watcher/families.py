"""Hold out one family at a time: how recall falls, and how well the probability is calibrated; writes families.json.

`python families.py FOLDER...` judges recordings twice: with the shipped tree, and with one that is fitted to the same
footprints (`learn.py`) but those of the recording's own family. Those of a family that is held out anyway are judged
with the shipped tree, whose calibration they measure. The shipped tree does not change.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from harness import write
from learn import export, learn, read
from traces import Program, load

from paceline.concurrency.watcher import judge

BINS = 5


class Claim(NamedTuple):
    """With which probability a hang is claimed of a footprint, whether the program hangs, and how much this counts."""

    probability: float
    hangs: bool
    weight: float


def claims(program: Program) -> Iterator[Claim]:
    """Iterate over what is claimed of the footprints of a recording; together they count as one."""
    footprints = list(program.footprints())
    for each in footprints:
        scores = judge.probabilities(each)
        yield Claim(scores["deadlocked"] + scores["stopped"], program.hangs, 1 / len(footprints))


def calibration(found: list[Claim]) -> dict[str, Any]:
    """Return the Brier score, the expected calibration error, and of each bin the mean claim and the share of hangs."""
    total = sum(each.weight for each in found)
    bins = [[c for c in found if min(int(c.probability * BINS), BINS - 1) == number] for number in range(BINS)]
    rows = [_bin(each) for each in bins if each]
    error = sum(row["recordings"] * abs(row["claimed"] - row["hang"]) for row in rows) / total
    return {
        "footprints": len(found),
        "brier": round(sum(c.weight * (c.probability - c.hangs) ** 2 for c in found) / total, 4),
        "expected error": round(error, 4),
        "bins": [{name: round(value, 3) for name, value in row.items()} for row in rows],
    }


def _bin(found: list[Claim]) -> dict[str, float]:
    weight = sum(each.weight for each in found)
    claimed = sum(each.weight * each.probability for each in found) / weight
    return {"recordings": weight, "claimed": claimed, "hang": sum(c.weight * c.hangs for c in found) / weight}


def reported(programs: list[Program]) -> int:
    """Return how many recordings are reported, by the present tree."""
    return sum(bool(program.trace.judge()) for program in programs)


def main() -> None:
    """Print and write the table."""
    fitted = read()
    families: dict[str, list[Program]] = defaultdict(list)
    for program in (program for folder in sys.argv[1:] for program in load(Path(folder))):
        families[program.family].append(program)
    table: dict[str, Any] = {}
    for family, programs in sorted(families.items()):
        rest = [recorded for label, recorded in fitted.items() if label.partition(".")[0] != family]
        with patch.object(judge, "_tree", partial(dict, export(learn(rest)))):
            without = reported(programs)
        kind = "hang" if programs[0].hangs else "do not hang"
        row = {"kind": kind, "recordings": len(programs), "shipped tree": reported(programs), "held out": without}
        table[family] = row
        sys.stdout.write(f"{family:18}" + "  ".join(f"{name}: {value}" for name, value in row.items()) + "\n")
    total = {
        kind: {key: sum(f[key] for f in table.values() if f["kind"] == kind) for key in list(row)[1:]}
        for kind in ("hang", "do not hang")
    }
    unseen = [p for programs in families.values() for p in programs if p.split in ("held out", "reported")]
    told = {"total": total, "calibration on held-out families": calibration([c for p in unseen for c in claims(p)])}
    write({**told, "families": table}, "families.json")
    sys.stdout.write(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
