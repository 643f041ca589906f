"""The command `paceline plans`."""

from __future__ import annotations

from paceline.cli import options
from paceline.cli.output import print_json


def plans(json: options.Json = False) -> None:
    """List all plans in groups, with their options and other names."""
    from paceline.plans.groups import described

    found = described()
    if json:
        print_json({"plans": [plan for plans in found.values() for plan in plans]})
        return
    from paceline.cli.tables import show_plans

    show_plans(found)
