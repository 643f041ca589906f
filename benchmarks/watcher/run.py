"""Judge the recorded programs and print what is noticed, by family, beside two simple rules; writes result.json."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

from traces import Program, load

from paceline.watcher.classifier import probabilities

RESULT = Path(__file__).parent / "result.json"
QUIET = 10.0  # seconds, of the simple rules


def row(programs: list[Program]) -> dict[str, object]:
    """Return the figures of some programs that are alike."""
    reports = {program.name: program.trace.judge() for program in programs}
    noticed = [program for program in programs if reports[program.name]]
    footprints = [(program.verdict, probabilities(each)) for program in programs for each in program.footprints()]
    return {
        "programs": len(programs),
        "reported": len(noticed),
        "right cause": sum(program.cause_is_right(reports[program.name][0]) for program in noticed if program.hangs),
        "missed": [program.name for program in programs if program.hangs and program not in noticed],
        "false alarms": [program.name for program in noticed if not program.hangs],
        "idle 10 s": sum(program.idles(QUIET) for program in programs),
        "silent 10 s": sum(program.silent(QUIET) for program in programs),
        "footprints": len(footprints),
        "right verdict": sum(max(scores, key=lambda v: scores[v]) == verdict for verdict, scores in footprints),
        "mean probability of the verdict": round(
            sum(scores[verdict] for verdict, scores in footprints) / max(len(footprints), 1), 3
        ),
    }


def main() -> None:
    """Print and write the table."""
    groups: dict[str, list[Program]] = defaultdict(list)
    for program in load():
        kind = "hang" if program.hangs else "do not hang"
        groups[f"{'held out' if program.held_out else 'learned'}, {kind}"].append(program)
        groups[program.family].append(program)
    table = {name: row(programs) for name, programs in groups.items()}
    RESULT.write_text(json.dumps(table, indent=1) + "\n")
    for name, figures in table.items():
        sys.stdout.write(f"{name:24}" + "  ".join(f"{k}: {v}" for k, v in figures.items() if v != []) + "\n")


if __name__ == "__main__":
    main()
