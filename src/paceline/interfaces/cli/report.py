"""The command `paceline report`."""

from __future__ import annotations

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console


def report(runs: options.RunArguments, output: options.Output = None, form: options.ReportFormat = "html") -> None:
    """Write a report on one run, or on several side by side: one HTML file that needs no network.

    A folder that contains run folders, such as that of a comparison, stands for all of them. The other formats hold
    the same figures for other programs.
    """
    from paceline.runtime.report import write

    for file in write(runs, output, form):
        console.print(str(file), soft_wrap=True)
