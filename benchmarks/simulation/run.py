"""How many histories of a cluster, drawn from seeds, break a promise: python benchmarks/simulation/run.py --seconds 480

The seeds are run in blocks over processes, and result.json is written after each. The next call goes on after the last
seed in it, also if the one before was cut off: call it until all seeds were run. A block that had a fault, which ends
it, is run again first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from paceline.runtime.engines.virtual.network import first_fault

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from harness import write  # noqa: E402

BLOCK = 500


class Block(NamedTuple):
    """A block of seeds that was run."""

    number: int
    cpu: float  # seconds
    #: The first seed that breaks a promise, and which.
    fault: tuple[int, str] | None


def run_block(number: int) -> Block:
    """Run the histories of a block."""
    began = time.process_time()
    fault = first_fault(range(number * BLOCK, (number + 1) * BLOCK))
    return Block(number, time.process_time() - began, fault)


@dataclass
class Counted:
    """The blocks from the first on of which all were run, and what they came to."""

    blocks: int = 0
    cpu: float = 0.0
    faults: list[tuple[int, str]] = field(default_factory=list)
    #: Blocks that overtook one that still runs.
    _above: dict[int, Block] = field(default_factory=dict)

    @staticmethod
    def read(file: Path) -> Counted:
        """Return what earlier calls have counted."""
        kept = json.loads(file.read_text()) if file.exists() else {}
        faults = [(int(seed), str(fault)) for seed, fault in kept.get("faults", [])]
        return Counted(int(kept.get("blocks", 0)), float(kept.get("cpu_seconds", 0.0)), faults)

    def add(self, found: Block) -> None:
        """Count a block as soon as all before it are, and write that down: a call that is cut off loses little."""
        self._above[found.number] = found
        while (block := self._above.pop(self.blocks, None)) is not None:
            self.blocks, self.cpu = self.blocks + 1, self.cpu + block.cpu
            self.faults += [block.fault] if block.fault else []
        self._write()

    def _write(self) -> None:
        figures = {"seeds": self.seeds, "blocks": self.blocks, "cpu_seconds": round(self.cpu, 1)}
        speed = round(self.seeds / self.cpu, 1) if self.cpu else 0.0
        write({**figures, "faults": sorted(self.faults), "seeds_per_cpu_second": speed}, print_path=False)

    @property
    def seeds(self) -> int:
        return self.blocks * BLOCK

    def run_faulty_again(self) -> None:
        """Run the blocks again that had a fault: it may be repaired, and the seeds after it were not run."""
        blocks = [run_block(seed // BLOCK) for seed, _ in self.faults]
        self.cpu += sum(block.cpu for block in blocks)
        self.faults = [block.fault for block in blocks if block.fault]
        self._write()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no further block after this time")
    options = parser.parse_args()
    counted = Counted.read(FOLDER / "result.json")
    if counted.faults:
        counted.run_faulty_again()
    begun, last, end = counted.blocks, -(-options.seeds // BLOCK), time.monotonic() + options.seconds
    with ProcessPoolExecutor(options.processes) as pool:
        running: set[Future[Block]] = set()
        while True:
            while begun < last and len(running) < options.processes and time.monotonic() < end:
                running.add(pool.submit(run_block, begun))
                begun += 1
            if not running:
                break
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for each in finished:
                counted.add(each.result())
            print(f"\r{counted.seeds:,} seeds, {len(counted.faults)} faults", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for seed, fault in counted.faults:
        print(f"seed {seed}: {fault}")
    faults = f"{len(counted.faults)} faults"
    print(f"{counted.seeds:,} of {options.seeds:,} seeds were run, in {counted.cpu:,.0f} s of CPU: {faults}")
    return 1 if counted.faults else 0


if __name__ == "__main__":
    sys.exit(main())
