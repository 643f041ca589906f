"""How figures are said: numbers with sensible digits, and the sentences at the top of a page. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.report.figures import Figures
from paceline.report.reading import Reading

WAITED = 0.1  # of the workers' time: from here on somebody waits for a straggler
SMALL = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")
NONE = "–"
VIRTUAL = "Times of the virtual engine are those of its world, not measured ones."


def number(value: float | None, digits: int = 3) -> str:
    """1234.5 is 1,234; 0.012345 is 0.0123."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def share(value: float | None, digits: int = 0) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.1%}" if 0 < value < 0.0095 and not digits else f"{value:.{digits}%}"


def factor(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 1e-3:
        return f"{number(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def size(number_of_bytes: float | None) -> str:
    if number_of_bytes is None:
        return NONE
    for unit in ("bytes", "KB", "MB", "GB"):
        if number_of_bytes < 1000:
            return f"{number(number_of_bytes)} {unit}"
        number_of_bytes /= 1000
    return f"{number(number_of_bytes)} TB"


def plural(how_many: int, word: str) -> str:
    return f"{how_many:,} {word}{'s' * (how_many != 1)}"


def team(workers: int) -> str:
    """Two workers"""
    return f"{SMALL[workers] if workers < len(SMALL) else f'{workers:,}'} worker{'s' * (workers != 1)}"


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# --- one run --------------------------------------------------------------------------------------------------------


def about_run(reading: Reading, found: Figures) -> list[str]:
    """What happened, in a few sentences that are true of every run they are said of."""
    said = [_outcome(reading, found)]
    if found.samples_per_second and found.status == "done":
        said.append(_speed(reading, found))
    if found.test_accuracy is not None:
        loss = "" if found.test_loss is None else f", with a test loss of {number(found.test_loss)}"
        said.append(f"In the end {share(found.test_accuracy, 1)} of the test data were right{loss}.")
    said += _where_time_went(found)
    if found.staleness_max:
        said.append(
            f"A gradient was {number(found.staleness_mean, 2)} updates old on average when it was applied, "
            f"{found.staleness_max} at most."
        )
    said += _trouble(found)
    if found.engine == "virtual":
        said.append(VIRTUAL)
    return said


def _outcome(reading: Reading, found: Figures) -> str:
    who = f"{team(found.workers)} under {found.plan.partition(':')[0]}"
    if found.status == "failed":
        return f"{who} failed to train {found.job}: {reading.record.error or 'no reason was recorded'}"
    if found.status != "done":
        return f"{who} had trained {found.job} for {duration(found.seconds)} when this page was made; it had not ended."
    samples = f", {found.samples:,} samples," if found.samples else ""
    return (
        f"{who} trained {found.job} for {plural(found.updates or 0, 'update')}{samples} in {duration(found.seconds)}."
    )


def _speed(reading: Reading, found: Figures) -> str:
    speed = f"{number(found.samples_per_second)} samples a second"
    if found.speedup is None:
        return f"That is {number(_own_rate(reading))} samples a second; how it compares was not measured."
    ceiling = "" if found.ceiling_share is None else f", and {share(found.ceiling_share)} of the ceiling"
    if reading.timed:
        against = f"the best single process ({reading.timed.comparison.best_single})"
        return f"Timed in turn it made {speed}: {factor(found.speedup)} times as fast as {against}{ceiling}."
    if found.workers == 1:
        return f"That is {speed}."
    return (
        f"That is {speed}: {factor(found.speedup)} times the single process on this page{ceiling}, not timed in turn."
    )


def _own_rate(reading: Reading) -> float | None:
    return reading.record.summary.samples_per_second if reading.record.summary else None


def _where_time_went(found: Figures) -> list[str]:
    if not found.shares or found.wait_fraction is None:  # what happens inside PyTorch is not in the trace
        return []
    parts = {"computing": "compute", "updating": "update", "communicating": "communicate", "waiting": "wait"}
    some = [(found.shares[key], word) for word, key in parts.items() if found.shares[key] >= 0.005]
    (first, word), *rest = some or [(0.0, "computing")]
    whose = "the workers'" if found.workers > 1 else "the worker's"
    went = [f"{share(first)} went into {word}", *(f"{share(part)} into {what}" for part, what in rest)]
    return [f"Of {whose} time {listed(went)}."]


def _trouble(found: Figures) -> list[str]:
    waited_for = (
        "Who waits, waits for it." if (found.wait_fraction or 0) >= WAITED else "The others do not wait for it."
    )
    said = [
        f"Worker {worker} is a straggler: it computes at {share(of)} of the others' speed. {waited_for}"
        for worker, of in list(found.stragglers.items())[:3]
    ]
    if found.deaths:
        who = listed([str(worker) for worker in found.deaths])
        died = f"Worker{'s' * (len(found.deaths) > 1)} {who} died; the others finished the work."
        said.append(died)
    return said


# --- several --------------------------------------------------------------------------------------------------------


def about_runs(readings: Sequence[Reading], found: Sequence[Figures]) -> list[str]:
    jobs, plans = sorted({f.job for f in found}), {f.plan for f in found}
    done = [f for f in found if f.status == "done"]
    said = [f"{plural(len(found), 'run')} of {listed(jobs[:4])} by {plural(len(plans), 'plan')}."]
    if len(done) < len(found):
        said.append(f"{plural(len(found) - len(done), 'run')} did not end well.")
    ranked = sorted((f for f in done if f.speedup is not None), key=lambda f: -(f.speedup or 0))
    if len(jobs) == 1 and ranked:
        said += _fastest(readings, ranked)
    elif len(jobs) == 1 and done:
        best = max(done, key=lambda f: f.samples_per_second or 0)
        said.append(f"The quickest was {best.name}, with {number(best.samples_per_second)} samples a second.")
    said += _best(readings, done) if len(jobs) == 1 else []
    waits = max(done, key=lambda f: f.wait_fraction or 0, default=None)
    if waits is not None and (waits.wait_fraction or 0) > 0.05:
        said.append(f"Most waiting was under {waits.name}: {share(waits.wait_fraction)} of its workers' time.")
    for figures in found[:24]:
        said += [f"{figures.name}: {line}" for line in _trouble(figures)]
    if any(f.engine == "virtual" for f in found):
        said.append(VIRTUAL)
    return said


def _fastest(readings: Sequence[Reading], ranked: Sequence[Figures]) -> list[str]:
    best = next((f for f in ranked if f.workers > 1 and not f.plan.startswith("ceiling")), ranked[0])
    timed = next((r.timed.comparison for r in readings if r.timed), None)
    single = f"the best single process ({timed.best_single})" if timed else "the quickest single process here"
    ceiling = "" if best.ceiling_share is None else f", {share(best.ceiling_share)} of the ceiling"
    who = f"{team(best.workers)} under {best.plan.partition(':')[0]}"
    said = []
    if best.workers > 1 and (best.speedup or 0) >= 1:
        said.append(f"{who} were {factor(best.speedup)} times as fast as {single}{ceiling}.")
    elif best.workers > 1:
        said.append(f"No plan was as fast as {single}; {who.lower()} came nearest, at {share(best.speedup)}{ceiling}.")
    slower = [f.plan.partition(":")[0] for f in ranked if f.workers > 1 and (f.speedup or 0) < 1]
    if slower and (best.speedup or 0) >= 1:
        few = listed(slower[:6]) if len(slower) < 7 else f"{len(slower)} of the runs"
        said.append(f"Slower than one process: {few}.")
    if not timed:
        said.append("These speeds are the trainings' own; they were not timed in turn.")
    return said


def _best(readings: Sequence[Reading], done: Sequence[Figures]) -> list[str]:
    common = next((r.timed.comparison.common_accuracy for r in readings if r.timed), None)
    first = min(
        (f for f in done if f.seconds_to_common_accuracy is not None),
        key=lambda f: f.seconds_to_common_accuracy or 0,
        default=None,
    )
    if common is not None and first is not None:
        when = duration(first.seconds_to_common_accuracy)
        return [f"All reached {share(common, 1)} on the test data, {first.name} first, after {when}."]
    some = [f for f in done if f.test_accuracy is not None]
    if not some:
        return []
    best, worst = (pick(some, key=lambda f: f.test_accuracy or 0) for pick in (max, min))
    if share(best.test_accuracy, 1) == share(worst.test_accuracy, 1):
        return [f"All ended with {share(best.test_accuracy, 1)} of the test data right."]
    ends = f"{share(worst.test_accuracy, 1)} to {share(best.test_accuracy, 1)}"
    return [f"They ended with {ends} of the test data right, {best.name} with most."]
