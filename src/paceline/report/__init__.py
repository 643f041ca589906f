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

from collections.abc import Sequence
from pathlib import Path

from paceline.report.page import page
from paceline.report.reading import open_all


def write_page(runs: Sequence[Path], output: Path) -> Path:
    """One HTML file about these run folders, or the runs in these folders."""
    output.write_text(page(open_all(runs)))
    return output
