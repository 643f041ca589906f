"""The sentences at the top of a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.report.formatting import duration, factor, number, share
from paceline.runtime.report.reading import Reading
from paceline.runtime.report.run_stats import RunStats
from paceline.runtime.runs.comparison import Kind

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


def about_run(reading: Reading, found: RunStats) -> list[str]:
    """What happened in a run, in a few sentences."""
    lines = [_outcome(reading, found)]
    if found.samples_per_second and found.status == "done":
        lines.append(_speed(reading, found))
    if found.test_accuracy is not None:
        loss = "" if found.test_loss is None else f", with a test loss of {number(found.test_loss)}"
        lines.append(f"The final test accuracy was {share(found.test_accuracy, 1)}{loss}.")
    own = [f"{name} {number(value)}" for name, value in found.metrics.items() if name not in TESTED]
    lines += [f"On the test data: {listed(own)}."] if own else []
    lines += _where_time_went(found)
    if found.staleness_max:
        lines.append(
            f"When it was applied, a gradient was {number(found.staleness_mean, 2)} updates old on average and "
            f"{found.staleness_max} at most."
        )
    lines += _trouble(found)
    if found.engine == "virtual":
        lines.append(VIRTUAL)
    return lines


def _outcome(reading: Reading, found: RunStats) -> str:
    """Who trained what, for how long, or why not."""
    who = f"{team(found.workers)} under {found.plan.partition(':')[0]}"
    if found.status == "failed":
        return f"{who} failed to train {found.job}: {reading.record.error or 'no reason was recorded'}"
    if found.status == "stopped" and found.updates is not None:  # by a callback
        made = f"{plural(found.updates, 'update')} in {duration(found.seconds)}"
        return f"{who} trained {found.job} for {made}, and the run was {reading.record.error or 'stopped'}."
    if found.status != "done":
        return f"{who} had trained {found.job} for {duration(found.seconds)}, and the run had not ended."
    samples = f", {found.samples:,} samples," if found.samples else ""
    return (
        f"{who} trained {found.job} for {plural(found.updates or 0, 'update')}{samples} in {duration(found.seconds)}."
    )


def _speed(reading: Reading, found: RunStats) -> str:
    """The speed, and what it is compared with."""
    speed = f"{number(found.samples_per_second)} samples per second"
    if found.speedup is None:
        return (
            f"That is {number(_own_rate(reading))} samples per second; there is no single process to compare it with."
        )
    ceiling = "" if found.ceiling_share is None else f", and {share(found.ceiling_share)} of the ceiling"
    if reading.timed:
        against = f"the best single process ({reading.timed.comparison.best_single})"
        if reading.unsettled and found.speedup_interval:
            low, high = found.speedup_interval
            return f"In rounds that disagree, it was {factor(low)} to {factor(high)} times as fast as {against}."
        return f"The comparison measured {speed}: {factor(found.speedup)} times the speed of {against}{ceiling}."
    if found.workers == 1:
        return f"That is {speed}."
    against = f"the single process on this page{ceiling}"
    return f"That is {speed}: {factor(found.speedup)} times {against}. They were not timed side by side."


def _own_rate(reading: Reading) -> float | None:
    return reading.record.summary.samples_per_second if reading.record.summary else None


def _where_time_went(found: RunStats) -> list[str]:
    """The shares of the workers' time."""
    if not found.shares or not found.divided:
        return (
            []
            if found.divided
            else ["How DDP's time divides into computing, communicating and waiting is not measured."]
        )
    parts = {"computing": "compute", "updating": "update", "communicating": "communicate", "waiting": "wait"}
    some = [(found.shares[key], word) for word, key in parts.items() if found.shares[key] >= 0.005]
    (first, word), *rest = some or [(0.0, "computing")]
    whose = "the workers'" if found.workers > 1 else "the worker's"
    went = [f"{share(first)} went into {word}", *(f"{share(part)} into {what}" for part, what in rest)]
    return [f"Of {whose} time {listed(went)}."]


def _trouble(found: RunStats) -> list[str]:
    """Stragglers and dead workers."""
    waited_for = (
        "The other workers wait for it." if (found.wait_fraction or 0) >= WAITED else "The others do not wait for it."
    )
    lines = [
        f"Worker {worker} is a straggler: it computes at {share(of)} of the others' speed. {waited_for}"
        for worker, of in list(found.stragglers.items())[:3]
    ]
    if found.deaths:
        who = listed([str(worker) for worker in found.deaths])
        died = f"Worker{'s' * (len(found.deaths) > 1)} {who} died; the others finished the training."
        lines.append(died)
    return lines


# --- several --------------------------------------------------------------------------------------------------------


def about_runs(readings: Sequence[Reading], found: Sequence[RunStats]) -> list[str]:
    """What several runs have in common and how they differ, in a few sentences."""
    jobs, plans = sorted({f.job for f in found}), {f.plan for f in found}
    done = [f for f in found if f.status == "done"]
    lines = [f"{plural(len(found), 'run')} of {listed(jobs[:4])} by {plural(len(plans), 'plan')}."]
    if len(done) < len(found):
        lines.append(f"{plural(len(found) - len(done), 'run')} did not finish.")
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
    for stats in found[:24]:
        lines += [f"{stats.name}: {line}" for line in _trouble(stats)]
    if any(f.engine == "virtual" for f in found):
        lines.append(VIRTUAL)
    return lines


def _fastest(readings: Sequence[Reading], ranked: Sequence[RunStats]) -> list[str]:
    """The fastest plan, and those that are slower than one process."""
    best = next((f for f in ranked if f.workers > 1 and not f.plan.startswith("ceiling")), ranked[0])
    timed = next((r.timed.comparison for r in readings if r.timed), None)
    if timed and (timed.disagreement or (timed.answer and timed.answer.kind == Kind.UNDECIDED)):
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
        held = f"All reach a test accuracy of {share(common, 1)} and hold it to the end"
        return [f"{held}; {first.name} was the first to do so, after {when}."]
    some = [f for f in done if f.test_accuracy is not None]
    if not some:
        return []
    best, worst = (pick(some, key=lambda f: f.test_accuracy or 0) for pick in (max, min))
    if share(best.test_accuracy, 1) == share(worst.test_accuracy, 1):
        return [f"All ended with a test accuracy of {share(best.test_accuracy, 1)}."]
    ends = f"{share(worst.test_accuracy, 1)} to {share(best.test_accuracy, 1)}"
    return [f"Final test accuracies range from {ends}; {best.name} has the highest."]
