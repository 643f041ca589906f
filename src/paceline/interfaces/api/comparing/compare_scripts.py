"""`compare_script`: a user's script that uses torch.distributed, run as it is under gloo and under Paceline.

    torchrun --nproc-per-node 1 train.py                    a single process, if the script runs as one
    torchrun --nproc-per-node 2 train.py     over gloo
    torchrun --nproc-per-node 2 train.py     over paceline  and so on, in alternating rounds

Nothing in the script is changed: `gloo_shim` gives `init_process_group` another backend, and writes down when steps are
made.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.concurrency.watcher.processes.proc import tree
from paceline.errors import RunFailed, UsageError
from paceline.interfaces.api.comparing import gloo_shim
from paceline.interfaces.api.lines import Say, to_stderr
from paceline.runtime.runs.verdict import PAYS, SETTLED, median_interval

if TYPE_CHECKING:
    from torch import Tensor

BACKENDS = ("gloo", "paceline")
MOST_FILES, FEW = 20_000, 3  # that are read to notice what a script leaves behind, and that are named
TAIL = 30  # lines of a failed script's output that an error shows


@dataclass
class Entrant:
    """The script in so many processes, over one backend."""

    name: str
    processes: int
    backend: str
    threads: int | None = None  # None: one, as torchrun sets it
    milliseconds: list[float] = field(default_factory=list)  # of a step: a median per round
    seconds: list[float] = field(default_factory=list)  # of the whole script: a figure per round
    steps: int = 0  # of each process
    parameters: list[Tensor] | None = None  # at the end of the last round

    @property
    def step(self) -> float:
        """Milliseconds of a step: the median of the rounds."""
        return statistics.median(self.milliseconds)

    @property
    def batches_per_second(self) -> float:
        """Batches per second of all processes together."""
        return self.processes * 1000 / self.step

    def row(self, before: Entrant) -> ScriptRow:
        """Make the line of the table, with the speed-up over another entrant, round by round."""
        each = [
            self.processes * its / (before.processes * mine)
            for mine, its in zip(self.milliseconds, before.milliseconds, strict=True)
        ]
        return ScriptRow(
            self.name,
            self.processes,
            self.step,
            (min(self.milliseconds), max(self.milliseconds)),
            self.batches_per_second,
            statistics.median(each),
            statistics.median(self.seconds),
            self.steps,
            tuple(median_interval(each)),
        )


@dataclass
class ScriptRow:
    """One line of the table."""

    name: str
    processes: int
    milliseconds_per_step: float
    spread: tuple[float, float]
    batches_per_second: float
    speedup: float  # over the best without Paceline: a single process, or gloo; the median of the rounds' ratios
    seconds: float
    steps: int
    speedup_interval: tuple[float, ...] = ()


@dataclass
class ScriptComparison:
    """The table of a script."""

    script: str
    rounds: int
    rows: list[ScriptRow]
    over_gloo: float
    difference: float | None  # the largest between parameters trained over gloo and over paceline; None: not known
    notes: list[str]
    answer: str = ""  # what it comes to

    def as_dict(self) -> dict[str, Any]:
        """The table as `paceline compare --script --json` prints it."""
        return {**self.__dict__, "rows": [asdict(row) for row in self.rows]}


def compare_script(
    script: str, workers: int = 2, *, rounds: int = 3, seconds: float = 600.0, say: Say = to_stderr
) -> ScriptComparison:
    """Run a script under gloo and under Paceline, in alternating rounds.

    script   a Python file and its arguments, started by torchrun; or a whole command that starts the processes itself
    seconds  that one run of the script may take

    Ctrl-C after a complete round raises a KeyboardInterrupt whose only argument is the comparison until then.
    """
    if workers < 2:
        raise UsageError(f"workers={workers!r}: the backends of several processes are compared; give 2 or more")
    command = Command.parse(script)
    threads = sorted({1, len(os.sched_getaffinity(0))}) if command.processes_can_be_chosen else []
    singles = [Entrant(f"one process, {t} thread{'s' * (t > 1)}", 1, "gloo", t) for t in threads]
    gloo, ours = (Entrant(f"{workers} processes, {backend}", workers, backend) for backend in BACKENDS)
    notes: list[str] = []
    before_all, interrupted = _files(), False
    try:
        for number in range(1, rounds + 1):
            _run_round(number, command, singles, [gloo, ours], seconds, notes, say)
            if number == 1 < rounds:
                rest = (rounds - 1) * sum(entrant.seconds[-1] for entrant in (*singles, gloo, ours))
                say(f"about {rest:.0f} s for {rounds - 1} more rounds; Ctrl-C shows what was measured until then")
    except KeyboardInterrupt:
        if not ours.seconds:
            raise
        interrupted = True
    entrants, complete = (*singles, gloo, ours), len(ours.seconds)  # the last of each round
    for entrant in entrants:
        del entrant.milliseconds[complete:], entrant.seconds[complete:]
    new_files = sorted(_files() - before_all)
    if new_files:
        notes.append(_left_behind(new_files))
    before = max((*singles, gloo), key=lambda entrant: entrant.batches_per_second)
    rows = [entrant.row(before) for entrant in entrants]
    over_gloo = statistics.median(a / b for a, b in zip(gloo.milliseconds, ours.milliseconds, strict=True))
    answer = answer_of(rows[-1], before.name)
    comparison = ScriptComparison(script, complete, rows, over_gloo, _difference(gloo, ours), notes, answer)
    if interrupted:
        raise KeyboardInterrupt(comparison)
    return comparison


def _run_round(
    number: int,
    command: Command,
    singles: list[Entrant],
    others: list[Entrant],
    seconds: float,
    notes: list[str],
    say: Say,
) -> None:
    """Run each entrant once; of single processes those that fail are taken out, with a note."""
    for entrant in [*singles, *others]:
        say(f"round {number}: {entrant.name} ...")
        try:
            _run(command, entrant, seconds)
        except RunFailed as error:
            if entrant not in singles:
                raise
            notes.append(f"it does not run as {entrant.name}: {str(error).splitlines()[-1].strip()}")
            singles.remove(entrant)
        else:
            step, whole = entrant.milliseconds[-1], entrant.seconds[-1]
            say(f"round {number}: {entrant.name}: {step:.2f} ms a step, {whole:.0f} s in all")


def _files() -> set[str]:
    """Files below the current folder, by their names and times; a large folder is read in part."""
    paths: set[str] = set()
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in names:
            with contextlib.suppress(OSError):
                path = Path(folder, name)
                paths.add(f"{path}\0{path.stat().st_mtime_ns}")
        if len(paths) > MOST_FILES:
            break
    return paths


def _left_behind(files: Sequence[str]) -> str:
    names = list(dict.fromkeys(file.partition("\0")[0] for file in files))
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return (
        f"the script writes {', '.join(names[:FEW])}{more}, which its later runs find: where it goes on from a "
        "snapshot, their steps are not the same work. Give it an option that writes none, and compare again"
    )


def answer_of(ours: ScriptRow, before: str) -> str:
    """What a comparison of a script comes to: the backend, what is best without it, or that it is not settled."""
    low, high = ours.speedup_interval
    half = (high - low) / 2 / ours.speedup
    times = f"{ours.speedup:.2f}x (±{half:.0%}) as fast as {before}"
    if high < PAYS and half <= SETTLED:
        return f"{before[:1].upper()}{before[1:]} is the best you can do here: {ours.name} is {times}"
    if low > 1 and ours.speedup >= PAYS and half <= SETTLED:
        return f"Recommended: {ours.name}, {times}; to use it: init_process_group('paceline')"
    return f"Undecided: {ours.name} is {low:.2f}x to {high:.2f}x as fast as {before}; let the script make more steps"


@dataclass(frozen=True)
class Command:
    """How the processes of a script are started."""

    words: list[str]
    processes_can_be_chosen: bool  # by torchrun; else the user's own command starts them

    @staticmethod
    def parse(script: str) -> Command:
        """Parse `--script`; UsageError if it names no file."""
        words = shlex.split(script)
        if not words:
            raise UsageError(
                "--script is empty; give a Python file and its arguments, as in --script 'train.py --epochs 1'"
            )
        started = not words[0].endswith(".py")
        if not started and not Path(words[0]).is_file():
            raise UsageError(f"there is no file {words[0]}")
        return Command(words, not started)

    def of(self, processes: int) -> list[str]:
        """The command line for so many processes."""
        if self.processes_can_be_chosen:
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            return [*torchrun, str(processes), *self.words]
        first = sys.executable if self.words[0] == "python" else self.words[0]
        return [first, *self.words[1:]]


def run_to_end(words: list[str], environment: dict[str, str], seconds: float, late: str) -> tuple[int, str]:
    """Run a command and return its exit code and what it printed; RunFailed after these seconds. No process is left."""
    process = subprocess.Popen(
        words,
        env=environment,
        text=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except BaseException as error:
        for pid in tree([process.pid]):  # torchrun starts its workers in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RunFailed(f"{late} after {seconds:.0f} s. Its last output:\n{tail(output)}") from None
        raise
    return process.returncode, output


def _run(command: Command, entrant: Entrant, seconds: float) -> None:
    """Run the script once to its end, and add what it took to the entrant. No process and no file is left behind."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        begun = time.perf_counter()
        late = f"{entrant.name}: not done"
        code, output = run_to_end(command.of(entrant.processes), _environment(entrant, folder), seconds, late)
        if code:
            raise RunFailed(f"{entrant.name}: the script ended with {code}. Its last output:\n{tail(output)}")
        entrant.seconds.append(time.perf_counter() - begun)
        _read_steps(entrant, Path(folder))


def _environment(entrant: Entrant, folder: str) -> dict[str, str]:
    places = [str(Path(gloo_shim.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    environment |= {"PACELINE_STAND_IN": entrant.backend, "PACELINE_STEPS": folder}
    if entrant.threads:
        environment["OMP_NUM_THREADS"] = str(entrant.threads)
    return environment


def _read_steps(entrant: Entrant, folder: Path) -> None:
    steps = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    if not steps or min(map(len, steps)) < 3:
        raise UsageError(
            f"{entrant.name}: the script made fewer than 3 steps of a torch.optim optimizer; there is nothing to time. "
            "If it goes on from a snapshot of its last run, give it an option that writes none"
        )
    entrant.steps = len(steps[0])
    entrant.milliseconds.append(1000 * statistics.median(b - a for ends in steps for a, b in pairwise(ends[1:])))
    if (snapshot := folder / "parameters.pt").is_file():
        import torch

        entrant.parameters = torch.load(snapshot, weights_only=True)


def _difference(one: Entrant, other: Entrant) -> float | None:
    if one.parameters is None or other.parameters is None or len(one.parameters) != len(other.parameters):
        return None
    pairs = list(zip(one.parameters, other.parameters, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return None
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()), default=None)


def tail(output: str) -> str:
    """Take the end of the script's own output, without what torchrun adds."""
    lines = [line for line in output.splitlines() if "torch/distributed/run.py" not in line]
    ends = [number for number, line in enumerate(lines) if "torch/distributed/elastic" in line]
    return "\n".join(lines[: ends[0] if ends else None][-TAIL:])
