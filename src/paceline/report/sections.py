"""The sections of a page below its overview, composed of charts, timelines and layers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from paceline.report.charts import Line, chart, histogram_chart, legend
from paceline.report.curves import AXES, envelope, evaluation_curve, histogram, loss_curve, metrics, staleness_curve
from paceline.report.formatting import duration, number, share
from paceline.report.lanes import Lane
from paceline.report.layers import layers
from paceline.report.overview import colours_of, section
from paceline.report.reading import Reading
from paceline.report.run_stats import RunStats
from paceline.report.timeline import time_bars, timeline
from paceline.runs.schema import to_dict
from paceline.runs.time_accounting import Time
from paceline.runs.trace import Kind

POINTS = 4000  # of all curves of a chart together
INSIDE_DDP = "PyTorch's DDP communicates while it computes: its waiting and communication are part of compute."


# --- curves ---------------------------------------------------------------------------------------------------------


def learning(readings: Sequence[Reading]) -> str:
    """Loss and evaluations over time, updates and samples; the page shows one of the three axes at a time."""
    curves = [loss_curve(reading) for reading in readings]
    names = list(dict.fromkeys(name for reading in readings for name in metrics(reading)))[:6]
    if not any(curves) and not names:
        return ""
    colours = colours_of([reading.plan for reading in readings])
    many = len(readings) > 12
    bins = max(20, min(160 if len(readings) == 1 else 80, POINTS // len(readings)))
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
    names_of = {reading.plan: reading.short for reading in readings}
    key = legend([(names_of[plan], colours[plan]) for plan in colours]) if len(readings) > 1 else ""
    lost = sum(int((~np.isfinite(r.trace.of_kind(Kind.COMPUTE)["value"])).sum()) for r in readings)
    note = "A line shows means over parts of the run" + (", the band their minimum and maximum." if not key else ".")
    note += f" {lost:,} losses were not finite and are left out." if lost else ""
    return section("Learning", f'<div class="tabs">{tabs}{key}{body}</div>', note)


def staleness(reading: Reading) -> str:
    """The staleness of one run, over time and as a histogram; empty where there is none."""
    seconds, values = staleness_curve(reading.trace)
    if not len(values) or not values.any():
        return ""
    line = Line("staleness", "run-0", envelope(seconds, values, 120))
    body = chart("Staleness over time", [line], "seconds")
    body += histogram_chart("Staleness of gradients", histogram(values), "updates between pull and push")
    note = "Updates by other workers between a worker's pull and its push."
    return section("Staleness", f"<div class=charts>{body}</div>", note)


def staleness_of_all(readings: Sequence[Reading]) -> str:
    """The staleness of several runs over time."""
    colours, bins = colours_of([r.plan for r in readings]), max(20, min(80, POINTS // len(readings)))
    lines, key = [], dict[str, str]()
    for reading in readings:
        seconds, values = staleness_curve(reading.trace)
        if len(values) and values.any():
            colour = colours[reading.plan]
            key[reading.short] = colour
            lines.append(Line(reading.name, colour, envelope(seconds, values, bins), faint=len(readings) > 12))
    drawn = chart("Mean staleness", lines, "seconds")
    return section("Staleness", f"{legend(list(key.items()))}<div class=charts>{drawn}</div>") if drawn else ""


# --- time -----------------------------------------------------------------------------------------------------------


def times(found: Sequence[RunStats]) -> str:
    """Where the time of each run went."""
    rows = [(f.name, f.shares) for f in found if f.shares]
    note = "Shares of all workers' time. " + INSIDE_DDP * any(f.plan.startswith("ddp") for f in found)
    return section("Where the time went", time_bars(rows), note) if 0 < len(rows) <= 24 else ""


# --- one run --------------------------------------------------------------------------------------------------------


def of_run(reading: Reading, found: RunStats, lanes: Sequence[Lane], spans: int) -> str:
    """The details of one run: its workers' time, the staleness of its gradients, its model."""
    deaths = [(int(row["worker"]), float(row["end"]) / 1e9) for row in reading.trace.of_kind(Kind.DEATH)]
    drawn = timeline(lanes, deaths, spans)
    note = "Each strip is a worker; at each point, its height is divided into the kinds of time."
    body = section("Timeline", drawn, note)
    rows = [(_whose(lane, found), _parts(lane)) for lane in lanes[:64]]
    if len(lanes) > 1:
        rows.append(("all workers", found.shares))
    body += section("Where the time went", time_bars(rows) if rows else "", _time_note(reading))
    body += staleness(reading)
    return body + section("Model", layers(reading.record.model))


def _whose(lane: Lane, found: RunStats) -> str:
    slow = found.stragglers.get(lane.worker)
    return f"worker {lane.worker}" + (f", a straggler at {share(slow)}" if slow else "")


def _parts(lane: Lane) -> dict[str, float]:
    total = float(lane.seconds.sum()) or 1.0
    return {time.name.lower(): float(lane.seconds[time]) / total for time in Time}


def _time_note(reading: Reading) -> str:
    """How the times of this plan are to be read."""
    if reading.method == "ddp":
        return INSIDE_DDP
    if reading.trace.of_kind(Kind.MEET).size:
        return "A collective waits several times; its waiting is drawn first, as one piece."
    if reading.record.engine == "virtual":
        return "What travels from a worker to a shard counts as update, the way back as other."
    if reading.workers > 1:
        return "Workers that share memory copy parameters while they update them: this is part of update."
    return ""


def one_by_one(
    readings: Sequence[Reading], found: Sequence[RunStats], laid: Sequence[Sequence[Lane]], spans: int
) -> str:
    """The details of each run, folded; the model once, where all have the same."""
    models = [reading.record.model for reading in readings]
    common = models[0] if all(model == models[0] for model in models) else ()
    body = ""
    for reading, f, lanes in zip(readings, found, laid, strict=True):
        own = reading if not common else _without_model(reading)
        inside = of_run(own, f, lanes, spans) + settings(own)
        body += f"<details><summary>{escape(f.name)}<small>{escape(_short(f))}</small></summary>{inside}</details>\n"
    return section("One by one", body) + section("Model", layers(common))


def _without_model(reading: Reading) -> Reading:
    from dataclasses import replace

    missing = tuple(line for line in reading.missing if "outline" not in line)
    return replace(reading, record=reading.record.with_(model=()), missing=missing)


def _short(found: RunStats) -> str:
    return f"{number(found.samples_per_second)} samples/s, {duration(found.seconds)}"


# --- settings -------------------------------------------------------------------------------------------------------


def settings(reading: Reading) -> str:
    record = reading.record
    run: dict[str, Any] = {
        "plan": record.plan, "engine": record.engine, "workers": record.workers, "threads": record.threads,
        "shards": record.shards, "limit": record.limit, "started": record.started, "status": record.status,
        "folder": str(reading.path),
    }  # fmt: skip
    if record.summary is not None:
        run["parameters' sha256"] = record.summary.parameters_sha256[:16]
    groups = {"Run": run, "Job": to_dict(record.job), "Machine and versions": to_dict(record.machine)}
    body = "".join(f"<div><h3>{name}</h3>{_list(entries)}</div>" for name, entries in groups.items())
    notes = [*record.notes, *reading.missing]
    if record.error:
        notes.append(record.error)
    said = "".join(f"<p class=note>{escape(note)}</p>" for note in notes)
    return section("Settings", f"{said}<div class=settings>{body}</div>")


def _list(entries: dict[str, Any]) -> str:
    items = ((key, value) for key, value in entries.items() if value not in (None, "", [], {}))
    return f"<dl>{''.join(f'<dt>{escape(str(k))}</dt><dd>{escape(_text(v))}</dd>' for k, v in items)}</dl>"


def _text(value: Any) -> str:
    return (
        {True: "yes", False: "no"}[value]
        if isinstance(value, bool)
        else f"{value:,}"
        if type(value) is int
        else str(value)
    )


GLOSSARY = {
    "update": "one step of the parameters; also the time it takes",
    "compute": "gradients of one's own samples, with fetching them",
    "communicate": "moving numbers between workers",
    "wait": "for others: in a collective, at a gate, for a lock",
    "other": "between these: bookkeeping, copying a snapshot for evaluation",
    "staleness": "updates that were made between a worker's pull and its own push",
    "ceiling": "the speed of as many workers that never communicate",
    "speed-up": "speed over that of the best single process",
}


def glossary() -> str:
    """The terms of the page."""
    entries = "".join(f"<dt>{word}</dt><dd>{meaning}</dd>" for word, meaning in GLOSSARY.items())
    return section("Glossary", f"<dl class=words>{entries}</dl>")
