"""The top of a page: the key numbers of one run, or the table and the speeds of several."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from paceline.report.formatting import NONE, count, duration, factor, number, share, size
from paceline.report.run_stats import RunStats

COLOURS = 8


def section(title: str, body: str, note: str = "") -> str:
    """A section with its heading; empty without a body."""
    if not body:
        return ""
    text = f"<p class=note>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{text}{body}</section>\n"


def tiles(found: RunStats) -> str:
    """The key numbers of one run; unknown ones are left out."""
    entries = [
        ("samples per second", number(found.samples_per_second)),
        ("test accuracy", share(found.test_accuracy, 1)),
        ("trained for", duration(found.seconds)),
        ("times one process", factor(found.speedup)),
        ("of the ceiling", share(found.ceiling_share)),
        ("per worker", share(found.efficiency)),
        ("waiting", share(found.wait_fraction)),
        ("staleness", number(found.staleness_mean, 2) if found.staleness_max else NONE),
    ]
    known = [(name, value) for name, value in entries if value != NONE]
    body = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in known)
    return f"<dl class=tiles>{body}</dl>\n"


COLUMNS: list[tuple[str, str, Any]] = [
    ("workers", "workers", lambda f: (f.workers, str(f.workers))),
    ("samples/s", "samples per second", lambda f: (f.samples_per_second, number(f.samples_per_second))),
    ("±", "half the range of the timed rounds", lambda f: (f.half_range, share(f.half_range))),
    ("speed-up", "over the best single process", lambda f: (f.speedup, factor(f.speedup))),
    ("effic.", "speed-up per worker", lambda f: (f.efficiency, share(f.efficiency))),
    ("ceiling", "share of the speed of workers that never communicate",
     lambda f: (f.ceiling_share, share(f.ceiling_share))),
    ("accuracy", "on the test data, at the end", lambda f: (f.test_accuracy, share(f.test_accuracy, 1))),
    ("test loss", "at the end", lambda f: (f.test_loss, number(f.test_loss))),
    ("common", "time to the accuracy that all runs reached",
     lambda f: (f.seconds_to_common_accuracy, duration(f.seconds_to_common_accuracy))),
    ("stale", "mean updates between a pull and its push", lambda f: (f.staleness_mean, number(f.staleness_mean, 2))),
    ("waits", "share of the workers' time", lambda f: (f.wait_fraction, share(f.wait_fraction))),
    ("updates", "updates", lambda f: (f.updates, count(f.updates))),
    ("seconds", "of training", lambda f: (f.seconds, number(f.seconds))),
    ("sent", "between workers", lambda f: (f.bytes_sent, size(f.bytes_sent))),
]  # fmt: skip


def table(found: Sequence[RunStats]) -> str:
    """A row per run; columns that are empty for all runs are left out."""
    colours = colours_of([f.plan for f in found])
    columns = [column for column in COLUMNS if any(column[2](f)[0] is not None for f in found)]
    seeds = len({f.seed for f in found}) > 1
    jobs = len({f.job for f in found}) > 1
    head = '<th scope=col data-sort="text">plan</th>' + '<th scope=col data-sort="text">job</th>' * jobs
    head += "".join(
        f'<th scope=col class=n data-sort="number" title="{escape(why)}">{name}</th>' for name, why, _ in columns
    )
    head += '<th scope=col class=n data-sort="number">seed</th>' * seeds
    body = ""
    for place, f in enumerate(found):
        cells = f"<td>{escape(f.job)}</td>" * jobs
        for _, _, get in columns:
            raw, text = get(f)
            cells += f'<td class=n data-v="{"" if raw is None else format(raw, ".6g")}">{text}</td>'
        cells += f'<td class=n data-v="{f.seed}">{f.seed}</td>' * seeds
        mark = "" if f.status == "done" else f" <em>{escape(f.status)}</em>"
        body += (
            f'<tr data-name="{escape(f.name, quote=True)}" data-place="{place}"><th scope=row title="{escape(f.path)}">'
            f'<b style="background:var(--{colours[f.plan]})"></b>{escape(f.name)}{mark}</th>{cells}</tr>'
        )
    return section(
        "Side by side",
        f"<div class=scroll><table class=runs><caption class=unseen>The runs</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>",
    )


def colours_of(plans: Sequence[str]) -> dict[str, str]:
    """A colour per plan, in order; plans beyond the last colour share a grey."""
    distinct = list(dict.fromkeys(plans))
    return {plan: f"run-{place}" if place < COLOURS else "run-other" for place, plan in enumerate(distinct)}


def speeds(found: Sequence[RunStats]) -> str:
    """A bar per run with its speed-up, and a mark at its ceiling."""
    some = [f for f in found if f.speedup is not None]
    if len(some) < 2 or len(some) > 24:
        return ""
    ceilings = {f.name: f.speedup / f.ceiling_share for f in some if f.speedup and f.ceiling_share}
    most = max([f.speedup or 0.0 for f in some] + list(ceilings.values())) * 1.02
    colours, body = colours_of([f.plan for f in found]), ""
    for f in some:
        limit = ceilings.get(f.name)
        mark = f'<s style="left:{limit / most:.2%}" title="ceiling {factor(limit)}"></s>' if limit else ""
        body += (
            f"<tr><th scope=row>{escape(f.name)}</th><td class=bar><div class=speed>"
            f'<i style="width:{(f.speedup or 0) / most:.2%};background:var(--{colours[f.plan]})"></i>{mark}'
            f'<u style="left:{1 / most:.2%}"></u></div></td><td class=n>{factor(f.speedup)}</td>'
            f"<td class=n>{share(f.efficiency)}</td><td class=n>{share(f.ceiling_share)}</td></tr>"
        )
    head = "<td></td><td></td><th scope=col>speed-up</th><th scope=col>per worker</th><th scope=col>of ceiling</th>"
    timed = all(f.timed for f in some)
    note = "" if timed else "Speeds of the trainings themselves; paceline compare times plans in interleaved rounds. "
    return section(
        "Speed",
        f"<div class=scroll><table class=times><caption class=unseen>Speed-up</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>",
        note + "The thin line marks a single process, a short mark the ceiling of a run.",
    )
