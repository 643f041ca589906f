"""The top of a page: sentences and key numbers of one run, or the table and the speeds of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import NamedTuple

from paceline.runtime.report.charts import ticks
from paceline.runtime.report.formatting import NONE, accuracy, count, duration, factor, number, ratio, share, size
from paceline.runtime.report.reading import Reading, RunStats
from paceline.runtime.runs.comparison import ComparisonKind

COLOURS = 8
TESTED = ("test_accuracy", "test_loss")
METRICS = 12  # of the user's own that have a column


def section(title: str, body: str, note: str = "") -> str:
    """A section with its heading; empty without a body."""
    if not body:
        return ""
    text = f"<p class=note>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{text}{body}</section>\n"


def tiles(stats: RunStats, ranges: bool = False) -> str:
    """The key numbers of one run; unknown ones are left out. With `ranges`, ratios are shown by their intervals."""
    per_worker = None if ranges else stats.efficiency
    entries = [
        ("samples per second", number(stats.samples_per_second)),
        ("test accuracy", share(stats.test_accuracy, 1)),
        *((name.replace("_", " "), number(value)) for name, value in stats.metrics.items() if name not in TESTED),
        ("trained for", duration(stats.seconds)),
        ("times one process", ratio(stats.speedup, stats.speedup_interval, range_only=ranges)),
        ("share of ceiling", ratio(stats.ceiling_share, stats.ceiling_share_interval, True, ranges)),
        ("speed-up per worker", share(per_worker)),
        ("time waiting", share(stats.wait_fraction)),
        ("staleness", number(stats.staleness_mean, 2) if stats.staleness_max else NONE),
    ]
    measured = [(name, value) for name, value in entries if value != NONE]
    body = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in measured)
    return f"<dl class=tiles>{body}</dl>\n"


class Column(NamedTuple):
    """A column of the table of runs."""

    head: str
    why: str
    cell: Callable[[RunStats], tuple[float | None, str]]  # the value to sort by, and its text


def _columns(all_stats: Sequence[RunStats], ranges: bool) -> list[Column]:
    """The columns that any of the runs has a value for, with those of the user's own metrics."""
    custom_names = list(dict.fromkeys(name for f in all_stats for name in f.metrics if name not in TESTED))
    percent = {"percent": True, "range_only": ranges}
    columns = [
        Column("workers", "", lambda f: (f.workers, str(f.workers))),
        Column("samples per second", "", lambda f: (f.samples_per_second, number(f.samples_per_second))),
        Column(
            "speed-up",
            "over the best single process",
            lambda f: (f.speedup, ratio(f.speedup, f.speedup_interval, range_only=ranges)),
        ),
        Column("speed-up per worker", "", lambda f: (None if ranges else f.efficiency, share(f.efficiency))),
        Column(
            "share of ceiling",
            "of the speed of workers that never communicate",
            lambda f: (f.ceiling_share, ratio(f.ceiling_share, f.ceiling_share_interval, **percent)),
        ),
        Column(
            "test accuracy",
            "at the end",
            lambda f: (f.test_accuracy, accuracy(f.test_accuracy, f.test_accuracy_interval)),
        ),
        *(Column(name, "on the test data, at the end", partial(_metric, name)) for name in custom_names[:METRICS]),
        Column("test loss", "at the end", lambda f: (f.test_loss, number(f.test_loss))),
        Column(
            "time to common accuracy",
            "from which on all runs hold it",
            lambda f: (f.seconds_to_common_accuracy, duration(f.seconds_to_common_accuracy)),
        ),
        Column(
            "mean staleness",
            "updates between a pull and its push",
            lambda f: (f.staleness_mean, number(f.staleness_mean, 2)),
        ),
        Column(
            "time waiting",
            "share of the workers' time",
            lambda f: (f.wait_fraction, share(f.wait_fraction) if f.divided else "not measured"),
        ),
        Column("updates", "", lambda f: (f.updates, count(f.updates))),
        Column("seconds of training", "", lambda f: (f.seconds, number(f.seconds))),
        Column(
            "sent between workers", "", lambda f: (f.bytes_sent, size(f.bytes_sent) if f.divided else "not measured")
        ),
    ]
    if len(all_stats) > 1 and len({f.updates for f in all_stats}) == 1:  # then it is among the settings that all share
        columns = [column for column in columns if column.head != "updates"]
    return [column for column in columns if any(column.cell(f)[0] is not None for f in all_stats)]


def _metric(name: str, f: RunStats) -> tuple[float | None, str]:
    value = f.metrics.get(name)
    return value, number(value)


def table(all_stats: Sequence[RunStats], ranges: bool = False) -> str:
    """A row per run, and on a phone a card; with `ranges`, ratios are shown by their intervals alone."""
    colours = colours_of([f.plan for f in all_stats])
    columns = _columns(all_stats, ranges)
    if len({f.job for f in all_stats}) > 1:
        columns.insert(0, Column("job", "", lambda f: (None, escape(f.job))))
    if len({f.seed for f in all_stats}) > 1:
        columns.append(Column("seed", "", lambda f: (f.seed, str(f.seed))))
    head = '<th scope=col data-sort="text">plan</th>' + "".join(_head(column) for column in columns)
    body = ""
    for place, f in enumerate(all_stats):
        cells = "".join(_cell(column, f) for column in columns)
        mark = "" if f.status == "done" else f" <em>{escape(f.status)}</em>"
        body += (
            f'<tr data-name="{escape(f.name, quote=True)}" data-place="{place}"><th scope=row title="{escape(f.path)}">'
            f'<b style="background:var(--{colours[f.plan]})"></b>{escape(f.name)}{mark}</th>{cells}</tr>'
        )
    return (
        f'<div class=scroll tabindex="0"><table class="runs cards"><caption class=unseen>The runs</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(column: Column) -> str:
    why = f' title="{escape(column.why, quote=True)}"' if column.why else ""
    kind = "text" if column.head == "job" else "number"
    return f'<th scope=col class=n data-sort="{kind}"{why}>{escape(column.head.replace("_", " "))}</th>'


def _cell(column: Column, f: RunStats) -> str:
    raw, text = column.cell(f)
    label = escape(column.head.replace("_", " "), quote=True)
    return f'<td class=n data-label="{label}" data-v="{"" if raw is None else format(raw, ".6g")}">{text}</td>'


def colours_of(plans: Sequence[str]) -> dict[str, str]:
    """A colour per plan, in order; plans beyond the last colour share a grey."""
    distinct = list(dict.fromkeys(plans))
    return {plan: f"run-{place}" if place < COLOURS else "run-other" for place, plan in enumerate(distinct)}


def speeds(all_stats: Sequence[RunStats]) -> str:
    """A bar per run with its speed-up, the interval that holds it, and a mark at its ceiling."""
    some = [f for f in all_stats if f.speedup is not None]
    if len(some) < 2 or len(some) > 24:
        return ""
    ceilings = {f.name: f.speedup / f.ceiling_share for f in some if f.speedup and f.ceiling_share}
    reach = [(f.speedup_interval or (0.0, 0.0))[1] for f in some]
    most = max([1.0, *(f.speedup or 0.0 for f in some), *ceilings.values(), *reach]) * 1.02
    colours, body = colours_of([f.plan for f in all_stats]), ""
    for f in some:
        body += (
            f"<tr><th scope=row>{escape(f.name)}</th><td class=bar><div class=speed>"
            f'<i style="width:{(f.speedup or 0) / most:.2%};background:var(--{colours[f.plan]})"></i>'
            f'{_whisker(f, most)}{_mark(ceilings.get(f.name), most)}<u style="left:{1 / most:.2%}"></u></div></td></tr>'
        )
    marks = "".join(f'<i class="x" style="left:{value / most:.2%}">{text}</i>' for value, text in ticks(0, most))
    timed = all(f.timed for f in some)
    note = "" if timed else "Speeds of the trainings themselves; paceline compare times plans in interleaved rounds. "
    note += "The thin line is one process"
    note += ", a short bar the ceiling of a run" if ceilings else ""
    note += ", the whisker an interval that holds the median of the rounds." if any(reach) else "."
    return (
        f"<h3>Speed-up over the best single process</h3><p class=note>{note}</p><table class=times>"
        f"<caption class=unseen>Speed-up</caption><tbody>{body}<tr class=scale><td></td><td class=bar>"
        f'<div class=marks aria-hidden="true">{marks}</div></td></tr></tbody></table>'
    )


def _whisker(f: RunStats, most: float) -> str:
    if not f.speedup_interval or f.speedup_interval[0] == f.speedup_interval[1]:
        return ""
    low, high = f.speedup_interval
    title = ratio(f.speedup, f.speedup_interval, range_only=True)
    return f'<q style="left:{low / most:.2%};width:{(high - low) / most:.2%}" title="{title}"></q>'


def _mark(limit: float | None, most: float) -> str:
    return f'<s style="left:{limit / most:.2%}" title="ceiling {factor(limit)}"></s>' if limit else ""


# The sentences at the top of a page. Pure.

WAITED = 0.1  # share of the workers' time from which on a straggler is lines to be waited for
SMALL = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")

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


# one run.


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


# several.


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
