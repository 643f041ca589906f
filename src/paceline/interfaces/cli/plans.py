"""The command `paceline plans`."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.output import print_json


def plans(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this plan and what its options mean.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List all plans in groups, with their options and other names; or show one plan."""
    from paceline.plans.groups import described, description

    if name is not None:
        from paceline.interfaces.cli.tables import show_plan

        details = description(name)
        print_json(details) if json else show_plan(details)
        return
    groups = described()
    if json:
        print_json({"plans": [plan for plans in groups.values() for plan in plans]})
        return
    from paceline.interfaces.cli.tables import show_plans

    show_plans(groups)
