"""Commands by ranks of MPI, one after another in one start of MPI, since importing PyTorch takes seconds of each rank:
mpiexec -n 2 python -m tests.kernels.commands_by_ranks FOLDER...

Each folder has words.json, which `paceline` is given there; each rank leaves ended-RANK.json: the exit code, and what
it wrote to standard error.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

from paceline.interfaces.cli import main
from paceline.runtime.engines.mpi import rank


def ended(words: list[str]) -> tuple[int, str]:
    """Run a command in the working folder; return its exit code, and what it wrote for people."""
    sys.argv[:], sys.stderr = ["paceline", *words], io.StringIO()
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        text, sys.stderr = sys.stderr.getvalue(), sys.__stderr__
    return code, text


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        os.chdir(folder)
        result = ended(json.loads((folder / "words.json").read_text()))
        (folder / f"ended-{rank()}.json").write_text(json.dumps(result))
