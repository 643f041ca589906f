"""The top of a page: the key numbers of one run, or the table and the speeds of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import NamedTuple

from paceline.runtime.report.charts import ticks
from paceline.runtime.report.formatting import NONE, accuracy, count, duration, factor, number, ratio, share, size
from paceline.runtime.report.run_stats import RunStats

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
