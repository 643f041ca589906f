"""Walks a small world of every plan in every order, with one death at any point, and prints what was found.

python benchmarks/explorer/run.py [--only WORDS]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from paceline.interfaces.testing.conformance import PLANS
from paceline.planning.explain.small_worlds import walk_plan
from paceline.plans.methods.views import Words
from paceline.plans.plan import Plan

HERE = Path(__file__).parent
OTHERS = ("ceiling", "ddp")  # which the conformance suite does not run


def walked(plan: Plan) -> dict[str, Any]:
    """Walk a plan's small world; return its row."""
    start = time.process_time()
    world = walk_plan(plan)
    if world is None:
        claim = plan.method.claim(plan.workers)
        found = claim.text if isinstance(claim, Words) else "too many workers"
        return {"plan": str(plan), "world": "not walked", "states": 0, "moves": 0, "seconds": 0.0, "found": found}
    found = "nothing" if world.explored.story is None else world.explored.story.splitlines()[-1]
    seconds = round(time.process_time() - start, 2)
    figures = {"states": world.explored.states, "moves": world.explored.moves, "seconds": seconds}
    return {"plan": str(plan), "world": world.size, **figures, "found": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="walk the plans whose text has these words")
    options = parser.parse_args()
    plans = [member.plans()[-1] for member in PLANS] + [Plan.parse(name, 2) for name in OTHERS]
    print("| plan | small world | states | moves | s of CPU | found |\n|---|---|---|---|---|---|")
    rows = []
    for plan in plans:
        if options.only in str(plan):
            rows.append(row := walked(plan))
            cells = (f"{row['states']:,}", f"{row['moves']:,}", f"{row['seconds']:.2f}")
            print(f"| `{row['plan']}` | {row['world']} | {' | '.join(cells)} | {row['found']} |", flush=True)
    if not options.only:
        (HERE / "result.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(row["found"] != "nothing" for row in rows if row["states"]))


if __name__ == "__main__":
    sys.exit(main())
