"""The settings of a run, in what those of several differ, and the data that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import DataError
from paceline.runtime.report.charts import ChartLine, chart, legend
from paceline.runtime.report.curves import envelope
from paceline.runtime.report.formatting import number
from paceline.runtime.report.overview import section
from paceline.runtime.report.reading import Reading
from paceline.runtime.runs.record import DataOrigin
from paceline.runtime.runs.schema import to_dict
from paceline.runtime.runs.trace import Kind
from paceline.training.shards.manifest import Account, Example, Manifest, examples, read_manifest
from paceline.training.shards.sealed import SealedList, is_stream

MOST_RUNS = 8  # whose settings are set against one another in a table

#: Settings that differ between any two runs, or follow from the others.
OWN = ("started", "folder", "parameters' sha256", "status")


def settings(reading: Reading) -> str:
    """All settings of a run, and what was noted about it."""
    body = "".join(f"<div><h3>{name}</h3>{_list(entries)}</div>" for name, entries in _groups(reading).items())
    return section("Settings", f"{notes(reading)}<div class=settings>{body}</div>")


def notes(reading: Reading) -> str:
    """Warnings, what the folder lacks, and why the run failed."""
    remarks = [*reading.record.notes, *reading.missing, *([reading.record.error] if reading.record.error else [])]
    hang = f"<pre class=note>{escape(reading.hang)}</pre>" if reading.hang else ""
    return "".join(f"<p class=note>{escape(note)}</p>" for note in remarks) + hang


def differences(readings: Sequence[Reading]) -> str:
    """A row per setting that is not the same for all runs, and the others folded."""
    flat = [_flat(reading) for reading in readings]
    names = list(dict.fromkeys(name for entries in flat for name in entries if name not in OWN))
    differing = [name for name in names if len({_text(entries.get(name)) for entries in flat}) > 1]
    common = {name: flat[0].get(name) for name in names if name not in differing}
    folded = (
        f"<details><summary>Settings that all runs share</summary><div class=settings>{_list(common)}</div></details>"
    )
    if len(readings) > MOST_RUNS or not differing:
        return f"<h3>What differs between runs</h3><p class=note>{_in_words(differing)}</p>{folded}"
    head = "".join(f"<th scope=col>{escape(reading.name)}</th>" for reading in readings)
    body = ""
    for name in differing:
        cells = "".join(
            f'<td data-label="{escape(reading.name, quote=True)}">{escape(_text(entries.get(name)))}</td>'
            for reading, entries in zip(readings, flat, strict=True)
        )
        body += f"<tr><th scope=row>{escape(name)}</th>{cells}</tr>"
    return (
        f'<h3>What differs between runs</h3><div class=scroll tabindex="0"><table class="cards differs">'
        f"<caption class=unseen>Settings that differ</caption><thead><tr><td>setting</td>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{folded}"
    )


def _in_words(differing: Sequence[str]) -> str:
    return f"{', '.join(map(escape, differing))}." if differing else "Nothing: all settings are the same."


def _groups(reading: Reading) -> dict[str, dict[str, Any]]:
    record = reading.record
    run: dict[str, Any] = {
        "plan": record.plan,
        "engine": record.engine,
        "workers": record.workers,
        "threads": record.threads,
        "shards": record.shards,
        "limit": record.limit,
        "started": record.started,
        "status": record.status,
        "folder": str(reading.path),
    }
    if record.summary is not None:
        run["parameters' sha256"] = record.summary.parameters_sha256[:16]
    return {"Run": run, "Job": to_dict(record.job), "Machine and versions": to_dict(record.machine)}


def _flat(reading: Reading) -> dict[str, Any]:
    return {name: value for entries in _groups(reading).values() for name, value in entries.items()}


def _list(entries: dict[str, Any]) -> str:
    items = ((key, value) for key, value in entries.items() if value not in (None, "", [], {}))
    return f"<dl>{''.join(f'<dt>{escape(str(k))}</dt><dd>{escape(_text(v))}</dd>' for k, v in items)}</dl>"


def _text(value: Any) -> str:
    if value in (None, "", [], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if type(value) is int else str(value)


# What a run was trained on: the account of every row of its folders of shards, and the samples of each worker.

MOST_SOURCES = 20  # rows of a table of sources
MOST_CHARTED = 8  # columns whose drift is drawn
MOST_SPANS = 40  # of batches, one after another, that are listed of each worker
SHOWN = 80  # characters of a record


def data(reading: Reading) -> str:
    """The section about the folders of shards that a run read; empty where it read something else."""
    if not reading.record.data:
        return ""
    body = "".join(_folder(reading.path, origin) for origin in dict.fromkeys(reading.record.data))
    return section("Data", body + _workers(reading), "Rows read are rows kept, rejected under a rule, and duplicates.")


def _folder(run: Path, origin: DataOrigin) -> str:
    folder = Path(origin.folder)
    note = f"{origin.samples:,} samples of {folder}"
    if not folder.resolve().is_relative_to(run.resolve()):  # run.json of another user may name any folder of the reader
        note += (
            ", which run.json names. This folder is not part of the run: its columns, sources and rejected rows are "
            "copied into this page. See that they may be sent before you send it."
        )
    head = f"<h3>{escape(folder.name)}{f', {escape(origin.split)}' if origin.split else ''}</h3>"
    try:
        body = _stream(folder, SealedList(folder)) if is_stream(folder) else _shards(folder, read_manifest(folder))
    except DataError as error:
        return f"{head}<p class=note>{escape(str(error))}</p>"
    return f"{head}<p class=note>{escape(note)}</p>{body}"


def _shards(folder: Path, manifest: Manifest) -> str:
    sources = [(each.kind, file, f"{size:,}") for each in manifest.sources for file, size in each.files.items()]
    rows = []
    for name, column in manifest.columns.items():
        statistics = column.statistics
        figures = (statistics.mean, statistics.std, statistics.least, statistics.greatest) if statistics else ()
        rows.append((name, *map(number, figures)) if figures else (name, "", "", "", ""))
    return (
        _account(manifest.account, examples([folder / "rejected.parquet"]))
        + _table("Columns", ("column", "mean", "std", "least", "greatest"), rows)
        + _table("Sources", ("kind", "file", "bytes"), sources[:MOST_SOURCES], len(sources))
    )


def _stream(folder: Path, sealed: SealedList) -> str:
    rejected = (folder / "rejected" / f"{at:05d}.parquet" for at, each in enumerate(sealed.shards) if each.rejected)
    notes = {note.source: note.what for note in sealed.notes}
    sources = []
    for source in sealed.sources:
        mine = [shard for shard in sealed.shards if shard.source == source]
        bad = sum(sum(shard.rejected.values()) for shard in mine)
        sources.append((source, f"{sum(shard.rows for shard in mine):,}", f"{bad:,}", notes.get(source, "")))
    return (
        _account(sealed.account, examples(rejected))
        + _table("Sources", ("source", "kept", "rejected", "note"), sources[:MOST_SOURCES], len(sources))
        + _drift(sealed)
    )


def _drift(sealed: SealedList) -> str:
    """The population stability index of each column over the shards."""
    lines = []
    for place, name in enumerate(list(sealed.columns)[:MOST_CHARTED]):
        drifts = {at: shard.drift[name] for at, shard in enumerate(sealed.shards) if name in shard.drift}
        stability = np.array([drift.population_stability for drift in drifts.values()])
        if len(stability):
            curve = envelope(np.array(list(drifts), float), stability, 120)
            lines.append(ChartLine(f"{name}: {stability[-1]:.2f}", f"run-{place}", curve))
    drawn = chart("Population stability index against the first shard", lines, "shard")
    return f"{legend([(line.label, line.colour) for line in lines])}<div class=charts>{drawn}</div>" if drawn else ""


def _account(account: Account, by_rule: Mapping[str, Sequence[Example]]) -> str:
    """Where every row went, with examples of each rule."""
    rejected = sum(account.rejected.values())
    text = f"{account.read:,} rows = {account.kept:,} kept + {rejected:,} rejected + {account.duplicates:,} duplicates"
    rows = [
        (rule, f"{count:,}", "; ".join(f"{e.file}:{e.line} {e.record[:SHOWN]}" for e in by_rule.get(rule, ())))
        for rule, count in account.rejected.items()
    ]
    return f"<p>{escape(text)}</p>" + _table("Rejected rows", ("rule", "rows", "for example"), rows)


def _workers(reading: Reading) -> str:
    """Return the batches that each worker computed, from the trace."""
    computed = reading.trace.of_kind(Kind.COMPUTE)
    rows = []
    for worker in np.unique(computed["worker"]):
        mine = computed[computed["worker"] == worker]
        updates = np.unique(mine["update"])
        spans = np.split(updates, 1 + np.flatnonzero(np.diff(updates) > 1))
        listed = ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans[:MOST_SPANS])
        listed += f", and {len(spans) - MOST_SPANS:,} more" * (len(spans) > MOST_SPANS)
        rows.append((f"worker {worker}", f"{int(mine['samples'].sum()):,}", f"{len(updates):,}", listed))
    return _table("Samples of each worker", ("worker", "samples", "batches", "their numbers"), rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], total: int = 0) -> str:
    if not rows:
        return ""
    heads = "".join(f"<th scope=col>{escape(each)}</th>" for each in head)
    body = "".join(
        f"<tr><th scope=row>{escape(first)}</th>"
        + "".join(
            f'<td data-label="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(head[1:], rest, strict=True)
        )
        + "</tr>"
        for first, *rest in rows
    )
    more = f"<p class=note>{total - len(rows):,} more are in the manifest.</p>" if total > len(rows) else ""
    return (
        f'<h3>{title}</h3><div class=scroll tabindex="0"><table class="cards rows"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )
