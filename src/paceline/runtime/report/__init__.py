"""Reports on recorded runs: an HTML page, and files for other tools. Needs no torch, no pickles and no network.

reading                      run folders: what they hold and lack, each worker's time as spans, a run's row in the table
curves                       PURE: loss, accuracy and staleness, with as many points as a chart needs
formatting                   PURE: numbers as text
charts                       HTML and SVG from these
overview settings sections   the parts of the page, from its top down
page                         the page, with page.css and page.js; and while its runs go on, with live.js
exports                      the same for other tools: JSON, CSV, TensorBoard, Perfetto
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import RunFolderError, UsageError, suggest
from paceline.runtime.report import exports
from paceline.runtime.report.page import page
from paceline.runtime.report.reading import Reading, open_all

Writer = Callable[[Sequence[Reading], Path], list[Path]]


def _write_html(readings: Sequence[Reading], output: Path) -> list[Path]:
    output.write_text(page(readings), encoding="utf-8")
    return [output]


FORMATS: dict[str, tuple[Writer, str]] = {  # the writer, and the default output
    "html": (_write_html, "report.html"),
    "json": (exports.write_json, "report.json"),
    "csv": (exports.write_csv, "report.csv"),
    "tensorboard": (exports.write_events, "report-tensorboard"),
    "perfetto": (exports.write_trace, "report.perfetto.json"),
}


def _common_folder(runs: Sequence[Path]) -> Path:
    """Return the folder itself, or the one that holds all of several."""
    if len(runs) == 1:
        return runs[0]
    return Path(os.path.commonpath([run.resolve().parent for run in runs]))


def _refuse_links(output: Path) -> None:
    """Refuse to write through a link: the folder of a run may be another person's, and the link lead anywhere."""
    beside = output.with_name(f"{output.stem}-curves{output.suffix}")
    for each in (output, beside, *output.rglob("*")):
        if each.is_symlink():
            raise RunFolderError(
                f"{each} is a link, and the report would be written to where it leads; give another -o"
            )


def write(runs: Sequence[Path], output: Path | None = None, form: str = "html") -> list[Path]:
    """Write a report on these run folders, or on all runs in these folders; returns the files written.

    Without an output it goes into the folder that was given, or into the one that holds all that were.
    """
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r}; {suggest(form, FORMATS)}")
    writer, default = FORMATS[form]
    readings = open_all(runs)
    if output is None:
        output = _common_folder(runs) / default
        _refuse_links(output)
    try:
        return writer(readings, output)
    except OSError as error:
        raise RunFolderError(f"the report cannot be written to {output}: {error.strerror}; give another -o") from error
