"""The sentences at the top of a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.report.formatting import duration, factor, number, share
from paceline.runtime.report.reading import Reading
from paceline.runtime.report.run_stats import RunStats
from paceline.runtime.runs.comparison import ComparisonKind

WAITED = 0.1  # share of the workers' time from which on a straggler is lines to be waited for
SMALL = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")
TESTED = ("test_accuracy", "test_loss")
VIRTUAL = "Times of the virtual engine are simulated, not measured."


def plural(how_many: int, word: str) -> str:
    """`1 update`, `30 updates`."""
    return f"{how_many:,} {word}{'s' * (how_many != 1)}"


def team(workers: int) -> str:
    """`Two workers`: small numbers in words."""
    return f"{SMALL[workers] if workers < len(SMALL) else f'{workers:,}'} worker{'s' * (workers != 1)}"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# --- one run --------------------------------------------------------------------------------------------------------


def about_run(reading: Reading, stats: RunStats) -> list[str]:
    """What happened in a run, in a few sentences."""
    lines = [_outcome(reading, stats)]
    if stats.samples_per_second and stats.status == "done":
        lines.append(_speed(reading, stats))
    if stats.test_accuracy is not None:
        loss = "" if stats.test_loss is None else f", with a test loss of {number(stats.test_loss)}"
        lines.append(f"The final test accuracy was {share(stats.test_accuracy, 1)}{loss}.")
    custom_figures = [f"{name} {number(value)}" for name, value in stats.metrics.items() if name not in TESTED]
    lines += [f"On the test data: {listed(custom_figures)}."] if custom_figures else []
    lines += _where_time_went(stats)
    if stats.staleness_max:
        lines.append(
            f"When it was applied, a gradient was {number(stats.staleness_mean, 2)} updates old on average and "
            f"{stats.staleness_max} at most."
        )
    lines += _trouble(stats)
    if stats.engine == "virtual":
        lines.append(VIRTUAL)
    return lines


def _outcome(reading: Reading, stats: RunStats) -> str:
    """Who trained what, for how long, or why not."""
    who = f"{team(stats.workers)} under {stats.plan.partition(':')[0]}"
    if stats.status == "failed":
        return f"{who} failed to train {stats.job}: {reading.record.error or 'no reason was recorded'}"
    if stats.status == "stopped" and stats.updates is not None:  # by a callback
        progress = f"{plural(stats.updates, 'update')} in {duration(stats.seconds)}"
        return f"{who} trained {stats.job} for {progress}, and the run was {reading.record.error or 'stopped'}."
    if stats.status != "done":
        return f"{who} had trained {stats.job} for {duration(stats.seconds)}, and the run had not ended."
    samples = f", {stats.samples:,} samples," if stats.samples else ""
    return (
        f"{who} trained {stats.job} for {plural(stats.updates or 0, 'update')}{samples} in {duration(stats.seconds)}."
    )


def _speed(reading: Reading, stats: RunStats) -> str:
    """The speed, and what it is compared with."""
    speed = f"{number(stats.samples_per_second)} samples per second"
    if stats.speedup is None:
        return (
            f"That is {number(_own_rate(reading))} samples per second; there is no single process to compare it with."
        )
    ceiling = "" if stats.ceiling_share is None else f", and {share(stats.ceiling_share)} of the ceiling"
    if reading.timed:
        against = f"the best single process ({reading.timed.comparison.best_single})"
        if reading.unsettled and stats.speedup_interval:
            low, high = stats.speedup_interval
            return f"In rounds that disagree, it was {factor(low)} to {factor(high)} times as fast as {against}."
        return f"The comparison measured {speed}: {factor(stats.speedup)} times the speed of {against}{ceiling}."
    if stats.workers == 1:
        return f"That is {speed}."
    against = f"the single process on this page{ceiling}"
    return f"That is {speed}: {factor(stats.speedup)} times {against}. They were not timed side by side."


def _own_rate(reading: Reading) -> float | None:
    return reading.record.summary.samples_per_second if reading.record.summary else None


def _where_time_went(stats: RunStats) -> list[str]:
    """The shares of the workers' time."""
    if not stats.shares or not stats.divided:
        return (
            []
            if stats.divided
            else ["How DDP's time divides into computing, communicating and waiting is not measured."]
        )
    parts = {"computing": "compute", "updating": "update", "communicating": "communicate", "waiting": "wait"}
    some = [(stats.shares[key], word) for word, key in parts.items() if stats.shares[key] >= 0.005]
    (first, word), *rest = some or [(0.0, "computing")]
    whose = "the workers'" if stats.workers > 1 else "the worker's"
    went = [f"{share(first)} went into {word}", *(f"{share(part)} into {what}" for part, what in rest)]
    return [f"Of {whose} time {listed(went)}."]


def _trouble(stats: RunStats) -> list[str]:
    """Stragglers and dead workers."""
    waited_for = (
        "The other workers wait for it." if (stats.wait_fraction or 0) >= WAITED else "The others do not wait for it."
    )
    lines = [
        f"Worker {worker} is a straggler: it computes at {share(of)} of the others' speed. {waited_for}"
        for worker, of in list(stats.stragglers.items())[:3]
    ]
    if stats.deaths:
        who = listed([str(worker) for worker in stats.deaths])
        died = f"Worker{'s' * (len(stats.deaths) > 1)} {who} died; the others finished the training."
        lines.append(died)
    return lines


# --- several --------------------------------------------------------------------------------------------------------


def about_runs(readings: Sequence[Reading], all_stats: Sequence[RunStats]) -> list[str]:
    """What several runs have in common and how they differ, in a few sentences."""
    jobs, plans = sorted({f.job for f in all_stats}), {f.plan for f in all_stats}
    done = [f for f in all_stats if f.status == "done"]
    lines = [f"{plural(len(all_stats), 'run')} of {listed(jobs[:4])} by {plural(len(plans), 'plan')}."]
    if len(done) < len(all_stats):
        lines.append(f"{plural(len(all_stats) - len(done), 'run')} did not finish.")
    ranked = sorted((f for f in done if f.speedup is not None), key=lambda f: -(f.speedup or 0))
    if len(jobs) == 1 and ranked:
        lines += _fastest(readings, ranked)
    elif len(jobs) == 1 and done:
        best = max(done, key=lambda f: f.samples_per_second or 0)
        lines.append(f"The fastest was {best.name}, with {number(best.samples_per_second)} samples per second.")
    lines += _best(readings, done) if len(jobs) == 1 else []
    waits = max(done, key=lambda f: f.wait_fraction or 0, default=None)
    if waits is not None and (waits.wait_fraction or 0) > 0.05:
        lines.append(f"Workers waited most under {waits.name}: {share(waits.wait_fraction)} of their time.")
    for stats in all_stats[:24]:
        lines += [f"{stats.name}: {line}" for line in _trouble(stats)]
    if any(f.engine == "virtual" for f in all_stats):
        lines.append(VIRTUAL)
    return lines


def _fastest(readings: Sequence[Reading], ranked: Sequence[RunStats]) -> list[str]:
    """The fastest plan, and those that are slower than one process."""
    best = next((f for f in ranked if f.workers > 1 and not f.plan.startswith("ceiling")), ranked[0])
    timed = next((r.timed.comparison for r in readings if r.timed), None)
    if timed and (timed.disagreement or (timed.answer and timed.answer.kind == ComparisonKind.UNDECIDED)):
        return []
    single = f"the best single process ({timed.best_single})" if timed else "the fastest single process on this page"
    ceiling = "" if best.ceiling_share is None else f", {share(best.ceiling_share)} of the ceiling"
    who = f"{team(best.workers)} under {best.plan.partition(':')[0]}"
    lines = []
    if best.workers > 1 and (best.speedup or 0) >= 1:
        lines.append(f"{who} were {factor(best.speedup)} times as fast as {single}{ceiling}.")
    elif best.workers > 1:
        lines.append(f"No plan was as fast as {single}; {who.lower()} came nearest, at {share(best.speedup)}{ceiling}.")
    slower = [f.plan.partition(":")[0] for f in ranked if f.workers > 1 and (f.speedup or 0) < 1]
    if slower and (best.speedup or 0) >= 1:
        few = listed(slower[:6]) if len(slower) < 7 else f"{len(slower)} of the runs"
        lines.append(f"Slower than one process: {few}.")
    if not timed:
        lines.append("These are the speeds of the trainings themselves, which were not timed side by side.")
    return lines


def _best(readings: Sequence[Reading], done: Sequence[RunStats]) -> list[str]:
    """The test accuracies that were reached."""
    common = next((r.timed.comparison.common_accuracy for r in readings if r.timed), None)
    first = min(
        (f for f in done if f.seconds_to_common_accuracy is not None),
        key=lambda f: f.seconds_to_common_accuracy or 0,
        default=None,
    )
    if common is not None and first is not None:
        when = duration(first.seconds_to_common_accuracy)
        sentence = f"All reach a test accuracy of {share(common, 1)} and hold it to the end"
        return [f"{sentence}; {first.name} was the first to do so, after {when}."]
    some = [f for f in done if f.test_accuracy is not None]
    if not some:
        return []
    best, worst = (pick(some, key=lambda f: f.test_accuracy or 0) for pick in (max, min))
    if share(best.test_accuracy, 1) == share(worst.test_accuracy, 1):
        return [f"All ended with a test accuracy of {share(best.test_accuracy, 1)}."]
    ends = f"{share(worst.test_accuracy, 1)} to {share(best.test_accuracy, 1)}"
    return [f"Final test accuracies range from {ends}; {best.name} has the highest."]
