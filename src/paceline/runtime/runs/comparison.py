"""What comparison.json holds: the table of `compare`, as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from paceline.runtime.runs.record import MachineRecord
from paceline.runtime.runs.schema import SCHEMA_VERSION, StrEnum, read_as

#: The lowest and the highest value of an interval.
Range = tuple[float, ...]


@dataclass(frozen=True)
class StepTimes:
    """Where one worker's step goes: microseconds on average."""

    compute: float
    update: float
    communicate: float
    wait: float
    other: float  # between rows of the trace: taking a batch, Python, a snapshot

    @property
    def whole(self) -> float:
        """The whole step."""
        return self.compute + self.update + self.communicate + self.wait + self.other


@dataclass(frozen=True)
class Row:
    """One plan's line of the table."""

    plan: str
    workers: int
    samples_per_second: float  # median of the rounds
    spread: tuple[float, ...]  # the slowest and the fastest round
    speedup: float  # over the best single process: the median of the rounds' ratios
    efficiency: float  # speed-up per worker
    ceiling_share: float | None = None  # of the speed of as many workers that never communicate
    test_accuracy: float | None = None
    test_loss: float | None = None
    seconds_to_common_accuracy: float | None = None  # from then on it was never below it again
    staleness: float = 0.0  # mean
    bytes_per_update: float | None = None  # None for ddp, whose trace does not show it; the next one likewise
    wait_fraction: float | None = None
    step: StepTimes | None = None  # None for ddp
    verdict: str | None = None  # why these workers do not pay; None where they do, or where rounds disagree
    run: str | None = None  # the folder of the plan's training
    rounds: tuple[float, ...] = ()  # samples per second of each round, in order
    speedup_interval: Range | None = None
    ceiling_share_interval: Range | None = None
    test_accuracy_interval: Range | None = None  # from the number of test samples
    metrics: dict[str, float] = field(default_factory=dict)  # all figures of the last evaluation
    unmeasured: float | None = None  # microseconds of a step that the trace of ddp does not divide

    @property
    def name(self) -> str:
        """The plan's name."""
        return self.plan.partition(":")[0]

    @property
    def short(self) -> str:
        """The plan as a table shows it: `downpour x2 shards=2`."""
        return short(self.plan, self.workers)


@dataclass(frozen=True)
class FailedPlan:
    """A plan that was refused, or whose training or timing failed: the line of the table without figures."""

    plan: str
    workers: int
    reason: str
    run: str | None = None  # the folder of the plan's training, if one was begun

    @property
    def short(self) -> str:
        """The plan as a table shows it."""
        return short(self.plan, self.workers)

    @property
    def sentence(self) -> str:
        """The plan and why it failed."""
        return f"{self.short} failed: {self.reason}"


def short(plan: str, workers: int) -> str:
    """Return a plan as a table shows it."""
    if workers == 1:
        return plan
    name, _, options = plan.partition(":")
    rest = [option for option in options.split(",") if option and not option.startswith("workers=")]
    return " ".join([name, f"x{workers}", *rest])


@dataclass(frozen=True)
class CodecRow:
    """What a codec does to the gradient of the job."""

    codec: str
    bytes: float  # of a message; of a codec whose messages vary, about
    encode: float  # microseconds of one core to write a message
    decode: float  # microseconds to read one
    most_workers: int | None = None  # gathered: up to so many workers a ring sends less than without it; None: summed


@dataclass(frozen=True)
class Timing:
    """What was timed beside the plans: a single process, or a ceiling."""

    name: str
    rounds: tuple[float, ...]  # samples per second of each round, in order


class ComparisonKind(StrEnum):
    """What a comparison comes to."""

    RECOMMENDED = "recommended"  # a plan of several workers
    SINGLE = "single"  # one process is the best here
    UNDECIDED = "undecided"  # the figures do not settle it


@dataclass(frozen=True)
class ComparisonAnswer:
    """What a comparison comes to. Figures are None where they do not apply or are not known."""

    kind: ComparisonKind
    sentence: str
    plan: str | None = None  # the plan to use, in the form that --plan takes
    workers: int | None = None
    speedup: float | None = None  # over the best single process, of the plan or of the one that came nearest
    speedup_interval: Range | None = None
    accuracy_change: float | None = None  # against one process; -0.017 is 1.7 points less
    accuracy_change_interval: Range | None = None
    command: str | None = None  # what trains by this plan


@dataclass(frozen=True)
class ComparisonRecord:
    """Everything that comparison.json says."""

    job: str
    best_single: str  # the best single process, such as "2 threads"
    best_single_samples_per_second: float
    rounds: int
    plans: tuple[Row, ...]
    common_accuracy: float | None = None  # the best test accuracy that every plan held to its end
    notes: tuple[str, ...] = ()
    path: str | None = None
    page: str | None = None
    machine: MachineRecord = field(default_factory=MachineRecord)
    schema_version: int = SCHEMA_VERSION
    singles: tuple[Timing, ...] = ()
    ceilings: tuple[Timing, ...] = ()
    test_samples: int = 0
    seconds: float | None = None  # timed per plan, as it was asked for; None: short rounds
    command: str = ""  # trains the job on the command line, but for its plan; empty: the job has no file
    disagreement: str | None = None  # how far rounds disagree, where that leaves the speeds unsettled
    answer: ComparisonAnswer | None = None  # None in files of older versions
    link: str | None = None  # the network that was simulated, such as 100Mbit,1ms; None: processes of this machine
    codecs: tuple[CodecRow, ...] = ()  # of the plans, where a network was simulated
    dense_bytes: int | None = None  # of the gradient without a codec
    failed: tuple[FailedPlan, ...] = ()  # plans without figures
    core_wait: float = 0.0  # median share of their time for which workers that fit on the cores waited for one
    quality_limit: float | None = None  # what a plan may lose of one process's quality; None: the limits of `verdict`
    interrupted: bool = False  # by Ctrl-C, before all rounds were timed

    def row_of(self, run: str) -> Row | None:
        """Return the line of the plan whose training has the folder of this name."""
        return next((row for row in self.plans if row.run and Path(row.run).name == run), None)


def read_comparison(folder: Path) -> ComparisonRecord | None:
    """Read a folder's comparison.json; None if it has none."""
    file = folder / "comparison.json"
    return read_as(ComparisonRecord, file) if file.exists() else None
