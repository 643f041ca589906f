"""How many histories of a cluster, drawn from seeds, break a promise: python benchmarks/simulation/run.py --seconds 480

The seeds are run in blocks over processes. The next call goes on after the last seed in result.json: call it until all
seeds were run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from paceline.engines.virtual.network import first_fault

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from record import write  # noqa: E402

BLOCK = 500


def run_block(block: int) -> tuple[int, float, tuple[int, str] | None]:
    """Run the histories of a block; return its number, CPU seconds, and the first fault."""
    began = time.process_time()
    fault = first_fault(range(block * BLOCK, (block + 1) * BLOCK))
    return block, time.process_time() - began, fault


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no further block after this time")
    options = parser.parse_args()
    kept = FOLDER / "result.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    blocks, cpu = int(before.get("blocks", 0)), float(before.get("cpu_seconds", 0.0))
    faults: list[tuple[int, str]] = [tuple(fault) for fault in before.get("faults", [])]
    last, began = -(-options.seeds // BLOCK), time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        running: set[Future[tuple[int, float, tuple[int, str] | None]]] = set()
        begun, done = blocks, 0
        while True:
            while begun < last and len(running) < options.processes and time.monotonic() - began < options.seconds:
                running.add(pool.submit(run_block, begun))
                begun += 1
            if not running:
                break
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for each in finished:
                _, seconds, fault = each.result()
                cpu, done = cpu + seconds, done + 1
                faults += [fault] if fault else []
            print(f"\r{(blocks + done) * BLOCK:,} seeds, {len(faults)} faults", end="", file=sys.stderr, flush=True)
    wall, seeds = time.monotonic() - began, begun * BLOCK
    print(f"\n{done * BLOCK:,} seeds in {wall:.0f} s, {done * BLOCK / wall:.0f} a second", file=sys.stderr)
    for seed, fault in faults:
        print(f"seed {seed}: {fault}")
    figures = {"seeds": seeds, "blocks": begun, "cpu_seconds": round(cpu, 1), "faults": sorted(faults)}
    write(FOLDER, {**figures, "seeds_per_cpu_second": round(seeds / cpu, 1) if cpu else 0.0})
    print(f"{seeds:,} of {options.seeds:,} seeds were run, in {cpu:,.0f} s of CPU: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
