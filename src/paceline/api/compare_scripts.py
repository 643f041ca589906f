"""`compare_script`: a script of the user's that uses torch.distributed, run as it is under gloo and under Paceline.

    torchrun --nproc-per-node 1 train.py                    a single process, if the script can do with one
    torchrun --nproc-per-node 2 train.py     over gloo
    torchrun --nproc-per-node 2 train.py     over paceline  and again, in turn

Nothing in the script is changed: a stand-in gives `init_process_group` another word, and notes when steps are made.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.api import gloo_shim as stand_in
from paceline.errors import RunFailed, UsageError

Say = Callable[[str], None]
WORDS = ("gloo", "paceline")
TAIL = 30  # lines of what a failed script said


@dataclass
class Entrant:
    """The script in so many processes, over one backend."""

    name: str
    processes: int
    word: str
    threads: int | None = None  # None: as torchrun gives them, one each
    milliseconds: list[float] = field(default_factory=list)  # of a step, a median per round
    seconds: list[float] = field(default_factory=list)  # of the whole script, a figure per round
    steps: int = 0  # of each process
    parameters: Any = None

    @property
    def step(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def batches_per_second(self) -> float:
        return self.processes * 1000 / self.step


@dataclass
class ScriptRow:
    name: str
    processes: int
    milliseconds_per_step: float
    spread: tuple[float, float]
    batches_per_second: float
    speedup: float  # over the best of what was there before: a single process, or gloo
    seconds: float
    steps: int


@dataclass
class ScriptComparison:
    script: str
    rounds: int
    rows: list[ScriptRow]
    over_gloo: float
    difference: float | None  # the largest between parameters trained over gloo and over paceline; None: no telling
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "rows": [asdict(row) for row in self.rows]}


def compare_script(
    script: str, workers: int = 2, *, rounds: int = 3, seconds: float = 600.0, say: Say = lambda line: None
) -> ScriptComparison:
    """Run a script under gloo and under Paceline, in turn.

    script   a Python file and its arguments, started by torchrun; or a whole command that starts the processes itself
    seconds  that one run of the script may take
    """
    words = shlex.split(script)
    if not words:
        raise UsageError(
            "--script is empty; give a Python file and its arguments, as in --script 'train.py --epochs 1'"
        )
    started = not words[0].endswith(".py")
    if not started and not Path(words[0]).is_file():
        raise UsageError(f"there is no file {words[0]}")
    threads = sorted({1, len(os.sched_getaffinity(0))})
    single = [Entrant(f"one process, {t} thread{'s' * (t > 1)}", 1, "gloo", t) for t in threads if not started]
    pair = [Entrant(f"{workers} processes, {word}", workers, word) for word in WORDS]
    notes = []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds} ...")
        for entrant in [*single, *pair]:
            try:
                _run(words, started, entrant, seconds)
            except RunFailed as error:
                if entrant not in single:
                    raise
                notes.append(f"it does not run as {entrant.name}: {str(error).splitlines()[-1].strip()}")
                single.remove(entrant)
    gloo, ours = pair
    entrants = [*single, *pair]
    before = max(entrant.batches_per_second for entrant in (*single, gloo))
    rows = [
        ScriptRow(
            e.name, e.processes, e.step, (min(e.milliseconds), max(e.milliseconds)), e.batches_per_second,
            e.batches_per_second / before, statistics.median(e.seconds), e.steps,
        )
        for e in entrants
    ]  # fmt: skip
    return ScriptComparison(script, rounds, rows, gloo.step / ours.step, _difference(gloo, ours), notes)


def _run(words: Sequence[str], started: bool, entrant: Entrant, seconds: float) -> None:
    """Once, to its end; nothing of it is left."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = list(words) if started else [*torchrun, str(entrant.processes), *words]
    if command[0] == "python":
        command[0] = sys.executable
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, env=_environment(entrant, folder), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RunFailed(
                    f"{entrant.name}: not done after {seconds:.0f} s. It said last:\n{_tail(said)}"
                ) from None
            raise
        if process.returncode:
            raise RunFailed(f"{entrant.name}: the script ended with {process.returncode}. It said last:\n{_tail(said)}")
        entrant.seconds.append(time.perf_counter() - begun)
        _read(entrant, Path(folder))


def _environment(entrant: Entrant, folder: str) -> dict[str, str]:
    places = [str(Path(stand_in.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    found |= {"PACELINE_STAND_IN": entrant.word, "PACELINE_STEPS": folder}
    if entrant.threads:
        found["OMP_NUM_THREADS"] = str(entrant.threads)
    return found


def _read(entrant: Entrant, folder: Path) -> None:
    steps = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    if not steps or min(map(len, steps)) < 3:
        raise UsageError(
            f"{entrant.name}: the script made fewer than 3 steps of a torch.optim optimizer; there is nothing to time"
        )
    entrant.steps = len(steps[0])
    entrant.milliseconds.append(1000 * statistics.median(b - a for ends in steps for a, b in pairwise(ends[1:])))
    if (kept := folder / "parameters.pt").is_file():
        import torch

        entrant.parameters = torch.load(kept)


def _difference(one: Entrant, other: Entrant) -> float | None:
    if one.parameters is None or other.parameters is None or len(one.parameters) != len(other.parameters):
        return None
    pairs = list(zip(one.parameters, other.parameters, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return None
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()), default=None)


def _tail(said: str) -> str:
    """The end of what the script said itself, without what torchrun adds."""
    lines = [line for line in said.splitlines() if "torch/distributed/run.py" not in line]
    ends = [number for number, line in enumerate(lines) if "torch/distributed/elastic" in line]
    return "\n".join(lines[: ends[0] if ends else None][-TAIL:])
