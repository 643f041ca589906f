"""What a training left behind, as a page and as files for other tools. Reads run folders and nothing else: no torch,
no pickles, no network.

    reading     what is in run folders, and what is not
    lanes       PURE: each worker's time, span by span
    curves      PURE: loss, accuracy, staleness, in as many points as a picture needs
    figures     PURE: the figures of the table
    words       PURE: how figures are said
    charts timeline layers      drawing: HTML and SVG from these
    sections page               the page, with page.css and page.js
    exports tensorboard perfetto    the same for other tools
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import RunFolderError, UsageError, suggest
from paceline.report import exports, perfetto, tensorboard
from paceline.report.page import page
from paceline.report.reading import Reading, open_all

Writer = Callable[[Sequence[Reading], Path], list[Path]]


def _write_html(readings: Sequence[Reading], output: Path) -> list[Path]:
    output.write_text(page(readings))
    return [output]


FORMATS: dict[str, tuple[Writer, str]] = {  # what writes it, and where to unless told
    "html": (_write_html, "report.html"),
    "json": (exports.write_json, "report.json"),
    "csv": (exports.write_csv, "report.csv"),
    "tensorboard": (tensorboard.write_events, "report-tensorboard"),
    "perfetto": (perfetto.write_trace, "report.perfetto.json"),
}


def write(runs: Sequence[Path], output: Path | None = None, form: str = "html") -> list[Path]:
    """A report about these run folders, or about the runs in these folders; the files it was written to."""
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r}; {suggest(form, FORMATS)}")
    writer, usual = FORMATS[form]
    readings = open_all(runs)
    output = output or Path(usual)
    try:
        return writer(readings, output)
    except OSError as error:
        raise RunFolderError(f"the report cannot be written to {output}: {error.strerror}; give another -o") from error
