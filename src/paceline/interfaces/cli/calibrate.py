"""The command `paceline calibrate`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json


def calibrate(
    output: options.CardFile = None,
    seconds: options.CalibrationSeconds = 30.0,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Measure what this machine can do, and write its card.

    The card holds the seconds of operations with 1 to n busy cores, of exchanges between workers, and of Python in each
    update. `choose`, `validate` and --plan auto read it. It is a JSON file that can be carried to another machine.
    """
    from paceline.runtime.engines.workers.process import fork_early

    fork_early()
    from paceline.interfaces.api.planning.calibrate import calibrate as measure
    from paceline.interfaces.cli.planning import show_card
    from paceline.planning.planner.card import default_file

    card = measure(seconds, output, lambda line: None if quiet else console.print(line, style="dim"))
    place = Path(output or default_file())
    if json:
        print_json({**dataclasses.asdict(card), "card": str(place)})
        return
    show_card(card, place)
