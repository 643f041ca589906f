"""`paceline bench kernels`, part by part, with its figures kept: python benchmarks/kernels/run.py [PART...]"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import read, write

from paceline.kernels.measure.bench import PARTS, bench
from paceline.kernels.measure.figures import picture, tables

HERE = Path(__file__).parent


def main(parts: list[str]) -> None:
    figures = read().get("parts", {})
    for part in parts:
        found = bench((part,), seconds=0.5)
        figures[part] = found.as_dict()
        print(tables(found))
        if part == "layers":
            (HERE / "roofline.svg").write_text(picture(found))
        write({"parts": figures})


if __name__ == "__main__":
    main(sys.argv[1:] or list(PARTS))
