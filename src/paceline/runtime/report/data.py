"""What a run was trained on: the account of every row of its folders of shards, and the samples of each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from paceline.errors import DataError
from paceline.runtime.report.charts import ChartLine, chart, legend
from paceline.runtime.report.curves import envelope
from paceline.runtime.report.formatting import number
from paceline.runtime.report.overview import section
from paceline.runtime.report.reading import Reading
from paceline.runtime.runs.record import DataOrigin
from paceline.runtime.runs.trace import Kind
from paceline.training.shards.manifest import Account, Example, Manifest, examples, read_manifest
from paceline.training.shards.sealed import SealedList, is_stream

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
