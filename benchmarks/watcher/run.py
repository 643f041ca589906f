"""Judge recordings, and print what is noticed beside simple rules: `python run.py FOLDER...`; writes result.json."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from catalogue import MPIEXEC, TORCHRUN
from harness import write
from traces import TRACES, Program, load

IN_TIME = 15.0  # seconds
SETTINGS = (5.0, 10.0, 40.0, 120.0)  # seconds, of the simple rules; a hang is recorded for the shorter ones only
#: With so many expected events none is seen in one of twenty cases.
NONE_IN_TWENTY = 3.0


def row(programs: list[Program]) -> dict[str, object]:
    """Return the figures of recordings that are alike."""
    reports = [(program, program.trace.judge()) for program in programs]
    noticed = [(program, found[0]) for program, found in reports if found]
    hangs = [program for program in programs if program.hangs]
    figures: dict[str, object] = {
        "recordings": len(programs),
        "programs": len({program.name for program in programs}),
        "hours": round(sum(program.seconds for program in programs) / 3600, 2),
        "reported": len(noticed),
    }
    if hangs:
        figures["within 15 s"] = sum(report.span.seconds <= IN_TIME for _, report in noticed)
        for kind, collective in (("right cause of collectives", True), ("right cause of the rest", False)):
            right = [p.cause_is_right(r) for p, r in noticed if (p.family in TORCHRUN | MPIEXEC) == collective]
            figures[kind] = f"{sum(right)} of {len(right)}"
        figures["wrong cause"] = sorted({p.label for p, report in noticed if not p.cause_is_right(report)})
        figures["missed"] = sorted(program.label for program, found in reports if not found)
    else:
        figures["false alarms"] = sorted(program.label for program, _ in noticed)
        if not noticed:
            hours = sum(program.seconds for program in programs) / 3600
            figures["upper 95% bound"] = f"one in {hours / NONE_IN_TWENTY:.2f} hours"
    for seconds in SETTINGS:
        figures[f"below 1% for {seconds:g} s"] = sum(program.idles(seconds) for program in programs)
        figures[f"no output for {seconds:g} s"] = sum(program.silent(seconds) for program in programs)
    return figures


def main() -> None:
    """Print and write the table."""
    groups: dict[str, list[Program]] = defaultdict(list)
    left_out: list[str] = []
    for folder in sys.argv[1:] or [TRACES]:
        for program in load(Path(folder)):
            if program.hangs and program.imports and not program.trace.judge():
                left_out.append(program.label)
                continue
            kind = "hang" if program.hangs else "do not hang"
            groups[f"{program.split}, {kind}"].append(program)
            groups[f"all, {kind}"].append(program)
            groups[program.family].append(program)
    table = {name: row(programs) for name, programs in sorted(groups.items())}
    table["left out: still importing at the end"] = {"recordings": sorted(left_out)}
    write(table)
    for name, figures in table.items():
        sys.stdout.write(f"{name:24}" + "  ".join(f"{k}: {v}" for k, v in figures.items() if v != []) + "\n")


if __name__ == "__main__":
    main()
