"""paceline draw"""

from __future__ import annotations

import sys

from paceline.cli import options


def draw(plan: options.PlanArgument, workers: options.Workers = None) -> None:
    """Draw what the workers of PLAN do, as plain text on standard output.

    A synchronous plan is drawn as a table: who sends which part to whom, step by step. A pipeline is drawn as a
    timetable, ticks across and workers down. Other plans are drawn as a timeline of a small made-up world in which some
    workers are slower than others.
    """
    from paceline.drawing import draw as picture
    from paceline.plan import Plan

    sys.stdout.write(picture(Plan.parse(plan, workers), sys.stdout.isatty()) + "\n")
