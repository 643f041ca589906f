"""The settings of one run, and of several what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from paceline.runtime.report.overview import section
from paceline.runtime.report.reading import Reading
from paceline.runtime.runs.schema import to_dict

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
