"""`paceline bench kernels`, part by part, with its figures kept: python benchmarks/kernels/run.py [PART...]"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import write

from paceline.kernels.measure.bench import PARTS, bench
from paceline.kernels.measure.tables import picture, tables

HERE = Path(__file__).parent


def main(parts: list[str]) -> None:
    kept = HERE / "result.json"
    figures = json.loads(kept.read_text())["parts"] if kept.exists() else {}
    for part in parts:
        found = bench((part,), seconds=0.5)
        figures[part] = found.as_dict()
        print(tables(found))
        if part == "layers":
            (HERE / "roofline.svg").write_text(picture(found))
        write(HERE, {"parts": figures})


if __name__ == "__main__":
    main(sys.argv[1:] or list(PARTS))
