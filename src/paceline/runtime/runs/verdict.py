"""What a comparison measures, and what it comes to: a plan to use, one process, or that it is not settled. Pure.

    the interval of a plan's speed-up        ├──────┤
                                     0.8    1.0    1.2    1.4
    whole above 1, and 1.05 or more          │        ├──────┤     it may be recommended
    whole below 1.05                 ├────┤  │                     it does not pay
    anything else                      ├─────│──┤                  undecided

The fastest of the plans that may be recommended is, unless it loses more than MOST_LOST of accuracy, or as much as the
user's `quality_limit` says. What it loses is in the sentence, and so is a faster plan that was dropped for its quality.
If rounds disagree by more than SETTLED, the two limits change places: an interval has to lie whole above 1.05 for its
plan to be recommended, and whole below 1 for it not to pay. Where workers waited for a core, since other programs used
it, or where the comparison was interrupted, nothing is settled.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from paceline.runtime.runs.comparison import ComparisonAnswer, ComparisonKind, ComparisonRecord, Row
from paceline.runtime.runs.record import Evaluation
from paceline.runtime.runs.trace import Kind, Trace


class Interval(NamedTuple):
    """An interval from the lowest to the highest value that the measurements leave room for."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the width."""
        return (self.high - self.low) / 2


PAYS = 1.05  # times as fast as one process; less is not worth a second one
SETTLED = 0.15  # half the width of a speed-up's interval, as a share of it, up to which rounds agree
MOST_LOST = 0.05  # of accuracy; a plan that loses more is not recommended
MOST_HIGHER = 0.1  # share by which the test loss of a job without an accuracy may be higher
CROWDED = 0.05  # share of their time for which workers wait for a core of their own, from which on nothing is settled
ENOUGH_SECONDS = 60.0


def decided(record: ComparisonRecord) -> ComparisonRecord:
    """Return the comparison with what it comes to; where its figures are in doubt, without explanations of them."""
    revised = replace(record, disagreement=_disagreement_note(record))
    if revised.disagreement or _is_void(revised):
        revised = replace(revised, plans=tuple(replace(row, verdict=None) for row in revised.plans))
    return replace(revised, answer=decide(revised))


def decide(record: ComparisonRecord) -> ComparisonAnswer:
    """Decide by the figures of a comparison alone; the order of its plans does not matter."""
    rows = sorted((row for row in record.plans if _is_candidate(row)), key=lambda row: (-row.speedup, row.plan))
    if not rows and record.interrupted:
        sentence = f"Undecided: no plan with several workers was timed yet; {_remedy(record)}"
        return ComparisonAnswer(ComparisonKind.UNDECIDED, sentence, None, None, None, None)
    if not rows:
        return _single(record, None, _nothing_compared(record), [])
    limits = AGREED if disagreement(record) <= SETTLED else DISAGREED
    fit = [row for row in rows if not _loses(record, row)]
    paying = [row for row in fit if limits.recommend(row)]
    unsettled = [row for row in fit if limits.leave_open(row) and (not paying or row.speedup >= paying[0].speedup)]
    preferred = _preferred(record, paying) if paying else None
    least = preferred.speedup if preferred else PAYS
    dropped = [row for row in rows if row not in fit and row.speedup >= least]
    if _is_void(record) or unsettled:
        return _undecided(record, unsettled or rows, dropped)
    if preferred:
        return _recommended(record, preferred, dropped)
    return _single(record, next((row for row in fit or rows if row not in dropped), None), "", dropped)


def _is_void(record: ComparisonRecord) -> bool:
    """Whether the figures are not those of this machine alone, or not all there, so that nothing follows from them."""
    return record.interrupted or record.core_wait >= CROWDED


def _preferred(record: ComparisonRecord, paying: list[Row]) -> Row:
    """The fastest plan; of those that may be as fast as it, rather one that is not less accurate beyond chance."""
    as_fast = [row for row in paying if _interval(row).high >= _interval(paying[0]).low]
    return next((row for row in as_fast if not _is_less_accurate(record, row)), as_fast[0])


def disagreement(record: ComparisonRecord) -> float:
    """Return how far the rounds disagree at most: half an interval, as a share of the figure."""
    half_widths = [0.0]
    for row in record.plans:
        for value, interval in ((row.speedup, row.speedup_interval), (row.ceiling_share, row.ceiling_share_interval)):
            if value and interval:
                half_widths.append(Interval(*interval).half / value)
    return max(half_widths)


def is_wide(figure: float, interval: Interval) -> bool:
    """Whether rounds disagree on a figure, so that its interval says more than it does."""
    return interval.half > SETTLED * figure


def _disagreement_note(record: ComparisonRecord) -> str | None:
    most = disagreement(record)
    if most <= SETTLED:
        return None
    return (
        f"The rounds disagree by up to ±{most:.0%} (more than ±{SETTLED:.0%}): the table gives intervals that hold the "
        f"median with {CONFIDENCE:.0%} confidence, and only a plan whose whole interval is clear is judged"
    )


# a plan.


class _Limits(NamedTuple):
    """What the whole interval of a plan's speed-up has to lie above or below for the plan to be judged."""

    above: float
    below: float

    def recommend(self, row: Row) -> bool:
        return _interval(row).low > self.above and row.speedup >= PAYS

    def rule_out(self, row: Row) -> bool:
        return _interval(row).high < self.below

    def leave_open(self, row: Row) -> bool:
        return not self.recommend(row) and not self.rule_out(row)


AGREED, DISAGREED = _Limits(above=1.0, below=PAYS), _Limits(above=PAYS, below=1.0)


def _is_candidate(row: Row) -> bool:
    """Workers that never communicate train a model each: they are a measure, not a plan to use."""
    return row.workers > 1 and row.name != "ceiling"


def _interval(row: Row) -> Interval:
    return Interval(*(row.speedup_interval or (row.speedup, row.speedup)))


def _reference(record: ComparisonRecord) -> Row | None:
    """The training in one process that accuracies are compared with: the most accurate of them."""
    singles = [row for row in record.plans if row.workers == 1]
    return max(singles, key=lambda row: (row.test_accuracy or 0.0, -(row.test_loss or 0.0), row.plan), default=None)


def _change(record: ComparisonRecord, row: Row) -> tuple[float, Interval] | None:
    """How much more accurate the plan is than one process; None if that is not known."""
    alone = _reference(record)
    if alone is None or row.test_accuracy is None or alone.test_accuracy is None:
        return None
    interval = difference_of_accuracies(row.test_accuracy, alone.test_accuracy, record.test_samples)
    return row.test_accuracy - alone.test_accuracy, interval


def _loss_change(record: ComparisonRecord, row: Row) -> float | None:
    """How much higher the plan's test loss is than one process's, as a share of it; for jobs without an accuracy."""
    alone = _reference(record)
    if alone is None or row.test_accuracy is not None or row.test_loss is None or alone.test_loss is None:
        return None
    if not math.isfinite(row.test_loss):
        return math.inf
    return (row.test_loss - alone.test_loss) / max(abs(alone.test_loss), 1e-12)


def _is_less_accurate(record: ComparisonRecord, row: Row) -> bool:
    """Whether the plan is less accurate than one process beyond chance."""
    change, loss = _change(record, row), _loss_change(record, row)
    return (change is not None and change[1].high < 0) or (loss is not None and loss > 0)


def _loses(record: ComparisonRecord, row: Row) -> bool:
    """Whether the plan learns too much less than one process to be recommended."""
    change, loss = _change(record, row), _loss_change(record, row)
    most = record.quality_limit
    most_lost, most_higher = (MOST_LOST, MOST_HIGHER) if most is None else (most, most)
    return (change is not None and change[0] < -most_lost) or (loss is not None and loss > most_higher)


# sentences.


def _recommended(record: ComparisonRecord, row: Row, dropped: list[Row]) -> ComparisonAnswer:
    command, change = _command(record, row.plan), _change(record, row)
    where = f" on {record.link} (simulated)" if record.link else ""
    figures = f"{row.short}, {_times(row)}{_quality(record, row)}{_dropped(record, dropped)}"
    sentence = f"Recommended{where}: {figures}; to use it: {command}"
    return ComparisonAnswer(
        ComparisonKind.RECOMMENDED,
        sentence,
        row.plan,
        row.workers,
        row.speedup,
        tuple(_interval(row)),
        change[0] if change else None,
        tuple(change[1]) if change else None,
        command,
    )


def _times(row: Row) -> str:
    interval = _interval(row)
    share = interval.half / row.speedup
    if is_wide(row.speedup, interval):
        return f"{interval.low:.2f}x to {interval.high:.2f}x"
    return f"{row.speedup:.2f}x" + (f" (±{share:.0%})" if share else "")


def _quality(record: ComparisonRecord, row: Row) -> str:
    """What the plan gains or loses beside its speed."""
    change, loss = _change(record, row), _loss_change(record, row)
    if change is not None:
        less = ", less accurate than one process beyond chance" if change[1].high < 0 else ""
        return f", accuracy {change[0] * 100:+.1f} points (±{change[1].half * 100:.1f}){less}"
    if loss is not None:
        return f", test loss {loss:+.1%}"
    if row.test_loss is None:
        return ", accuracy not known (the job has no test data)"
    return ", accuracy not compared (sequential is not among the plans)"


def _single(record: ComparisonRecord, nearest: Row | None, why: str, dropped: list[Row]) -> ComparisonAnswer:
    """One process is the best; `nearest` is the plan that came nearest, if there was one."""
    threads = record.best_single.partition(" ")[0]
    plan = "sequential" if threads in ("1", "") else f"sequential:threads={threads}"
    command = _command(record, plan)
    near = f"{nearest.short} came nearest, {_times(nearest)}" if nearest else "no plan that learns enough pays"
    where = (
        f"on {record.link} (simulated; one process: {record.best_single})"
        if record.link
        else f"here ({record.best_single})"
    )
    reason = f"{why or near}{_dropped(record, dropped)}"
    sentence = f"One process is the best you can do {where}: {reason}; to use it: {command}"
    return ComparisonAnswer(
        ComparisonKind.SINGLE,
        sentence,
        plan,
        1,
        nearest.speedup if nearest else None,
        tuple(_interval(nearest)) if nearest else None,
        command=command,
    )


def _nothing_compared(record: ComparisonRecord) -> str:
    if record.failed:
        return f"every plan with several workers failed ({', '.join(each.short for each in record.failed)})"
    return "no plan with several workers was compared"


def _dropped(record: ComparisonRecord, rows: list[Row]) -> str:
    """The plans that are as fast, but learn too little, with their figures and the limit that they exceed."""
    if not rows:
        return ""
    most = record.quality_limit
    limit = (
        f"{100 * (MOST_LOST if most is None else most):.3g} points of accuracy"
        if rows[0].test_accuracy is not None
        else f"test loss {MOST_HIGHER if most is None else most:+.0%}"
    )
    option = "--quality-limit" if record.command else "quality_limit="
    several = "; ".join(f"{row.short}, {_times(row)}{_quality(record, row)}" for row in rows)
    return f" (dropped for quality, {option} is {limit}: {several})"


def _undecided(record: ComparisonRecord, rows: list[Row], dropped: list[Row]) -> ComparisonAnswer:
    row = max(rows, key=lambda each: (_interval(each).high, each.plan))
    low, high = _interval(row)
    times = f"{row.short} is {low:.2f}x to {high:.2f}x as fast as one process"
    where = f" on {record.link} (simulated)" if record.link else ""
    sentence = f"Undecided: {times}{where}{_dropped(record, dropped)}; {_remedy(record)}"
    return ComparisonAnswer(ComparisonKind.UNDECIDED, sentence, None, None, row.speedup, (low, high))


def _remedy(record: ComparisonRecord) -> str:
    """What to do so that the comparison is settled."""
    if record.interrupted:
        return f"it was interrupted after {record.rounds} whole rounds; compare again, to the end"
    if record.core_wait >= CROWDED:
        return (
            f"other programs used the cores: workers waited for one {record.core_wait:.0%} of their time, which slows "
            "several workers more than one process. End those programs, or give them other cores (taskset), and "
            "compare again"
        )
    quieter = ", on a quieter machine" if disagreement(record) > SETTLED else ""
    if record.link:
        return f"measure again{quieter}"
    return f"time it longer, --seconds {max(ENOUGH_SECONDS, 2 * (record.seconds or 0.0)):.0f}{quieter}"


def _command(record: ComparisonRecord, plan: str) -> str:
    """Return what trains the job by this plan, on the command line or in Python."""
    several = record.link is not None and not plan.startswith("sequential")
    if not record.command:
        engine = ', engine="cluster"' if several else ""
        return f'paceline.train(job, "{plan}"{engine})'
    name, _, tail = plan.partition(":")
    options = [option for option in tail.split(",") if option]
    workers = [option.partition("=")[2] for option in options if option.startswith("workers=")]
    rest = ",".join(option for option in options if not option.startswith("workers="))
    team = f" --workers {workers[0]}" if workers else ""
    engine = " --engine cluster" if several else ""
    return f"{record.command} --plan {name}{':' + rest if rest else ''}{team}{engine}"


# What a comparison measures: speeds without the warm-up, accuracies that are held, and their intervals. Pure.
#
#     median_interval          order statistics of the rounds; assumes nothing about how they are distributed
#     wilson                   one accuracy, from the number of test samples
#     difference_of_accuracies two accuracies, by Newcombe's hybrid of two Wilson intervals
#
# An accuracy's interval accounts for the size of the test set alone: another seed may give another accuracy.
#
# Newcombe, R. G. (1998). Interval estimation for the difference between independent proportions: comparison of eleven
# methods. Statistics in Medicine 17, method 10.

# The speed of a run without its warm-up and its end. Pure.
#
# The first batches of a worker are slower than the others: torch.compile compiles, libraries choose their algorithms,
# memory is touched for the first time. At the end a worker may have no more to do while others still train. A
# comparison of speeds leaves both out.
#
#     worker 0   | first | second |  3  |  4  |  5  |  6  |
#     worker 1   |   first   | second |  3  |  4  |  5  |  6  |
#                                     ├──── what is timed ┤

BATCHES = 2  # of each worker that are warm-up


class Steady(NamedTuple):
    """The part of a run in which every worker is warm and has work."""

    samples: float  # a batch that lies in it in part counts in part
    seconds: float
    share: float  # of the run's samples

    @property
    def samples_per_second(self) -> float:
        """The speed."""
        return self.samples / self.seconds


def steady(trace: Trace) -> Steady | None:
    """Return the part of a run in which every worker is warm and has work; None if there is none."""
    rows = trace.of_kind(Kind.COMPUTE)
    rows = rows[rows["samples"] > 0]
    ends = [np.sort(rows["end"][rows["worker"] == worker]) for worker in np.unique(rows["worker"])]
    if not ends or min(map(len, ends)) <= BATCHES:
        return None
    first, last = max(int(mine[BATCHES - 1]) for mine in ends), min(int(mine[-1]) for mine in ends)
    if last <= first:
        return None
    spans = np.maximum(rows["end"] - rows["start"], 1)
    inside = np.minimum(rows["end"], last) - np.maximum(rows["end"] - spans, first)
    samples = float((rows["samples"] * np.clip(inside / spans, 0.0, 1.0)).sum())
    return Steady(samples, (last - first) / 1e9, samples / float(rows["samples"].sum()))


# Levels of accuracy that runs hold: reached, and never left again before the end. Pure.
#
#     accuracy   96.7            ╭╮
#                94.4    ╭───╮╭──╯╰───    held from the second rise on
#                       ─╯   ╰╯
#
# On a few hundred test samples a single evaluation may lie points above what the model has learned.


def common_level(histories: Sequence[Sequence[Evaluation]], metric: str) -> float | None:
    """Return the best level that every run holds to its end; None if one was not evaluated.

    The last evaluation of a run is the best level that it holds, so this is the lowest of the last ones.
    """
    last = [history[-1].metrics.get(metric, math.nan) if history else math.nan for history in histories]
    return min(last) if last and all(map(math.isfinite, last)) else None


def seconds_to_hold(history: Sequence[Evaluation], metric: str, level: float) -> float | None:
    """Return when a run reached the level for good; None if it ends below it."""
    seconds = None
    for evaluation in reversed(history):
        if not evaluation.metrics.get(metric, -math.inf) >= level:
            break
        seconds = evaluation.seconds
    return seconds


CONFIDENCE = 0.9
Z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the narrowest symmetric pair of order statistics that holds the median with this confidence.

    The k-th smallest and the k-th largest of n values hold it unless fewer than k of them fall on one side of it,
    which n tosses of a coin decide. Four values or fewer cannot be that sure; they give their whole range.
    """
    ordered, n = sorted(values), len(values)
    left_out, missed = 0, 0.0
    for count in range(n // 2):
        missed += 2 * math.comb(n, count) / 2**n
        if missed > 1 - confidence or count + 1 > (n - 1) // 2:
            break
        left_out = count
    return Interval(ordered[left_out], ordered[n - 1 - left_out])


def wilson(share: float, samples: int, z: float = Z) -> Interval:
    """Return Wilson's interval of a share that was counted among so many samples."""
    n = max(1, samples)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(0.0, share * (1 - share)) / n + z * z / (4 * n * n))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def difference_of_accuracies(one: float, other: float, samples: int) -> Interval:
    """Return the interval of `one - other`, each measured on so many test samples."""
    first, second = wilson(one, samples), wilson(other, samples)
    change = one - other
    return Interval(
        change - math.hypot(one - first.low, second.high - other),
        change + math.hypot(first.high - one, other - second.low),
    )
