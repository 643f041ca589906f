"""The sections of a page, each a function of what was read: HTML, put together from charts, timelines and layers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from paceline.report.charts import Line, chart, histogram_chart, legend
from paceline.report.curves import AXES, envelope, evaluation_curve, histogram, loss_curve, metrics, staleness_curve
from paceline.report.figures import Figures
from paceline.report.lanes import Lane
from paceline.report.layers import layers
from paceline.report.reading import Reading
from paceline.report.timeline import time_bars, timeline
from paceline.report.words import count, duration, number, share, size, times as factor
from paceline.tally import Time
from paceline.trace import Kind

POINTS = 4000  # of all curves of a chart
COLOURS = 8


def section(title: str, body: str, note: str = "") -> str:
    if not body:
        return ""
    says = f"<p class=note>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{says}{body}</section>\n"


# --- what is said at once -------------------------------------------------------------------------------------------


def tiles(found: Figures) -> str:
    entries = [
        ("samples a second", number(found.samples_per_second)),
        ("test accuracy", share(found.test_accuracy, 1)),
        ("trained for", duration(found.seconds)),
        ("times one process", factor(found.speedup)),
        ("of the ceiling", share(found.ceiling_share)),
        ("per worker", share(found.efficiency)),
        ("waiting", share(found.wait_fraction)),
        ("staleness", number(found.staleness_mean, 2)),
    ]
    body = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in entries)
    return f"<dl class=tiles>{body}</dl>\n"


COLUMNS: list[tuple[str, str, Any]] = [
    ("workers", "workers", lambda f: (f.workers, str(f.workers))),
    ("samples/s", "samples per second", lambda f: (f.samples_per_second, number(f.samples_per_second))),
    ("±", "half the range of the timed rounds", lambda f: (f.half_range, share(f.half_range))),
    ("speed-up", "over the best single process", lambda f: (f.speedup, factor(f.speedup))),
    ("effic.", "speed-up per worker", lambda f: (f.efficiency, share(f.efficiency))),
    ("ceiling", "share of what as many workers do that never meet", lambda f: (f.ceiling_share, share(f.ceiling_share))),
    ("accuracy", "on the test data, at the end", lambda f: (f.test_accuracy, share(f.test_accuracy, 1))),
    ("test loss", "at the end", lambda f: (f.test_loss, number(f.test_loss))),
    ("common", "when it reached the accuracy that all reached",
     lambda f: (f.seconds_to_common_accuracy, duration(f.seconds_to_common_accuracy))),
    ("stale", "updates between a pull and its push, mean", lambda f: (f.staleness_mean, number(f.staleness_mean, 2))),
    ("waits", "share of the workers' time", lambda f: (f.wait_fraction, share(f.wait_fraction))),
    ("updates", "updates", lambda f: (f.updates, count(f.updates))),
    ("seconds", "of training", lambda f: (f.seconds, number(f.seconds))),
    ("moved", "between workers", lambda f: (f.bytes_sent, size(f.bytes_sent))),
]  # fmt: skip


def table(found: Sequence[Figures]) -> str:
    """A row per run; columns in which nobody has anything are left out."""
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
            f'<tr data-name="{escape(f.name, quote=True)}" data-place="{place}"><th scope=row>'
            f'<b style="background:var(--{colours[f.plan]})"></b>{escape(f.name)}{mark}</th>{cells}</tr>'
        )
    return section(
        "Side by side",
        f"<div class=scroll><table class=runs><caption class=unseen>The runs</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>",
    )


def colours_of(plans: Sequence[str]) -> dict[str, str]:
    """A colour per plan, in order; of more plans than colours, the rest share a grey."""
    distinct = list(dict.fromkeys(plans))
    return {plan: f"run-{place}" if place < COLOURS else "run-other" for place, plan in enumerate(distinct)}


# --- curves ---------------------------------------------------------------------------------------------------------


def learning(readings: Sequence[Reading]) -> str:
    """Loss and evaluations over time, updates and samples: three pictures each, of which one is shown."""
    curves = [loss_curve(reading) for reading in readings]
    names = list(dict.fromkeys(name for reading in readings for name in metrics(reading)))[:6]
    if not any(curves) and not names:
        return ""
    colours = colours_of([reading.plan for reading in readings])
    many = len(readings) > 12
    bins = max(20, min(400, POINTS // len(readings)))
    tabs = "".join(
        f'<input type="radio" name="axis" id="axis-{axis}"{" checked" * (not place)}><label for="axis-{axis}">'
        f"{'over time' if axis == 'seconds' else f'over {axis}'}</label>"
        for place, axis in enumerate(AXES)
    )
    body = ""
    for axis in AXES:
        losses = [
            Line(r.name, colours[r.plan], envelope(c.over(axis), c.values, bins), faint=many)
            for r, c in zip(readings, curves, strict=True)
            if c
        ]
        charts = chart("Training loss", losses, axis)
        for name in names:
            found = [(r, evaluation_curve(r, name)) for r in readings]
            lines = [
                Line(r.name, colours[r.plan], envelope(c.over(axis), c.values, bins), dots=not many, faint=many)
                for r, c in found
                if c
            ]
            charts += chart(name.replace("_", " ").capitalize(), lines, axis, percent="accuracy" in name)
        body += f'<div class="charts over-{axis}">{charts}</div>'
    key = legend([(plan, colours[plan]) for plan in colours]) if len(readings) > 1 else ""
    lost = sum(int((~np.isfinite(r.trace.of_kind(Kind.COMPUTE)["value"])).sum()) for r in readings)
    note = f"{lost:,} losses were not finite and are left out." if lost else ""
    return section("Learning", f'<div class="tabs">{tabs}{key}{body}</div>', note)


def staleness(reading: Reading) -> str:
    seconds, values = staleness_curve(reading.trace)
    if not len(values) or not values.any():
        return ""
    line = Line("staleness", "run-0", envelope(seconds, values, 400))
    body = chart("Staleness over time", [line], "seconds")
    body += histogram_chart("How old gradients were", histogram(values), "updates between pull and push")
    note = "Updates that others made between a worker's pull and its own push."
    return section("Staleness", f"<div class=charts>{body}</div>", note)


def staleness_of_all(readings: Sequence[Reading]) -> str:
    colours, bins = colours_of([r.plan for r in readings]), max(20, POINTS // len(readings) // 2)
    lines = []
    for reading in readings:
        seconds, values = staleness_curve(reading.trace)
        if len(values) and values.any():
            lines.append(Line(reading.name, colours[reading.plan], envelope(seconds, values, bins), faint=len(readings) > 12))
    return section("Staleness", f"<div class=charts>{chart('Mean staleness', lines, 'seconds')}</div>") if lines else ""


# --- speed and time -------------------------------------------------------------------------------------------------


def speeds(found: Sequence[Figures]) -> str:
    """A bar per run: its speed-up, with a mark where its ceiling is."""
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
    note = "" if timed else "From the trainings themselves, not timed in turn: paceline compare does that. "
    return section(
        "Speed",
        f"<div class=scroll><table class=times><caption class=unseen>Speed-up</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>",
        note + "The thin line is one process; a short mark is a run's ceiling.",
    )


def times(found: Sequence[Figures]) -> str:
    rows = [(f.name, f.shares) for f in found if f.shares]
    note = "Shares of all workers' time."
    return section("Where the time went", time_bars(rows), note) if 0 < len(rows) <= 24 else ""


# --- one run --------------------------------------------------------------------------------------------------------


def of_run(reading: Reading, found: Figures, lanes: Sequence[Lane], spans: int) -> str:
    """What is only a single run's: its workers' time, how old its gradients were, its model."""
    deaths = [(int(row["worker"]), float(row["end"]) / 1e9) for row in reading.trace.of_kind(Kind.DEATH)]
    drawn = timeline(lanes, deaths, spans)
    note = "Each strip is a worker; its height is shared out between what it did in that stretch of time."
    body = section("Timeline", drawn, note)
    rows = [(_whose(lane, found), _parts(lane)) for lane in lanes[:64]]
    if len(lanes) > 1:
        rows.append(("all workers", found.shares))
    body += section("Where the time went", time_bars(rows) if rows else "", _time_note(reading))
    body += staleness(reading)
    return body + section("Model", layers(reading.record.get("model") or []))


def _whose(lane: Lane, found: Figures) -> str:
    slow = found.stragglers.get(lane.worker)
    return f"worker {lane.worker}" + (f", a straggler at {share(slow)}" if slow else "")


def _parts(lane: Lane) -> dict[str, float]:
    total = float(lane.seconds.sum()) or 1.0
    return {time.name.lower(): float(lane.seconds[time]) / total for time in Time}


def _time_note(reading: Reading) -> str:
    if reading.method == "ddp":
        return "PyTorch's DDP meets while it computes: its waiting and communicating are within compute."
    if reading.trace.of_kind(Kind.MEET).size:
        return "A meeting waits at several places; its waiting is drawn first, as one piece."
    if reading.record.get("engine") == "virtual":
        return "What travels from a worker to a shard counts as update, the way back as other."
    if reading.workers > 1:
        return "Workers that share memory move parameters while they update them: that is within update."
    return ""


def one_by_one(
    readings: Sequence[Reading], found: Sequence[Figures], laid: Sequence[Sequence[Lane]], spans: int
) -> str:
    """The details of each run, folded; the model once, where all have the same."""
    models = [reading.record.get("model") or [] for reading in readings]
    common = models[0] if all(model == models[0] for model in models) else []
    body = ""
    for reading, f, lanes in zip(readings, found, laid, strict=True):
        own = reading if not common else _without_model(reading)
        inside = of_run(own, f, lanes, spans) + settings(own)
        body += f"<details><summary>{escape(f.name)}<small>{escape(_short(f))}</small></summary>{inside}</details>\n"
    return section("One by one", body) + section("Model", layers(common))


def _without_model(reading: Reading) -> Reading:
    from dataclasses import replace

    missing = tuple(line for line in reading.missing if "outline" not in line)
    return replace(reading, record={**reading.record, "model": []}, missing=missing)


def _short(found: Figures) -> str:
    return f"{number(found.samples_per_second)} samples/s, {duration(found.seconds)}"


# --- settings -------------------------------------------------------------------------------------------------------


def settings(reading: Reading) -> str:
    record, summary = reading.record, reading.summary
    run = {key: record.get(key) for key in ("plan", "engine", "workers", "threads", "shards", "limit", "started", "status")}
    run |= {"folder": str(reading.path), "parameters' sha256": str(summary.get("parameters_sha256", ""))[:16]}
    groups = {"Run": run, "Job": reading.job, "Machine and versions": record.get("machine") or {}}
    body = "".join(f"<div><h3>{name}</h3>{_list(entries)}</div>" for name, entries in groups.items())
    notes = [*map(str, record.get("notes") or ()), *reading.missing]
    if record.get("error"):
        notes.append(str(record["error"]))
    said = "".join(f"<p class=note>{escape(note)}</p>" for note in notes)
    return section("Settings", f"{said}<div class=settings>{body}</div>")


def _list(entries: dict[str, Any]) -> str:
    items = ((key, value) for key, value in entries.items() if value not in (None, "", [], {}))
    return f"<dl>{''.join(f'<dt>{escape(str(k))}</dt><dd>{escape(_said(v))}</dd>' for k, v in items)}</dl>"


def _said(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:,}" if type(value) is int else str(value)


WORDS = {
    "update": "one step of the parameters; also the time it takes",
    "compute": "gradients of one's own samples, with fetching them",
    "communicate": "moving numbers between workers",
    "wait": "for others: at a meeting, at a gate, for a lock",
    "other": "between these: bookkeeping, keeping a snapshot for evaluation",
    "staleness": "updates that were made between a worker's pull and its own push",
    "ceiling": "the speed of as many workers that never meet",
    "speed-up": "speed over that of the best single process",
}


def words() -> str:
    entries = "".join(f"<dt>{word}</dt><dd>{meaning}</dd>" for word, meaning in WORDS.items())
    return section("Words", f"<dl class=words>{entries}</dl>")
